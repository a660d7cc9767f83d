"""Reproductions: a baseline's suite, its studies, and the claims they test."""
