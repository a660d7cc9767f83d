"""What embedding kernels of a set of devices do in one iteration."""

from dataclasses import dataclass, fields

import numpy as np

from shardbench.base.arrays import Floats, zeros
from shardbench.model.plan import Tier
from shardbench.model.table import Precision

VECTOR_BYTES = 4
"""Pooled vectors and their gradients travel as fp32, whatever the weights are."""
ROWWISE_STATE_BYTES = 4
"""Optimiser state of a row up to which it stays in HBM when the row is in host memory (FBGEMM)."""
LONGEST = "longest_bag"
"""The one field that is a maximum over a device's tables; all others are sums."""


@dataclass(frozen=True, kw_only=True)
class TierRows:
    """What is looked up in one tier: the fields of Load without their prefix."""

    lookups: Floats
    lookup_bytes: Floats
    distinct: Floats
    distinct_bytes: Floats
    repeat_set_bytes2: Floats


@dataclass(frozen=True, kw_only=True)
class Load:
    """What embedding kernels of ``n`` devices do in one iteration; float64 [n] each.

    ``*_bytes`` of lookups and rows are weight bytes; ``state_bytes`` is optimiser state of the
    distinct rows. ``bags`` are pooled output vectors of ``bag_bytes`` (fp32) in all. Every field
    but ``longest_bag`` adds up over the tables of a device.
    """

    lookups: Floats
    lookup_bytes: Floats
    distinct: Floats
    distinct_bytes: Floats
    repeat_set_bytes2: Floats
    """Sum over tables of repeated bytes x distinct bytes: over the repeated bytes, the mean working set of a repeat."""
    state_bytes: Floats
    """Optimiser state that is in HBM."""
    uvm_lookups: Floats
    uvm_lookup_bytes: Floats
    uvm_distinct: Floats
    uvm_distinct_bytes: Floats
    uvm_repeat_set_bytes2: Floats
    uvm_state_bytes: Floats
    """Optimiser state that is in host memory."""
    bags: Floats
    bag_bytes: Floats
    gradient_bytes: Floats
    """fp32 gradient bytes read, one row a lookup."""
    gradient_first_bytes: Floats
    """Those that are read for the first time: a table's bags, or its lookups where there are fewer."""
    gradient_set_bytes2: Floats
    """Sum over tables of gradient bytes read again x those read first."""
    longest_bag: Floats
    """Lookups of the longest single bag; zero where only expected values are known."""

    @classmethod
    def zeros(cls, n: int) -> "Load":
        """No load on ``n`` devices."""
        return cls(**{f.name: zeros(n) for f in fields(cls)})

    def add(self, at: int | list[int] | slice, other: "dict[str, Floats | float]") -> None:
        """Add values to the devices ``at``, in place; the longest bag stays the longer one."""
        for name, value in other.items():
            own = getattr(self, name)
            own[at] = np.maximum(own[at], value) if name == LONGEST else own[at] + value

    def tier(self, tier: Tier) -> TierRows:
        """Rows of one tier."""
        prefix = "uvm_" if tier is Tier.UVM else ""
        return TierRows(**{f.name: getattr(self, prefix + f.name) for f in fields(TierRows)})

    @property
    def all_lookups(self) -> Floats:
        """Lookups of both tiers."""
        return self.lookups + self.uvm_lookups


def segment_load(
    rows: dict[str, Floats | float], columns: int, tier: Tier, precision: Precision, state: int
) -> dict[str, Floats | float]:
    """Load of a segment from its ``lookups``, ``distinct`` rows, ``bags`` (same shapes out as in).

    ``longest_bag``, if given, goes through; ``state`` is bytes of optimiser state a row.
    """
    width = columns * precision.bytes
    prefix = "uvm_" if tier is Tier.UVM else ""
    lookups, distinct = rows["lookups"], rows["distinct"]
    first = np.minimum(rows["bags"], lookups) * columns * VECTOR_BYTES
    gradients = lookups * columns * VECTOR_BYTES
    # Expected distinct rows may exceed the lookups by rounding.
    repeats = np.maximum(lookups - distinct, 0.0)
    load = {
        prefix + "lookups": lookups,
        prefix + "lookup_bytes": lookups * width,
        prefix + "distinct": distinct,
        prefix + "distinct_bytes": distinct * width,
        prefix + "repeat_set_bytes2": repeats * width * distinct * width,
        ("uvm_" if state > ROWWISE_STATE_BYTES else "") * bool(prefix) + "state_bytes": distinct * state,
        "bags": rows["bags"],
        "bag_bytes": rows["bags"] * columns * VECTOR_BYTES,
        "gradient_bytes": gradients,
        "gradient_first_bytes": first,
        "gradient_set_bytes2": (gradients - first) * first,
    }
    return load | ({LONGEST: rows[LONGEST]} if LONGEST in rows else {})


def in_uvm(load: Load) -> Load:
    """The same load with every row read from host memory, as ``segment_load`` counts that tier."""
    values = {f.name: getattr(load, f.name) for f in fields(Load)}
    for name in (f.name for f in fields(TierRows)):
        values[f"uvm_{name}"] = values[f"uvm_{name}"] + values[name]
        values[name] = np.zeros_like(values[name])
    moves = load.state_bytes > ROWWISE_STATE_BYTES * load.distinct
    values["uvm_state_bytes"] = values["uvm_state_bytes"] + np.where(moves, load.state_bytes, 0.0)
    values["state_bytes"] = np.where(moves, 0.0, load.state_bytes)
    return Load(**values)
