"""What batches meet in the caches of a plan: expected under the training profiles, or counted batch by batch.

A cache has a history that no batch knows. The training profile tells how often rows are asked for, and Che's
approximation what a cache of least recent use then holds: the rows that the last T batches asked for, where T is such
that these are as many as it has slots (Che, Tung and Wang, IEEE JSAC 20(7), 2002). D(t) distinct rows are expected in
t batches (``AccessProfile.expected_distinct``), so that of a batch's D(1) rows D(T + 1) - D(T) miss. A cache that does
not fill up has seen twice the batches of the profile: no further is D known (Chao et al., 2014, of extrapolation).

Expected: of the rows of a batch that fall into one set, Poisson many, those beyond its slots find none. Counted: the
cache begins as a long run of the training distribution leaves it, then meets the batches in their order, once. A row
of a batch is there from the begin if it was last asked for within T batches, as a draw by its number says; the other
slots hold rows that no batch asks for, of the ages that the curve D gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ids, Ints, zeros
from shardbench.base.errors import Unsupported
from shardbench.cost.cache import ANY, EMPTY, NEVER, Cache, set_of
from shardbench.cost.lookups import CountedLookups
from shardbench.model.caching import (
    WAYS,
    CachedPart,
    Kernel,
    cached_parts,
    is_cached,
    kernel_of,
    ratio_of,
    slots_of,
)
from shardbench.model.plan import Plan, Segment, sharding_groups
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Bags

AGES = 96
"""Points of the curve of distinct rows by number of batches, evenly spaced by ratio."""
KNOWN = 2.0
"""Samples of the profile that the extrapolation of its distinct rows reaches."""
YOUNGEST = 1e-4
"""The first of these points, in batches."""
RATE_SHARE = 1e-3
"""Share of a batch over which the lookups that miss are taken from the curve of distinct rows."""
SCANNED_RATIO = 8
"""Rows for each lookup up to which a count of every row is cheaper than sorting the lookups."""
SALT = 0x5BD1E995
"""Turns a row into another one, so that what was drawn for it does not depend on its set."""


class CacheCounts(NamedTuple):
    """What one batch meets of a cached segment, on each of the devices that hold a part of it, [parts] each."""

    inserted: Floats
    """Distinct rows that were missed and put in the cache."""
    conflict: Floats
    """Distinct rows that found no slot."""
    conflict_lookups: Floats
    evicted: Floats
    """Rows of this segment that left the cache, and are written back."""


class CacheWork(NamedTuple):
    """What caches do beside the lookups, of all segments of a device, [world] each."""

    lookups: Floats
    """Lookups that ask a cache's directory."""
    filled: Floats
    filled_bytes: Floats
    """Weights of rows that are read into the cache."""
    evicted: Floats
    evicted_bytes: Floats

    @classmethod
    def zeros(cls, world: int) -> "CacheWork":
        """Return the work of devices without a cache."""
        return cls(*(zeros(world) for _ in cls._fields))

    @classmethod
    def of(cls, lookups: Floats, filled: Floats, evicted: Floats, row_bytes: int | Ints) -> "CacheWork":
        """Return the work of lookups and rows, [n] each, of ``row_bytes`` bytes of weights."""
        return cls(lookups, filled, filled * row_bytes, evicted, evicted * row_bytes)


Caches = dict[Segment, CacheCounts]
"""What one batch meets, by cached segment."""


class Part(NamedTuple):
    """A part of a segment in the cache of one device."""

    segment: Segment
    at: int
    """Its place among the parts of its segment."""
    cached: CachedPart
    profile: AccessProfile
    table: int
    batch: float
    """The samples that ask for it."""
    asks: float | None = None
    """Share of the batch in which a row is looked up once, a rank's; None where ids are not made distinct."""

    @property
    def lookups(self) -> float:
        """Return the lookups of one batch."""
        if self.asks is not None:
            return self.distinct(self.asks) / self.asks
        share = self.profile.share(self.segment.row_start, self.segment.row_stop)
        return self.profile.mean_pooling * self.batch * share / self.cached.ways

    def distinct(self, batches: float) -> float:
        """Return the distinct rows that so many batches are expected to ask for."""
        lookups = self.profile.mean_pooling * self.batch * batches
        rows = self.profile.expected_distinct(lookups, self.segment.row_start, self.segment.row_stop)
        return rows / self.cached.ways


