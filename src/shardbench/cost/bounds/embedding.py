"""Bounds the slowest rank's mean embedding time over some batches: lemmas 1 to 6 of ``docs/bounds.md``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.bounds.capacity import Curve, largest_saving
from shardbench.cost.costmodel import (
    backward_work_s,
    calls_s,
    embedding_ms,
    forward_calls_s,
    forward_work_s,
    gather_rate,
    gradient_rate,
)
from shardbench.cost.load import Load, TierRows, in_uvm, segment_load
from shardbench.cost.lookups import TableLookups
from shardbench.cost.traffic import expected_lookups
from shardbench.model.machine import Constants
from shardbench.model.plan import GroupSharded, OnLocalRank, Placement, Plan, Replicated, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling

NO_BOUND = frozenset({Move.HOST, Move.SCHEDULE, Move.CACHE, Move.LOCAL_STEPS})
"""Moves of plans that nothing is proven about: the devices may do nothing at all, other samples meet in a batch, rows
enter HBM as they are asked for, so that what is in it does not bound what it serves, or another model is trained."""
ROUNDING = 1e-9
"""Share by which a bound is lowered so that floating-point sums cannot lift it over an optimum."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Milliseconds that no plan of some kind can beat."""

    ms: float
    fixed_ms: float
    """The part of launches and dispatch, which are the same for every plan."""


def expected_table_loads(problem: Problem) -> Load:
    """Return the expected load, under the training profiles, of each table alone on one device in HBM, [tables]."""
    load = Load.zeros(len(problem.tables))
    for i in range(len(problem.tables)):
        load.values[i] = alone_load(problem, i, expected_lookups(problem, i)).values
    return load


def alone_load(problem: Problem, i: int, lookups: TableLookups) -> Load:
    """Return the load of table i alone on one device in HBM, []."""
    table = problem.tables[i]
    lookup_count = float(lookups.by_source(0, table.rows).sum())
    pooled = table.pooling is Pooling.SUM
    return segment_load(
        lookups=lookup_count,
        distinct=float(lookups.distinct(0, table.rows, 1)[0]),
        bags=float(problem.batch_size * table.features) if pooled else lookup_count,
        longest_bag=float(lookups.longest_bag(0, table.rows, 1, 1)[0, 0]),
        rows=float(table.rows),
        columns=table.dim,
        unpooled=not pooled,
        features=table.features,
        tier=Tier.HBM,
        precision=problem.precision,
        state=problem.optimizer.state_bytes(table.dim),
    )


def keeps_order(plan: Plan) -> bool:
    """Return True where no row that a device reads from host memory is hotter than one of its column in HBM."""
    return _descends(plan, lambda place: int(getattr(place, "tier", Tier.HBM) is Tier.UVM))


def copies_hottest(plan: Plan) -> bool:
    """Return True where a column's rows with a copy a device are hottest, and those with a copy a node come next."""
    copies = {Replicated: 0, GroupSharded: 1, OnLocalRank: 1}
    return _descends(plan, lambda place: copies.get(type(place), 2))


def _descends(plan: Plan, level: Callable[[Placement], int]) -> bool:
    """Return True where the level of a column's rows never falls in the order of frequency."""
    for segments in plan.by_table().values():
        box = np.array([(s.row_start, s.column_start, s.column_stop) for s in segments])
        levels = np.array([level(s.placement) for s in segments])
        for lowest in np.unique(levels)[1:]:
            later, first = box[levels >= lowest][:, None], box[levels < lowest]
            hotter = (later[..., 0] < first[:, 0]) & (later[..., 1] < first[:, 2]) & (first[:, 1] < later[..., 2])
            if hotter.any():
                return False
    return True


def split_bound(loads: Load, problem: Problem, moves: frozenset[Move], curves: Sequence[Curve] | None = None) -> Bound:
    """Prove a bound on the slowest rank's embedding time, in the mean over batches, of any plan made with ``moves``.

    ``loads`` [batches, tables] (or of one batch) are each table's alone in HBM; ``curves`` [tables] say what its rows
    in HBM serve, and without them capacity does not count. Raises BadInput for HOST and SCHEDULE.
    """
    if moves & NO_BOUND:
        raise BadInput(f"nothing is proven about plans with {', '.join(sorted(moves & NO_BOUND))}")
    loads = _batches(loads)
    if not loads.bags.any():
        return Bound(ms=0.0, fixed_ms=0.0)
    bounds = [_split(pair, loads, problem, moves, curves) for pair in _pairs(problem.machine.constants)]
    best = max(bounds, key=lambda bound: bound.ms)
    return Bound(ms=best.ms * (1.0 - ROUNDING), fixed_ms=best.fixed_ms * (1.0 - ROUNDING))


