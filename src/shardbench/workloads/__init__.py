"""Lookups: traces, their profiles, and the test batches of a trial."""

from shardbench.workloads.table_list import from_torchrec, read_table_list, write_table_list
from shardbench.workloads.value_hash import hash_ids

__all__ = ["from_torchrec", "hash_ids", "read_table_list", "write_table_list"]