@dataclass(frozen=True)
class SteadyCache:
    """A cache of ``slots`` rows after a long run, from the distinct rows that numbers of batches ask each part for."""

    distinct: tuple[Callable[[float], float], ...]
    """The expected distinct rows of so many batches, of each part."""
    lookups: tuple[float, ...]
    """The lookups of one batch, of each part."""
    slots: int
    longest: float
    """The number of batches that the cache has seen."""
    locked: int = 1
    """Batches whose rows stay: 1, or 2 where one is prefetched while another is in work."""
    asks: tuple[float | None, ...] = (None,)
    """What ``Part.asks`` says, of each part or of all."""

    def _each(self, batches: Floats | float) -> Floats:
        at = np.broadcast_to(batches, len(self.distinct)).tolist()
        return np.array([distinct(number) for distinct, number in zip(self.distinct, at)])

    @cached_property
    def _curve(self) -> tuple[Floats, Floats]:
        """Return numbers of batches, and the distinct rows of so many."""
        ages = np.geomspace(min(YOUNGEST, self.longest / 2.0), self.longest, AGES)
        return ages, np.maximum.accumulate(np.array([self._each(age).sum() for age in ages]))

    @cached_property
    def age(self) -> float:
        """Return the number of batches whose rows the cache holds."""
        return float(self.ages_of(np.array([self.slots]))[0])

    def ages_of(self, rows: Floats) -> Floats:
        """Return the numbers of batches that ask for so many distinct rows, at most those that the cache has seen."""
        ages, curve = self._curve
        return np.asarray(np.exp(np.interp(rows, curve, np.log(ages))))

    @cached_property
    def full(self) -> float:
        """Return the share of its slots that hold a row."""
        return float(min(1.0, self._curve[1][-1] / self.slots))

    def batch_counts(self, age: float | None = None) -> Floats:
        """Return what one batch is expected to meet, [parts, inserted / conflict / its lookups / evicted].

        ``age`` spares looking for the cache's own, for whoever made it of as many slots as so many batches fill.
        """
        is_full = self.full == 1.0 if age is None else age < self.longest
        age = self.age if age is None else min(age, self.longest)
        step = np.array([RATE_SHARE if share is None else share for share in self.asks])
        once, twice = self._each(1.0), self._each(2.0)
        lookups = np.array(self.lookups)
        if age >= 1.0:
            until = self._each(age)
            missed, missing = self._each(age + 1.0) - until, (self._each(age + step) - until) / step
        else:  # it holds a share of the rows of the last batch
            held_share = min(1.0, self.slots / max(float(once.sum()), 1e-300))
            missed = once - held_share * (2.0 * once - twice)
            missing = lookups - held_share * (lookups - (self._each(1.0 + step) - once) / step)
        missed = np.clip(missed, 0.0, once)
        missing = np.clip(missing, missed, np.maximum(lookups, missed))
        conflicts = min(self._conflicts(float(once.sum()), float(twice.sum())), float(missed.sum()))
        share = conflicts / max(float(missed.sum()), 1e-300)
        inserted = (1.0 - share) * missed
        return np.stack([inserted, share * missed, share * missing, inserted * is_full], axis=1)

    def _conflicts(self, once: float, twice: float) -> float:
        """Return the rows of a batch that find no slot: Poisson many of those that must stay share a set."""
        sets = self.slots // WAYS
        if self.locked == 1 or once <= 0.0:
            return sets * _beyond(once / sets, WAYS)
        # The rows of the batch in work that have a slot, and those of the next one that are not among them.
        again = max(2.0 * once - twice, 0.0) / once
        low, high = 0.0, once
        for _ in range(60):
            resident = (low + high) / 2.0
            free = once - sets * _beyond((resident + once - resident * again) / sets, WAYS)
            low, high = (resident, high) if resident < free else (low, resident)
        return once - low


def steady_cache(parts: Sequence[Part]) -> SteadyCache:
    """Return the cache that these parts share, after a long run under the training profiles."""
    return SteadyCache(
        distinct=tuple(part.distinct for part in parts),
        lookups=tuple(part.lookups for part in parts),
        slots=slots_of(sum(part.cached.rows * ratio_of(part.segment) for part in parts)),
        asks=tuple(part.asks for part in parts),
        longest=KNOWN * max(part.profile.samples / part.batch for part in parts),
    )


def _beyond(mean: float, limit: int) -> float:
    """Return the expected excess of a Poisson number over ``limit``."""
    if mean <= 0.0:
        return 0.0
    # E[(X - n)+] = mean - n + sum over k < n of (n - k) P(X = k)
    logs = [k * log(mean) - mean - lgamma(k + 1.0) for k in range(limit)]
    return max(0.0, mean - limit + sum((limit - k) * exp(term) for k, term in enumerate(logs)))


