"""Lookups: traces, their profiles, and the test batches of a trial."""
