"""Counting the lookups of one table: the time must grow with lookups, not with devices."""

from shardbench.cost.lookups import CountedLookups
from shardbench.workloads.trace import Bags

from .made_up import BATCH, cpu_s, made_bags

ROWS, POOLING = 1_000_000, 16
PLACEMENTS = ["whole", "dealt", "replicated"]
DEVICES = [8, 128, 1024]


def count(bags: Bags, placement: str, devices: int) -> None:
    """What a plan's accounting asks of a table that lies so."""
    lookups = CountedLookups(bags, ROWS, devices)
    if placement == "whole":
        lookups.by_source(0, ROWS)
        lookups.distinct(0, ROWS, 1)
    elif placement == "dealt":
        lookups.dealt(0, ROWS, devices)
        lookups.distinct(0, ROWS, devices)
    else:
        lookups.by_source(0, ROWS)
        lookups.distinct_by_source(0, ROWS)


class Counting:
    """A table of 1,048,576 skewed lookups, by how it lies on the devices."""

    params = (PLACEMENTS, DEVICES)
    param_names = ("placement", "devices")
    timer = staticmethod(cpu_s)

    def setup(self, placement: str, devices: int) -> None:
        """The same lookups for every commit."""
        self.bags = made_bags(ROWS, BATCH, POOLING)

    def time_count(self, placement: str, devices: int) -> None:
        """CPU seconds."""
        count(self.bags, placement, devices)


class CountingMemory:
    """The same, replicated on the most devices."""

    def setup(self) -> None:
        """The same lookups for every commit."""
        self.bags = made_bags(ROWS, BATCH, POOLING)

    def peakmem_count(self) -> None:
        """Bytes of the process at its largest, its imports included."""
        count(self.bags, "replicated", DEVICES[-1])
