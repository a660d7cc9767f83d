"""What the RNN's result hangs on: how it acts, and the order that it reads its tables in."""
