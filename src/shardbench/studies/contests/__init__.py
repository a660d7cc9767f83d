"""Contests: learned strategies and others on the papers' task sets, and what training does to them."""
