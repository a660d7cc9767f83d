"""Trials, the records that they end in, and the files that keep them."""
