"""The most memory that each rank holds in a step, predicted before anything runs."""
