"""The leaderboard: every strategy on every problem of a frozen list."""
