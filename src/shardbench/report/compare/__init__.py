"""Two records or two runs held against each other."""
