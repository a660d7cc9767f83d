"""asv benchmarks of this package's own code: CPU seconds, bytes and tracked values; less is better."""
