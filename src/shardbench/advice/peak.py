"""What devices' memory leaves: the room for tables beside a step, and the batch that a plan has room for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from shardbench.advice.constrained import column_ranges
from shardbench.base.arrays import Floats
from shardbench.base.memory import gib
from shardbench.cost.memory.fullest import Peak, peaks_of, predicted_peak
from shardbench.cost.memory.peak import Term
from shardbench.cost.traffic import expect
from shardbench.model.constraints import TYPES, Constraints, types_of
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Segment, whole_table
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.model.validate import COLUMN_MULTIPLE, has_room
from shardbench.trials.evaluate import Answer

MOST_TIMES = 8
"""Times the batch up to which it is said how much of it is left."""
GRAIN = 32
"""The batch that fails is told to this part of the problem's."""
GUESSES = 4
"""Batches that are tried where a straight line has the one that fails, before halves are."""
SPREAD = 0.4
"""What the fullest device of a plan holds beside tables beyond an even plan's, over that.

Plans of ``joint`` for 500 and 2,000 tables on 16 devices: 0.6 and 0.26, where a step takes little and much; for 2,000
of twice the HBM 0.33 to 0.36. Too much costs little there (0.15 more: 0.1 % of the step), too
little the plan: one whose peak does not fit comes behind all that do, of which none was below twice its step.
"""
UNEVEN = 0.1
"""The share of a device's peak that a table takes beyond its mean before it is named as the cause."""


