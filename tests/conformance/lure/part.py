"""A module that a strategy requires."""
