"""Counts a plan's traffic exactly, against the lookups of a batch, per rank, tier and collective.

The same accounting runs on a batch (exact) and on a training profile (expected values), so
that what a strategy plans with and what it is judged on differ only in the data.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.accounting import Account, Sources
from shardbench.cost.caching import Caches, CacheWork, expected_caches
from shardbench.cost.collectives import Calls, Collective, CollectiveName
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups, ExpectedLookups, TableLookups
from shardbench.model.caching import is_cached
from shardbench.model.plan import DenseHome, PhaseKind, Plan, Replicated, Segment, cold_segments, hot_segments
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape
from shardbench.workloads.trace import Bags


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """Copies of hot rows where a batch schedule changes phase, mean bytes per iteration."""

    to_device_bytes: float = 0.0
    """Bytes from the host to all devices that hold the rows, before a hot phase."""
    to_host_bytes: float = 0.0
    """Bytes from one device to the host, after a hot phase."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One iteration: loads of devices [world] and hosts [nodes], every collective, copies between host and device."""

    sources: Sources
    modules: float
    """Sharding types of modules, each of which every rank calls."""

    load: Load
    host: Load
    collectives: dict[CollectiveName, Collective]
    replicas: Collective
    """The part of the rows' all-reduce that may go on beside the backward pass."""
    converted_bytes: Floats
    """Bytes that ranks copy to convert vectors and gradients for exchanges and back, forward, backward, [2, world]."""
    host_to_device_bytes: Floats
    """Vectors that hosts looked up, on their way to a device of the node, [nodes]; gradients return alike."""
    history_columns: Floats
    """Lookups of unpooled tables times their widths, by the rank whose samples ask, [world]."""
    synchronisation: Synchronisation = Synchronisation()
    dense: DenseHome = DenseHome.DEVICES
    caching: CacheWork | None = None
    """What caches in HBM do beside the lookups; None without any."""


def count(
    plan: Plan,
    problem: Problem,
    bags: Callable[[int], Bags | CountedLookups],
    dense: DenseShape,
    phase: PhaseKind | None = None,
    *,
    caches: Caches | None = None,
) -> Traffic:
    """Count the exact traffic of one iteration; ``bags(i)`` gives the lookups of problem.tables[i].

    Whoever counts several plans gives ``counted_lookups`` of the bags, so that what plans share is counted once.

    ``caches`` is what this batch meets in the plan's caches (``caching.counted_caches``), which have a history:
    BadInput where it is wanting.
    ``phase`` is the batch's under a schedule: a hot batch runs on replicated rows alone, without
    any exchange of lookups (BadInput where it asks for another row); a cold batch looks the
    replicated rows up in their master copy on a host.
    """
    return traffic_of(plan, problem, lambda i: counted_lookups(bags(i), problem, i), dense, phase=phase, caches=caches)


def counted_lookups(bags: Bags | CountedLookups, problem: Problem, i: int) -> CountedLookups:
    """Return the lookups of table i in one batch, as they are counted; raises BadInput where one asks for no row.

    Those that are counted already are given back.
    """
    if isinstance(bags, CountedLookups):
        return bags
    table = problem.tables[i]
    return CountedLookups(bags, table.rows, problem.world_size, f"table {table.name}", distinct=table.distinct)


def expect(plan: Plan, problem: Problem, dense: DenseShape | None = None) -> Traffic:
    """Return the expected traffic under the training profiles, which is what a strategy may know."""
    return traffic_of(plan, problem, partial(expected_lookups, problem), dense, caches=expected_caches(plan, problem))


def expected_lookups(problem: Problem, i: int) -> ExpectedLookups:
    """Return the lookups of table i that its training profile lets expect in one batch."""
    distinct = problem.tables[i].distinct
    return ExpectedLookups(problem.profiles[i], problem.batch_size, problem.world_size, distinct=distinct)


