"""The load of a set of devices: what their embedding kernels do in one iteration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.caching import ROWWISE_STATE_BYTES
from shardbench.model.plan import Tier
from shardbench.model.table import Precision

STEP_COLUMNS = 170.0
"""Columns that a warp reads in the time that it waits for one lookup (measured on an H100 and an H200)."""
VECTOR_BYTES = 4
"""Kernels write vectors and read gradients as fp32, whatever the weights are; ``Problem.exchange`` is what is sent."""


class LoadField:
    """One field of a load: a view of one number of all of its devices, [...]."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __get__(self, load: "TierRows", owner: type) -> Floats:
        column: Floats = load.values[..., self.at]
        return column


@dataclass(frozen=True, eq=False)
class TierRows:
    """The lookups and rows of one tier, [...] each; ``*_bytes`` are weight bytes."""

    values: Floats
    """float64 [..., fields], in the order below, which tasks' keys depend on."""

    lookups = LoadField(0)
    lookup_bytes = LoadField(1)
    distinct = LoadField(2)
    distinct_bytes = LoadField(3)
    repeat_set_bytes2 = LoadField(4)
    """Sum over tables of repeated bytes x distinct bytes: over the repeated bytes, the mean working set of a repeat."""
    state_bytes = LoadField(5)
    """Optimiser state of distinct rows that is in this tier; small state of rows in UVM is in HBM."""


_TIER = 6
_WIDTH = 2 * _TIER + 9
PAGE_BYTES = 4096
"""Memory that one entry of a CPU's translation cache covers."""


class Load(TierRows):
    """What embedding kernels of devices do in one iteration, [...] each; the tier's own fields are HBM's.

    On a host they are its memory's. ``bags`` are pooled output vectors of ``bag_bytes`` (fp32) in
    all. Every field but ``chain`` adds up over the tables of a device. Fields are views: what
    is written to one is written to the load.
    """

    bags = LoadField(2 * _TIER)
    bag_bytes = LoadField(2 * _TIER + 1)
    gradient_bytes = LoadField(2 * _TIER + 2)
    """fp32 gradient bytes read, one row a lookup."""
    gradient_first_bytes = LoadField(2 * _TIER + 3)
    """Gradient bytes that are read for the first time: a table's bags, or its lookups where there are fewer."""
    gradient_set_bytes2 = LoadField(2 * _TIER + 4)
    """Sum over tables of gradient bytes read again x gradient bytes read first."""
    tables = LoadField(2 * _TIER + 5)
    """Tables, or parts of tables, that a kernel goes through: those with any bag, once a feature."""
    pages = LoadField(2 * _TIER + 6)
    """Memory pages that the distinct rows lie on, were they spread evenly over their table's part."""
    sequence_rows = LoadField(2 * _TIER + 7)
    """Distinct rows of unpooled tables."""
    chain = LoadField(2 * _TIER + 8)
    """Lookups of the longest single bag, which one warp reads one after another, and more for wide rows: times
    (1 + columns / ``STEP_COLUMNS``); zero where only expected values are known."""

    @classmethod
    def zeros(cls, *shape: int) -> "Load":
        """Return no load on devices of this shape."""
        return cls(np.zeros((*shape, _WIDTH)))

    @classmethod
    def joined(cls, loads: "Sequence[Load]") -> "Load":
        """Join the devices of all loads, one after another."""
        return cls(np.concatenate([load.values for load in loads]))

    def __getitem__(self, devices: Ints) -> "Load":
        """Return the load of some of the devices."""
        return Load(self.values[devices])

    def add_at(self, devices: int | list[int] | Ints | slice, load: "Load") -> None:
        """Add ``load`` to the devices, in place: one for all, or one for each, of which some may be the same."""
        if isinstance(devices, slice | int):  # none twice: no need of the slower unbuffered sum
            self.values[devices, :-1] += load.values[..., :-1]
            self.chain[devices] = np.maximum(self.chain[devices], load.chain)
            return
        np.add.at(self.values[..., :-1], devices, load.values[..., :-1])
        np.maximum.at(self.chain, devices, load.chain)

    @property
    def uvm(self) -> TierRows:
        """The lookups and rows that the devices read from host memory, as a view."""
        return TierRows(self.values[..., _TIER : 2 * _TIER])

    @property
    def all_lookups(self) -> Floats:
        """The lookups of both tiers, [...]."""
        return self.lookups + self.uvm.lookups


