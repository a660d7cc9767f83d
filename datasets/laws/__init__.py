"""Laws that lookups are drawn from, and what all drawn workloads share."""
