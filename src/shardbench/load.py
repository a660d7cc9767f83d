"""What embedding kernels of a set of devices do in one iteration."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from shardbench.plan import Tier
from shardbench.table import Precision

Floats = NDArray[np.float64]

VECTOR_BYTES = 4
"""Pooled vectors and their gradients travel as fp32, whatever the weights are."""


def zeros(n: int) -> Floats:
    """float64 [n] of zeros."""
    return np.zeros(n, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What embedding kernels of ``n`` devices do in one iteration; float64 [n] each.

    ``*_bytes`` of lookups and rows are weight bytes; ``state_bytes`` is optimiser state of the
    distinct rows. ``bags`` are pooled output vectors of ``bag_bytes`` (fp32) in all.
    """

    lookups: Floats
    lookup_bytes: Floats
    distinct: Floats
    distinct_bytes: Floats
    state_bytes: Floats
    uvm_lookups: Floats
    uvm_lookup_bytes: Floats
    uvm_distinct: Floats
    uvm_distinct_bytes: Floats
    bags: Floats
    bag_bytes: Floats
    gradient_bytes: Floats
    """fp32 gradient bytes read, one row a lookup."""

    @classmethod
    def zeros(cls, n: int) -> "Load":
        """No load on ``n`` devices."""
        return cls(**{f.name: zeros(n) for f in fields(cls)})

    def add(self, at: int | list[int] | slice, other: "dict[str, Floats | float]") -> None:
        """Add values to the devices ``at``, in place."""
        for name, value in other.items():
            getattr(self, name)[at] += value

    @property
    def all_lookups(self) -> Floats:
        """Lookups of both tiers."""
        return self.lookups + self.uvm_lookups


def segment_load(
    rows: dict[str, Floats | float], columns: int, tier: Tier, precision: Precision, state: int
) -> dict[str, Floats | float]:
    """Load of a segment from its ``lookups``, ``distinct`` rows and ``bags`` (same shapes out as in)."""
    width = columns * precision.bytes
    prefix = "uvm_" if tier is Tier.UVM else ""
    return {
        prefix + "lookups": rows["lookups"],
        prefix + "lookup_bytes": rows["lookups"] * width,
        prefix + "distinct": rows["distinct"],
        prefix + "distinct_bytes": rows["distinct"] * width,
        "state_bytes": rows["distinct"] * state,
        "bags": rows["bags"],
        "bag_bytes": rows["bags"] * columns * VECTOR_BYTES,
        "gradient_bytes": rows["lookups"] * columns * VECTOR_BYTES,
    }
