"""A package of one's own that brings a strategy, a data set and a machine."""
