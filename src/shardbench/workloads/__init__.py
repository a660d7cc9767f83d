"""Lookups: traces, their profiles, and the test batches of a trial."""

from shardbench.workloads.table_list import from_torchrec, read_table_list

__all__ = ["from_torchrec", "read_table_list"]
