"""Lookups counted per second, by number of devices: the cost must grow with lookups, not with devices."""

import time

import numpy as np

from shardbench.cost.lookups import CountedLookups
from shardbench.workloads.trace import Bags

ROWS, BATCH, POOLING = 1_000_000, 65_536, 16


class Counting:
    """One table of 1,048,576 skewed lookups."""

    params = (["whole", "dealt", "replicated"], [8, 128, 1024])
    param_names = ("placement", "devices")

    def setup(self, placement: str, devices: int) -> None:
        """The same lookups for every commit."""
        offsets = np.arange(BATCH + 1, dtype=np.int64) * POOLING
        values = (np.random.default_rng(0).random(offsets[-1]) ** 3 * ROWS).astype(np.int32)
        self.bags = Bags(values=values, offsets=offsets)

    def _count(self, placement: str, devices: int) -> None:
        lookups = CountedLookups(self.bags, ROWS, devices)
        if placement == "whole":
            lookups.by_source(0, ROWS)
            lookups.distinct(0, ROWS, 1)
        elif placement == "dealt":
            lookups.dealt(0, ROWS, devices)
            lookups.distinct(0, ROWS, devices)
        else:
            lookups.by_source(0, ROWS)
            lookups.distinct_by_source(0, ROWS)

    def time_count(self, placement: str, devices: int) -> None:
        """Wall seconds."""
        self._count(placement, devices)

    def track_lookups_per_s(self, placement: str, devices: int) -> float:
        """Per second of CPU time."""
        start = time.process_time()
        self._count(placement, devices)
        return BATCH * POOLING / (time.process_time() - start)

    track_lookups_per_s.unit = "lookups/s"