def whole_table_bound_ms(loads: Load, problem: Problem, moves: frozenset[Move]) -> float:
    """Return milliseconds that no plan of whole tables, in UVM too if ``moves`` have it, beats on its slowest rank.

    ``loads`` as in split_bound; they may be expected ones.
    """
    loads, allowed = _batches(loads), moves & {Move.UVM}
    if not loads.bags.any():
        return 0.0
    largest_ms = float(np.minimum(*by_tier(embedding_ms, loads, problem, allowed)).max())
    bounds = [largest_ms, split_bound(loads, problem, allowed).ms]
    bounds += [_whole_ms(pair, loads, problem, allowed) for pair in _pairs(problem.machine.constants)]
    return max(bounds) * (1.0 - ROUNDING)


def _batches(loads: Load) -> Load:
    return loads if loads.values.ndim == 3 else Load(loads.values[None])


@dataclass(frozen=True, kw_only=True)
class _CostPair:
    """A fixed cost and a work that together are no more than a device's time in a batch in which it has a bag."""

    fixed_ms: float
    whole_s: Callable[[Load, Constants], Floats]
    """Seconds, super-additive over tables."""
    least_s: Callable[[Load, Constants, frozenset[Move]], Floats]
    """Seconds, linear and no larger, however tables are split."""


def _pairs(constants: Constants) -> tuple[_CostPair, _CostPair]:
    launch_ms, dispatch_ms = 1e3 * constants.launch_s, 1e3 * constants.dispatch_s
    backward_ms = 1e3 * constants.backward_launch_s
    return (
        _CostPair(
            fixed_ms=launch_ms + backward_ms,
            whole_s=lambda load, c: forward_work_s(load, c) + backward_work_s(load, c),
            least_s=lambda load, c, moves: least_forward_s(load, c, moves) + least_backward_s(load, c, moves),
        ),
        _CostPair(fixed_ms=dispatch_ms + backward_ms, whole_s=backward_work_s, least_s=least_backward_s),
    )


def _split(
    pair: _CostPair, loads: Load, problem: Problem, moves: frozenset[Move], curves: Sequence[Curve] | None
) -> Bound:
    constants, world = problem.machine.constants, problem.world_size
    hbm = 1e3 * pair.least_s(loads, constants, moves)
    uvm = 1e3 * pair.least_s(in_uvm(loads), constants, moves) if reads_uvm(problem, moves) else hbm
    gains = np.maximum((uvm - hbm).mean(axis=0), 0.0)
    saving = gains.sum()
    if curves is not None:
        saving = _hbm_saving(gains, curves, problem)
    each_ms = float(uvm.mean(axis=0).sum() - saving) / world
    pooled = np.array([table.pooling is Pooling.SUM for table in problem.tables])
    sequences = np.maximum(hbm, uvm)[:, ~pooled].sum(axis=1)
    nonempty = float(loads.bags.any(axis=1).mean())
    paid = max(1.0 if pooled.all() else _fewest_share(sequences, each_ms), nonempty / world)
    bounds = [(pair.fixed_ms * paid + each_ms, pair.fixed_ms * paid)]
    if pooled.any():
        bounds.append((pair.fixed_ms, pair.fixed_ms))
    return Bound(ms=max(bounds)[0], fixed_ms=max(bounds)[1])


def _hbm_saving(gains: Floats, curves: Sequence[Curve], problem: Problem) -> float:
    """Return the most that the HBM of all devices together saves, in the unit of ``gains``."""
    row_bytes = np.array([problem.weight_bytes(t) / t.rows for t in problem.tables])
    return largest_saving(gains, curves, row_bytes, float(problem.world_size * problem.topology.hbm_bytes))


def _fewest_share(works: Floats, needed: float) -> float:
    """Return the share of the fewest batches whose works [batches] add up to ``needed`` in the mean; 1 if none do."""
    cumulative = np.cumsum(np.sort(works)[::-1]) / len(works)
    # A sum that is equal but for rounding is reached.
    fewest = 1 + int(np.searchsorted(cumulative, needed * (1.0 - ROUNDING)))
    return min(fewest, len(works)) / len(works)