def traffic_of(
    plan: Plan,
    problem: Problem,
    lookups: Callable[[int], TableLookups],
    dense: DenseShape | None,
    *,
    phase: PhaseKind | None = None,
    caches: Caches | None = None,
) -> Traffic:
    """Return the traffic of one iteration from what is known of each table's lookups, ``lookups(i)`` of table i.

    ``dense`` None leaves the dense weights' all-reduce out; ``phase`` and ``caches`` as in ``count``.
    """
    if problem.batch_size % problem.world_size:
        raise BadInput(f"batch size {problem.batch_size} is not a multiple of {problem.world_size} ranks")
    if plan.dense is DenseHome.HOSTS and problem.topology.nodes > 1:
        raise Unsupported("a dense model on hosts is counted on one node only")
    cached = [segment.table for segment in plan.segments if is_cached(segment)]
    if cached and not caches:
        raise BadInput(f"table '{cached[0]}' has a cache, whose history is counted first: give what the batch meets")
    account = Account(problem, gathers_rows=plan.schedule is not None, groups=plan.groups, caches=caches)
    segments = plan.by_table()
    for i, table in enumerate(problem.tables):
        source, table_segments = lookups(i), segments[table.name]
        if phase is PhaseKind.HOT:
            table_segments = _hot(table_segments, source)
        elif phase is PhaseKind.COLD:
            table_segments = cold_segments(table_segments)
        account.add(table, table_segments, source)
    weights = dense.parameters(problem.tables) if dense is not None else 0
    collectives, copied, sources = account.collectives(weights), account.host.bag_bytes, account.sources
    replicas, converted = account.replicas(), account.converted()
    if plan.dense is DenseHome.HOSTS:
        collectives = {name: Collective.zeros(problem.world_size) for name in collectives}
        copied, sources = np.zeros_like(copied), Sources.zeros(problem.world_size)
        replicas, converted = Collective.zeros(problem.world_size), np.zeros_like(converted)
    return Traffic(
        sources=sources,
        modules=account.modules,
        load=account.load,
        host=account.host,
        collectives=collectives,
        replicas=replicas,
        converted_bytes=converted,
        host_to_device_bytes=copied,
        history_columns=account.history_columns,
        synchronisation=_synchronisation(plan, problem),
        dense=plan.dense,
        caching=account.caching if cached else None,
    )


def _hot(segments: list[Segment], lookups: TableLookups) -> list[Segment]:
    for segment in segments:
        times = float(lookups.by_source(segment.row_start, segment.row_stop).sum())
        if times and not isinstance(segment.placement, Replicated):
            raise BadInput(f"a hot batch asks {times:.0f} times for rows of '{segment.table}' that are not replicated")
    return hot_segments(segments)


def _synchronisation(plan: Plan, problem: Problem) -> Synchronisation:
    if plan.schedule is None:
        return Synchronisation()
    replica_bytes = sum(
        segment.rows * problem.row_bytes(segment.columns) * len(segment.placement.ranks)
        for segment in plan.segments
        if isinstance(segment.placement, Replicated)
    )
    once = replica_bytes / problem.world_size
    heats, batches = plan.schedule.heats, plan.schedule.batches
    return Synchronisation(to_device_bytes=heats * replica_bytes / batches, to_host_bytes=heats * once / batches)


def mean(traffics: Iterable[Traffic], weights: Floats | None = None) -> Traffic:
    """Return the mean over iterations, field by field; ``weights`` float64 [iterations] count alike where None."""
    several = list(traffics)

    def average(parts: Sequence[Any]) -> Any:
        first = parts[0]
        match first:
            case Load():
                return Load(average([part.values for part in parts]))
            case Calls():
                return Calls(*average([np.array(part) for part in parts]).tolist())
            case Sources() | CacheWork():
                return type(first)(*map(average, zip(*parts)))
            case Collective():
                numbers = {one.name: average([getattr(part, one.name) for part in parts]) for one in fields(first)}
                return Collective(**numbers)
            case dict():
                return {name: average([part[name] for part in parts]) for name in first}
            case Synchronisation() | DenseHome() | None:
                return first
        return np.average(parts, axis=0, weights=weights)

    return Traffic(
        **{one.name: average([getattr(traffic, one.name) for traffic in several]) for one in fields(Traffic)}
    )
