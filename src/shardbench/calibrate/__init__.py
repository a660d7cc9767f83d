"""Measures this machine with the engine's own kernels and collectives, and fits a machine file to it."""