def shared_caches(plan: Plan, problem: Problem) -> list[list[Part]]:
    """Return the parts that share each cache of a plan; raises Unsupported where there can be none."""
    numbers = {table.name: i for i, table in enumerate(problem.tables)}
    parts_by_cache: dict[tuple[int, Kernel], list[Part]] = {}
    groups = sharding_groups(plan.groups, problem.topology)
    for segments in plan.by_table().values():
        for segment in filter(is_cached, segments):
            i = numbers[segment.table]
            kernel = kernel_of(segment, problem.tables[i], problem.topology)
            for at, cached_part in enumerate(cached_parts(segment, groups)):
                copies = 1 if cached_part.group is None else len(groups)
                asks = copies / problem.world_size if problem.tables[i].distinct else None
                part = Part(segment, at, cached_part, problem.profiles[i], i, problem.batch_size / copies, asks)
                parts_by_cache.setdefault((cached_part.rank, kernel), []).append(part)
    if parts_by_cache and problem.machine.device == "cpu":
        raise Unsupported("a CPU has no HBM to cache rows in; use the tier 'uvm' or devices with HBM")
    if parts_by_cache and plan.schedule is not None:
        raise Unsupported("caches in HBM are not counted under a batch schedule")
    return list(parts_by_cache.values())


def _nothing(plan: Plan, problem: Problem) -> Caches:
    groups = sharding_groups(plan.groups, problem.topology)
    return {
        s: CacheCounts(*(zeros(len(cached_parts(s, groups))) for _ in CacheCounts._fields))
        for s in plan.segments
        if is_cached(s)
    }


def expected_caches(plan: Plan, problem: Problem) -> Caches:
    """Return what one batch is expected to meet in the caches of a plan, by segment."""
    caches = _nothing(plan, problem)
    # Devices that hold equal parts of the same segments expect the same.
    counts_by_parts: dict[tuple[tuple[Segment, int], ...], Floats] = {}
    for parts in shared_caches(plan, problem):
        alike = tuple((part.segment, part.cached.rows) for part in parts)
        if alike not in counts_by_parts:
            counts_by_parts[alike] = steady_cache(parts).batch_counts()
        for part, numbers in zip(parts, counts_by_parts[alike]):
            for field, number in zip(caches[part.segment], numbers):
                field[part.at] = number
    return caches


def counted_caches(plan: Plan, problem: Problem, bags: Callable[[int, int], Bags], batches: int) -> list[Caches]:
    """Return what each of the batches meets, one after another; ``bags(n, i)`` are batch n's lookups of table i."""
    caches = [_nothing(plan, problem) for _ in range(batches)]
    rows = _PartRows(problem, sharding_groups(plan.groups, problem.topology), bags)
    for parts in shared_caches(plan, problem):
        for n, numbers in enumerate(_run(parts, [[rows.of(n, part) for part in parts] for n in range(batches)])):
            for part, row in zip(parts, numbers):
                for field, number in zip(caches[n][part.segment], row):
                    field[part.at] = number
    return caches


class _PartRows:
    """The distinct rows of each batch that a device's part of a segment is asked for, with their lookups."""

    def __init__(self, problem: Problem, groups: Ints, bags: Callable[[int, int], Bags]) -> None:
        self.problem, self.groups, self.bags = problem, groups, bags
        self._rows: dict[tuple[int, int, int | None], tuple[Ids, Ints]] = {}

    def of(self, batch: int, part: Part) -> tuple[Ids, Ints]:
        """Return rows of the part, as it numbers them, ascending, and how often each is asked for."""
        key = (batch, part.table, part.cached.group)
        if key not in self._rows:
            self._rows[key] = self._distinct(*key)
        rows, counts = self._rows[key]
        low, high = np.searchsorted(rows, [part.segment.row_start, part.segment.row_stop])
        local, counts = rows[low:high] - part.segment.row_start, counts[low:high]
        own = local % part.cached.ways == part.cached.way
        return local[own] // part.cached.ways, counts[own]

    def _distinct(self, batch: int, table: int, group: int | None) -> tuple[Ids, Ints]:
        of = self.problem.tables[table]
        lookups = CountedLookups(self.bags(batch, table), of.rows, self.groups.size, of.name, distinct=of.distinct)
        values = lookups.values if group is None else lookups.of_ranks(self.groups[group])
        if of.rows <= SCANNED_RATIO * len(values):  # counted without being sorted
            often = np.bincount(values)
            rows = np.flatnonzero(often)
            return rows, often[rows]
        rows, counts = np.unique(values, return_counts=True)
        return rows.astype(np.int64), counts


