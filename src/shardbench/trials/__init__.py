"""Suites of trials: from a question to an answer on record."""
