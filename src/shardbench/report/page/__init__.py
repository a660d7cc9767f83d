"""The page about a suite: one HTML file with nothing to fetch, and its charts."""
