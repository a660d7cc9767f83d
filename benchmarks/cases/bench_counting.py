"""Counting the lookups of one table: the time must grow with lookups, not with devices."""

import numpy as np

from shardbench.cost.lookups import CountedLookups
from shardbench.workloads.trace import Bags

from .case import Case
from .made_up import BATCH, made_bags

ROWS, POOLING = 1_000_000, 16
PLACEMENTS = ["whole", "dealt", "replicated"]
DEVICES = [8, 128, 1024]


def count(bags: Bags, placement: str, devices: int) -> None:
    """Count what a plan's accounting asks of a table that is placed so."""
    lookups = CountedLookups(bags, ROWS, devices)
    if placement == "whole":
        lookups.by_source(0, ROWS)
        lookups.distinct(0, ROWS, 1)
    elif placement == "dealt":
        lookups.dealt(0, ROWS, devices)
        lookups.distinct(0, ROWS, devices)
    else:
        lookups.by_source(0, ROWS)
        lookups.distinct_by_group(0, ROWS, np.arange(devices)[:, None], 1)


class Counting(Case):
    """A table of 1,048,576 skewed lookups, by how it lies on the devices, beside sorting them."""

    params = (PLACEMENTS, DEVICES)
    param_names = ("placement", "devices")
    against = "sorting them"
    repeats = 9

    def setup(self, placement: str, devices: int) -> None:
        """Draw the same lookups for every commit."""
        self.bags = made_bags(ROWS, BATCH, POOLING)

    def time_count(self, placement: str, devices: int) -> None:
        """Count the lookups of the table."""
        count(self.bags, placement, devices)

    def reference(self) -> object:
        """Sort the lookups of the table."""
        return np.sort(self.bags.values)


class CountingMemory:
    """The same table, replicated on the most devices."""

    def setup(self) -> None:
        """Draw the same lookups for every commit."""
        self.bags = made_bags(ROWS, BATCH, POOLING)

    def peakmem_count(self) -> None:
        """Count the lookups of the table."""
        count(self.bags, "replicated", DEVICES[-1])
