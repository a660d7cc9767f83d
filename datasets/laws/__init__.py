"""Laws that lookups are drawn from."""