def segment_load(
    *,
    lookups: Floats | float,
    distinct: Floats | float,
    bags: Floats | float,
    longest_bag: Floats | float = 0.0,
    rows: Floats | float,
    columns: Floats | int,
    unpooled: bool = False,
    features: int = 1,
    tier: Tier,
    precision: Precision,
    state: int,
    missed_lookups: Floats | float = 0.0,
    missed: Floats | float = 0.0,
) -> Load:
    """Return the load of a segment on devices, from their ``lookups``, ``distinct`` rows and so on, [...] each.

    ``rows`` are those that each device holds; ``state`` is bytes of optimiser state a row. Behind a cache all but the
    ``missed`` distinct rows, with their ``missed_lookups``, are read and updated in HBM; how they came there is no part
    of the load.
    """
    load = Load.zeros(*np.shape(lookups))
    width, vector = columns * precision.bytes, columns * VECTOR_BYTES
    if tier is Tier.CACHED:
        _read(load, lookups - missed_lookups, distinct - missed, width)
        _read(load.uvm, missed_lookups, missed, width)
    else:
        _read(load.uvm if tier is Tier.UVM else load, lookups, distinct, width)
    away = tier is not Tier.HBM and state > ROWWISE_STATE_BYTES
    (load.uvm if away else load).state_bytes[...] = distinct * state
    load.bags[...] = bags
    load.bag_bytes[...] = bags * vector
    gradients, first = lookups * vector, np.minimum(bags, lookups) * vector
    load.gradient_bytes[...] = gradients
    load.gradient_first_bytes[...] = first
    load.gradient_set_bytes2[...] = (gradients - first) * first
    load.tables[...] = features * (np.asarray(bags) > 0)
    load.pages[...] = _pages(rows * width, distinct)
    load.sequence_rows[...] = distinct if unpooled else 0.0
    load.chain[...] = np.asarray(longest_bag) * (1.0 + columns / STEP_COLUMNS)
    return load


def longest_lookups(chain: Floats, columns: Floats | int) -> Floats:
    """Return the lookups of the longest bag of loads with this ``chain``, of tables this wide, [...]."""
    return np.asarray(chain / (1.0 + columns / STEP_COLUMNS))


def _read(rows: TierRows, lookups: Floats | float, distinct: Floats | float, width: Floats | int) -> None:
    """Fill in the lookups of a tier, whose rows are ``width`` bytes wide."""
    rows.lookups[...] = lookups
    rows.lookup_bytes[...] = lookups * width
    rows.distinct[...] = distinct
    rows.distinct_bytes[...] = distinct * width
    # Expected distinct rows may exceed the lookups by rounding.
    rows.repeat_set_bytes2[...] = np.maximum(lookups - distinct, 0.0) * width * distinct * width


def _pages(part_bytes: Floats | float, distinct: Floats | float) -> Floats:
    """Return the expected pages of ``part_bytes`` bytes that so many rows touch, each on a random page."""
    pages = np.maximum(np.asarray(part_bytes) / PAGE_BYTES, 1.0)
    return np.asarray(-pages * np.expm1(-distinct / pages))


def in_uvm(load: Load) -> Load:
    """Return the same load with every row read from host memory, as ``segment_load`` counts that tier."""
    moved = Load(load.values.copy())
    moves = np.where(load.state_bytes > ROWWISE_STATE_BYTES * load.distinct, load.state_bytes, 0.0)
    moved.uvm.values[..., : _TIER - 1] += load.values[..., : _TIER - 1]
    moved.values[..., : _TIER - 1] = 0.0
    moved.uvm.state_bytes[...] += moves
    moved.state_bytes[...] -= moves
    return moved
