"""What every strategy must do, and what the leaderboard takes."""
