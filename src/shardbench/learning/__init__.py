"""What trainings of learned strategies share."""