@dataclass(frozen=True, kw_only=True)
class BatchLeft:
    """The batch at which a device is predicted to run out of memory, and what would help."""

    batch_size: int
    """Samples on all devices, about."""
    device: int
    table: str = ""
    """The table of which the device has most beyond the mean device; empty where all are about as full."""
    beyond_bytes: float = 0.0
    """What the device holds of it, weights and all else, beyond the mean device."""
    lookups_ratio: float = 0.0
    """Lookups of it that the device gets, over the mean device's."""
    instead: str = ""
    """The sharding type of the table with which the fullest device holds least at that batch; empty without any."""
    instead_bytes: float = 0.0
    """What it holds then."""

    @property
    def words(self) -> str:
        """Say it in one line."""
        said = f"device {self.device} fails at about {self.batch_size:,}"
        if self.table:
            said += (
                f": it holds {gib(self.beyond_bytes)} GiB of {self.table} beyond the mean, and gets "
                f"{self.lookups_ratio:.2g} times the mean of its lookups"
            )
        return f"{said}; {self.instead} would need {gib(self.instead_bytes)} GiB" if self.instead else said


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of a problem's devices, and what a step takes of it."""

    problem: Problem
    dense: DenseShape | None
    """The dense model; nothing is counted of one that nobody stated (None)."""
    there_bytes: Floats | float | None
    """What devices have, all alike or by device, [world]; None where nobody stated it, so that nothing is too much."""
    limits: Constraints
    """What is kept whatever a step takes."""
    peaks: dict[str, Peak | None] = field(default_factory=dict)
    """Peaks of the plans that were looked at, by their hashes."""

    def peak(self, answer: Answer[Any]) -> Peak | None:
        """Return what the fullest device of a plan holds; None for plans whose peaks are not predicted."""
        key = answer.planned.plan_hash
        if key not in self.peaks:
            self.peaks[key] = predicted_peak(answer.plan, self.problem, self.dense, self.there_bytes)
        return self.peaks[key]

    def fails(self, answer: Answer[Any]) -> bool:
        """Tell whether a device is predicted to run out of memory."""
        peak = self.peak(answer)
        return peak is not None and peak.fits is False

    def room(self, moves: Iterable[frozenset[Move]]) -> Constraints:
        """Return the constraints with so much more reserved that what a step holds beside tables has room.

        That is the mean over devices of a plan that shares lookups out well, and SPREAD of it. Where no plan of any of
        these ``moves`` has room then, the constraints stay, and the peaks of plans say that they do not fit.
        """
        problem, limits = self.problem, self.limits
        if self.there_bytes is None:
            return limits
        beside = peaks_of(_shared_out(problem), problem, self.dense).without(Term.TABLES)
        room_bytes, spread_bytes = (
            np.array(limits.device_bytes(problem.topology)),
            beside.without(Term.CONTEXT).peak.mean(),
        )
        lack_bytes = float(np.max(room_bytes - (self.there_bytes - beside.peak.mean())))
        # Half of it where all of it leaves tables nothing.
        more_bytes = int(lack_bytes + SPREAD * spread_bytes)
        if more_bytes >= room_bytes.min():
            more_bytes = int(lack_bytes + SPREAD / 2.0 * spread_bytes)
        if not 0 < more_bytes < room_bytes.min():
            return limits
        less = replace(limits, reserved_bytes=limits.reserved_bytes + more_bytes)
        return less if any(has_room(less.applied(problem), own) for own in moves) else limits

    def batch_left(self, answer: Answer[Any]) -> BatchLeft | None:
        """Return the batch that a plan fails at; None where that is far, or nothing is too much."""
        world, size, there_bytes, plan = self.problem.world_size, self.problem.batch_size, self.there_bytes, answer.plan
        if there_bytes is None or self.peak(answer) is None:
            return None

        @cache
        def peaks_at(batch_size: int) -> Floats:
            return peaks_of(plan, replace(self.problem, batch_size=batch_size), self.dense).peak

        sizes = [*range(world, MOST_TIMES * size, max(1, size // world // GRAIN) * world), MOST_TIMES * size]
        first = first_above(sizes, lambda batch_size: float((peaks_at(batch_size) - there_bytes).max()))
        if first is None:
            return None
        failing, peaks = replace(self.problem, batch_size=first), peaks_at(first)
        left = BatchLeft(batch_size=failing.batch_size, device=int((peaks - there_bytes).argmax()))
        return self._with_cause(left, plan, failing, peaks)

    def _with_cause(self, left: BatchLeft, plan: Plan, failing: Problem, peaks: Floats) -> BatchLeft:
        """Add which table is the cause and what would help; ``peaks`` of devices at the failing batch, [world]."""
        table, beyond_bytes, ratio = _most_uneven(plan, failing, left.device)
        if table is None or beyond_bytes < UNEVEN * peaks.max():
            return left
        left = replace(left, table=table.name, beyond_bytes=beyond_bytes, lookups_ratio=ratio)
        others = tuple(segment for segment in plan.segments if segment.table != table.name)
        types = types_of(self.limits.sharding_types.get(table.name, TYPES), table)
        needs = {
            kind: float(peaks_of(replace(plan, segments=(*others, *segments)), failing, self.dense).peak.max())
            for kind, segments in _other_forms(table, np.argsort(peaks).tolist())
            if kind in types
        }
        instead = min(needs, key=lambda kind: needs[kind], default="")
        if not instead or needs[instead] >= peaks.max():
            return left
        return replace(left, instead=instead, instead_bytes=needs[instead])


def _shared_out(problem: Problem) -> Plan:
    """Return a plan of pooled tables in turn, and of others by rows: each lookup of these gives a vector to send."""
    everyone = tuple(range(problem.world_size))
    segments = []
    for i, table in enumerate(problem.tables):
        is_dealt = table.pooling is Pooling.NONE and table.rows >= len(everyone)
        place = RowWise(ranks=everyone) if is_dealt else OnRank(rank=i % len(everyone))
        segments.append(whole_table(table, place))
    return Plan(world_size=len(everyone), segments=tuple(segments))


def first_above(sizes: Sequence[int], height: Callable[[int], float]) -> int | None:
    """Return the first of ascending sizes at which ``height``, which grows with them, is above zero; None without any.

    It is sought where a line between those that are known crosses zero, as what a step holds grows about evenly with
    its batch, and after ``GUESSES`` in the middle.
    """
    low, high, known = 0, len(sizes) - 1, 0
    if height(sizes[high]) <= 0.0:
        return None
    if height(sizes[low]) > 0.0:
        return sizes[low]
    while high - low > 1:
        below, above = height(sizes[low]), height(sizes[high])
        share = -below / (above - below) if known < GUESSES else 0.5
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        low, high = (low, middle) if height(sizes[middle]) > 0.0 else (middle, high)
        known += 1
    return sizes[high]


def _most_uneven(plan: Plan, problem: Problem, device: int) -> tuple[Table | None, float, float]:
    """Return the table of which a device has most beyond the mean device: bytes beyond it, and lookups over it."""
    by_table = plan.by_table()
    uneven: tuple[Table | None, float, float] = (None, 0.0, 1.0)
    for table, profile in zip(problem.tables, problem.profiles):
        places = [segment.placement for segment in by_table[table.name]]
        # What is the same on all devices, or on others alone, takes no more than its mean.
        if all(isinstance(place, Replicated) or getattr(place, "rank", device) != device for place in places):
            continue
        alone = replace(problem, tables=(table,), profiles=(profile,), inputs=None)
        part = replace(plan, segments=tuple(by_table[table.name]))
        held = peaks_of(part, alone, None).peak
        beyond_bytes = float(held[device] - held.mean())
        if beyond_bytes > uneven[1]:
            lookups = expect(part, alone).load.all_lookups
            uneven = (table, beyond_bytes, float(lookups[device] / max(lookups.mean(), 1.0)))
    return uneven


def _other_forms(table: Table, emptiest: list[int]) -> Iterator[tuple[str, list[Segment]]]:
    """Yield the table over all devices by rows, and by columns over as many as it can, the emptiest first."""
    if table.rows >= len(emptiest) > 1:
        yield "row_wise", [whole_table(table, RowWise(ranks=tuple(range(len(emptiest)))))]
    shards = max((n for n in range(2, len(emptiest) + 1) if table.dim % (n * COLUMN_MULTIPLE) == 0), default=0)
    if shards:
        yield "column_wise", column_ranges(table, emptiest[:shards])
