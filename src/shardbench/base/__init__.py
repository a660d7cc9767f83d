"""What everything stands on: errors, files, JSON, statistics, this machine."""
