"""One training for all learned strategies: they add networks, losses and what their state consists of."""