def _run(parts: Sequence[Part], requests: Sequence[Sequence[tuple[Ids, Ints]]]) -> list[Floats]:
    """Return what each batch meets in the cache that these parts share, [parts, numbers] each."""
    steady = steady_cache(parts)
    starts = np.concatenate([[0], np.cumsum([part.cached.rows for part in parts])])
    batches = [np.concatenate([rows + start for (rows, _), start in zip(batch, starts)]) for batch in requests]
    sets = steady.slots // WAYS
    touched = np.unique(np.concatenate(batches))
    simulated = Cache(sets, used=np.unique(set_of(touched, sets)))
    _warm(simulated, steady, parts, touched, starts)
    expected = np.array([part.distinct(steady.age) for part in parts])
    counts_by_batch = []
    for rows, batch in zip(batches, requests):
        counts = np.concatenate([counts for _, counts in batch])
        step = simulated.step(rows)
        of = np.searchsorted(starts, rows, side="right") - 1

        def per_part(values: Ints, weights: Ints | None = None) -> Floats:
            return np.bincount(values, weights, minlength=len(parts)).astype(np.float64)

        touched_rows = step.evicted[step.evicted >= 0]
        evicted = per_part(np.searchsorted(starts, touched_rows, side="right") - 1)
        # Rows that no batch asks for belong to the parts as what the cache holds does.
        evicted += (len(step.evicted) - len(touched_rows)) * expected / max(float(expected.sum()), 1e-300)
        conflict = step.conflict
        numbers = (per_part(of[step.inserted]), per_part(of[conflict]), per_part(of[conflict], counts[conflict]))
        counts_by_batch.append(np.stack([*numbers, evicted], axis=1))
    return counts_by_batch


def _warm(simulated: Cache, steady: SteadyCache, parts: Sequence[Part], touched: Ids, starts: Ints) -> None:
    """Fill the cache as a long run of the training distribution leaves it."""
    age = np.concatenate(
        [
            _draw_ages(part, touched[low:high], first)
            for part, first, low, high in zip(
                parts, starts, np.searchsorted(touched, starts[:-1]), np.searchsorted(touched, starts[1:])
            )
        ]
    )
    rows = touched[age <= steady.age]
    age = age[age <= steady.age]
    order = np.lexsort((age, simulated.index(rows)))
    rows, age = rows[order], age[order]
    at = simulated.index(rows)
    turn = np.arange(len(at)) - np.searchsorted(at, at)
    fits = turn < WAYS
    simulated.rows[at[fits], turn[fits]] = rows[fits]
    simulated.stamps[at[fits], turn[fits]] = -np.ceil(age[fits]).astype(np.int64)
    # The other slots, from the last one on, hold others, as old as a share of what the cache holds is.
    ages = steady.ages_of(steady.slots * steady.full * (np.arange(WAYS) + 0.5) / WAYS)
    others = (simulated.rows == EMPTY) & (np.arange(WAYS) < round(WAYS * steady.full))
    simulated.rows[others] = ANY
    simulated.stamps[...] = np.where(others, -np.ceil(ages).astype(np.int64), simulated.stamps)
    simulated.stamps[simulated.rows == EMPTY] = NEVER


def _draw_ages(part: Part, rows: Ids, first: int) -> Floats:
    """Return how many batches ago each row was last asked for, as a draw by its number says; infinite if never.

    A row seen c times in N lookups is met with 1 - (1 - n/N)^c in n of them, as the profile expects it; a row that was
    never seen, and now is asked for, with 1 - exp(-rate x n) in n more.
    """
    draw = set_of(rows ^ SALT, 1 << 40) / float(1 << 40)
    frequency_rank = (rows - first) * part.cached.ways + part.cached.way + part.segment.row_start
    counts = part.profile.counts_of(frequency_rank)
    lookups = part.profile.mean_pooling * part.batch
    with np.errstate(divide="ignore", invalid="ignore"):
        age = part.profile.lookups / max(lookups, 1e-300) * -np.expm1(np.log1p(-draw) / counts)
        unseen = (part.profile.lookups - np.log1p(-draw) / np.float64(part.profile.unseen_rate)) / max(lookups, 1e-300)
    return np.where(counts > 0, age, unseen if part.profile.unseen_rate else np.inf)
