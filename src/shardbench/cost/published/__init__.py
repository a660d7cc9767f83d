"""The cost model against published measurements."""
