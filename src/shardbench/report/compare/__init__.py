"""Two records or two runs beside each other: what differs, and why."""
