"""ShardBench: a benchmark-and-reproduction suite for embedding-table sharding."""

__version__ = "0.1.0"