def _whole_ms(pair: _CostPair, loads: Load, problem: Problem, moves: frozenset[Move]) -> float:
    hbm, uvm = by_tier(lambda load, c: 1e3 * pair.whole_s(load, c), loads, problem, moves)
    gains = np.maximum(uvm - hbm, 0.0)
    world = problem.world_size
    lines = [Curve.line(table.rows) for table in problem.tables]
    saving = _hbm_saving(gains, lines, problem)
    # Of the tables that have any bag, the one that has them in the fewest batches.
    active = (loads.bags > 0).mean(axis=0)
    paid_ms = pair.fixed_ms * float(active[active > 0].min())
    return paid_ms + max(float(uvm.sum() - saving) / world, pigeonhole_ms(np.minimum(hbm, uvm), world))


def by_tier(
    time_ms: Callable[[Load, Constants], Floats], loads: Load, problem: Problem, moves: frozenset[Move]
) -> tuple[Floats, Floats]:
    """Return mean milliseconds of each table in HBM and in UVM, [tables] each; the other tier's where it cannot be."""
    constants, topology = problem.machine.constants, problem.topology
    hbm = time_ms(loads, constants).mean(axis=0)
    if not reads_uvm(problem, moves):
        return hbm, hbm
    uvm = time_ms(in_uvm(loads), constants).mean(axis=0)
    sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.float64)
    # What fits into neither has no plan at all.
    only_uvm = (sizes > topology.hbm_bytes) & (sizes <= topology.uvm_bytes)
    only_hbm = (sizes > topology.uvm_bytes) & (sizes <= topology.hbm_bytes)
    return np.where(only_uvm, uvm, hbm), np.where(only_hbm, hbm, uvm)


def reads_uvm(problem: Problem, moves: frozenset[Move]) -> bool:
    """Return True where a plan made with ``moves`` may read host memory from a device."""
    return Move.UVM in moves and problem.topology.uvm_bytes > 0


def pigeonhole_ms(weights: Floats, world: int) -> float:
    """Return the largest, over k, sum of the k + 1 smallest among the ``k world + 1`` largest weights.

    No way to hand the weights [n] to ``world`` devices leaves every device less: of any k world + 1 weights some
    device gets k + 1, which together are no less than the k + 1 smallest.
    """
    descending = np.sort(weights)[::-1]
    ends = np.concatenate([[0.0], np.cumsum(descending)])
    k = np.arange((len(weights) - 1) // world + 1)
    return float((ends[k * world + 1] - ends[k * world - k]).max())


def cache_rate(constants: Constants, moves: frozenset[Move]) -> float:
    """Return the bytes a second that no repeat is served faster than, in whichever tier the row is."""
    host = constants.uvm_bytes_per_s if Move.UVM in moves else 0.0
    return max(constants.cache_bytes_per_s, gather_rate(constants), host)


def least_forward_s(load: Load, constants: Constants, moves: frozenset[Move]) -> Floats:
    """Return the least seconds of forward work of tables of this load [...], however split; linear in the load."""
    cache, overhead = cache_rate(constants, moves), constants.access_overhead_bytes

    def gather(rows: TierRows, rate: float) -> Floats:
        first = rows.distinct_bytes + overhead * rows.distinct
        repeats = rows.lookup_bytes - rows.distinct_bytes + overhead * (rows.lookups - rows.distinct)
        return np.asarray(first / rate + np.maximum(repeats, 0.0) / cache)

    streamed = INDEX_BYTES * load.all_lookups + load.bag_bytes
    gathered = gather(load, gather_rate(constants)) + gather(load.uvm, constants.uvm_bytes_per_s)
    return np.asarray(gathered + streamed / constants.hbm_bytes_per_s + forward_calls_s(load, constants))


def least_backward_s(load: Load, constants: Constants, moves: frozenset[Move]) -> Floats:
    """Return the least seconds of backward work of tables of this load [...], however split; linear in the load."""
    gather, overhead = gather_rate(constants), constants.access_overhead_bytes
    first = np.zeros_like(load.gradient_bytes) if Move.REPLICATE in moves else load.gradient_first_bytes
    gradients = first / gradient_rate(constants) + (load.gradient_bytes - first) / cache_rate(constants, moves)
    sort = constants.sort_bytes * load.all_lookups / constants.hbm_bytes_per_s

    def updated(rows: TierRows) -> Floats:
        return np.asarray(rows.distinct_bytes + overhead * rows.distinct + rows.state_bytes)

    return np.asarray(
        gradients
        + sort
        + calls_s(load, constants)
        + 2.0 * updated(load) / gather
        + constants.uvm_update_ratio * updated(load.uvm) / constants.uvm_bytes_per_s
    )
