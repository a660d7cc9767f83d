"""Processes with a deadline: how they are started, watched, blamed and ended. No module here imports torch."""
