"""Hot and cold samples: classifying them by their lookups, and packing pure mini-batches.

A sample is hot where every one of its lookups asks for a hot row; a sample without lookups is
hot. All of it is vectorised over samples and lookups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardbench.base.arrays import Bools, Ints
from shardbench.base.errors import BadInput
from shardbench.model.plan import PhaseKind, Plan, Replicated, Segment
from shardbench.model.table import Table
from shardbench.workloads.trace import Bags, check_rows, gather_bags

HotRows = Callable[[Ints], Bools]
"""A function of row ids int64 [n] that says of each whether it is hot, bool [n]; ids must be rows of the table."""


@dataclass(frozen=True, kw_only=True)
class HotPrefix:
    """A choice of hot rows: the first ``hot`` of a table's ``rows`` rows, in frequency order.

    Raises BadInput for an id beyond the table.
    """

    hot: int
    rows: int

    def __call__(self, ids: Ints) -> Bools:
        """Return which of ``ids`` int64 [n] are hot, bool [n]."""
        check_rows(ids, self.rows, "hot rows")
        return np.asarray(ids < self.hot)


@dataclass(frozen=True, kw_only=True)
class HotReplicas:
    """A choice of hot rows: those that a plan's ``segments`` of the table replicate in all their columns."""

    segments: tuple[Segment, ...]

    def __call__(self, ids: Ints) -> Bools:
        """Return which of ``ids`` int64 [n] are hot, bool [n]."""
        hot = np.ones(len(ids), dtype=np.bool_)
        for segment in self.segments:
            if not isinstance(segment.placement, Replicated):
                hot &= (ids < segment.row_start) | (ids >= segment.row_stop)
        return hot


def clear_cold(hot: Bools, bags: Bags, rows: HotRows) -> None:
    """Set ``hot`` bool [samples] to False, in place, where a bag of this table asks for a cold row.

    Raises BadInput for ids that are no rows.
    """
    if len(hot) != bags.batch_size:
        raise BadInput(f"{bags.batch_size} bags for {len(hot)} samples")
    of_lookup = rows(bags.values)
    if len(of_lookup) == bags.batch_size and bool((bags.sample_lengths == 1).all()):
        hot &= of_lookup
        return
    cold = np.flatnonzero(~of_lookup)
    # The bag of a lookup is the last one that begins at or before it: empty bags before it begin there, too.
    hot[np.searchsorted(bags.offsets[:: bags.features], cold, side="right") - 1] = False


def hot_samples(bags: Callable[[int], Bags], rows: Sequence[HotRows], samples: int) -> Bools:
    """Return which samples are hot, bool [samples]; ``bags(i)`` are the bags of table i, ``rows[i]`` its hot rows."""
    hot = np.ones(samples, dtype=np.bool_)
    for i, of_table in enumerate(rows):
        clear_cold(hot, bags(i), of_table)
    return hot


def hot_under(plan: Plan, tables: Sequence[Table], bags: Callable[[int], Bags], samples: int) -> Bools:
    """Return which samples are hot under a plan's schedule, bool [samples]; ``bags(i)`` are those of ``tables[i]``.

    The rows that the plan replicates decide it (none is hot where it schedules no hot phase), not the
    schedule's numbers of mini-batches, which the strategy expected.
    """
    if plan.schedule is None or not plan.schedule.has_hot:
        return np.zeros(samples, dtype=np.bool_)
    by_table = plan.by_table()
    return hot_samples(bags, [HotReplicas(segments=tuple(by_table[table.name])) for table in tables], samples)


def take(bags: Bags, samples: Ints) -> Bags:
    """Return the bags of ``samples`` int64 [n], in that order; a sample may come more than once."""
    at = samples if bags.features == 1 else (samples[:, None] * bags.features + np.arange(bags.features)).ravel()
    begins = bags.offsets[at]
    return replace(gather_bags(bags.values, begins, bags.offsets[at + 1] - begins), features=bags.features)


def join(parts: Sequence[Bags]) -> Bags:
    """Return the bags of all parts, one after the other; raises BadInput for no part."""
    if not parts:
        raise BadInput("no bags to join")
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.values) for part in parts[:-1])])
    offsets = [part.offsets[1:] + start for part, start in zip(parts, starts)]
    return Bags(
        values=np.concatenate([part.values for part in parts]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
        features=parts[0].features,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PureBatch:
    """A mini-batch of one kind: numbers of its samples int64 [batch], of which the last repeat others.

    ``fresh`` of them are in no batch before; the rest fill the last batch of its kind up, beginning
    again with the kind's first samples.
    """

    kind: PhaseKind
    samples: Ints
    fresh: int


def pack(hot: Bools, batch_size: int) -> list[PureBatch]:
    """Pack every sample once into pure mini-batches of ``batch_size``, cold ones first, each kind in sample order.

    The last batch of a kind is filled up (see PureBatch), so that all have the same size; a mean
    over samples weighs each batch by its ``fresh``.
    """
    if batch_size < 1 or not len(hot):
        raise BadInput(f"need samples and a batch size, got {len(hot)} samples in batches of {batch_size}")
    batches = []
    for kind, of_kind in ((PhaseKind.COLD, ~hot), (PhaseKind.HOT, hot)):
        samples = np.flatnonzero(of_kind)
        for start in range(0, len(samples), batch_size):
            fresh = min(batch_size, len(samples) - start)
            at = np.arange(start, start + batch_size) % len(samples)
            batches.append(PureBatch(kind=kind, samples=samples[at], fresh=fresh))
    return batches
