"""asv benchmarks: kept small, since asv runs them for many commits."""
