"""What is timed of this package's own code, read by asv (`nox -s regression`) and pytest-benchmark (`nox -s micro`)."""
