"""A proven lower bound on the slowest rank's embedding time under the cost model.

Write f(S) for the cost model's milliseconds of a device that holds the set S of tables, L for
its launch time (one forward, one backward) and h(S) = f(S) - L.

*Whole tables.* h is super-additive: h(S) >= sum of h({t}) over t in S.
  - Index, output, sort, update and UVM terms are linear in the load, so they add up.
  - Gather: first_S = sum of first_t, so hit_S = C / max(first_S, C) <= hit_t for each t. Time
    falls with the hit share (the cache is at least as fast as the gather rate), and with hit_t
    instead of hit_S the term would be the sum of the single tables'.
  - Gradients: the term is G/r - hit * (G - first) * (1/r - 1/c) with c >= r and
    first = min(bag bytes, G). The minimum of sums is at least the sum of minima, hence
    first_S >= sum of first_t: both hit_S <= hit_t and G_S - first_S <= sum of (G_t - first_t),
    so what is subtracted is at most the sum of what single tables subtract.
A table's weight w_t is the smaller of h({t}) in HBM and in UVM where UVM may be used. A plan of
whole tables then costs a device at least L + sum of its weights, which leaves bounds for equal
machines: the largest weight, the mean over devices, and, by the pigeonhole principle, the sum
of the k + 1 smallest among the k W + 1 largest weights (some device holds k + 1 of them).

*Any split* (columns, rows, replicas). Bytes and lookups only grow by splitting: the parts of a
table together do at least the table's lookups, distinct rows, bags and gradients. Serving every
repeat at cache rate gives a linear lower estimate of each part's h, so the slowest of W devices
needs at least L + (total) / W. A replica sees only its own ranks' samples, so that the parts'
min(bag bytes, G) may add up to less: with REPLICATE all gradients count at cache rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from shardbench.costmodel import embedding_ms
from shardbench.errors import Unsupported
from shardbench.load import Load, segment_load
from shardbench.lookups import CountedLookups, ExpectedLookups, TableLookups
from shardbench.machine import Constants, Machine
from shardbench.plan import Tier
from shardbench.problem import Problem
from shardbench.strategy import Move
from shardbench.table import Pooling
from shardbench.trace import Bags
from shardbench.traffic import INDEX_BYTES

Floats = NDArray[np.float64]

WHOLE = frozenset({Move.TABLE, Move.UVM})
ROUNDING = 1e-9
"""Share by which the bound is lowered so that floating-point sums cannot lift it over an optimum."""


def table_loads(problem: Problem, bags: Callable[[int], Bags]) -> Load:
    """Counted load of each table alone on one device in HBM, [tables]; ``bags(i)`` is one global batch."""

    def counted(i: int) -> TableLookups:
        table = problem.tables[i]
        return CountedLookups(bags(i), table.rows, problem.world_size, f"table {table.name}")

    return _alone(problem, counted)


def expected_table_loads(problem: Problem) -> Load:
    """Expected load, under the training profiles, of each table alone on one device in HBM, [tables]."""
    profiles = problem.profiles
    return _alone(problem, lambda i: ExpectedLookups(profiles[i], problem.batch_size, problem.world_size))


def _alone(problem: Problem, lookups: Callable[[int], TableLookups]) -> Load:
    load = Load.zeros(len(problem.tables))
    for i, table in enumerate(problem.tables):
        if table.pooling is not Pooling.SUM:
            raise Unsupported(f"table '{table.name}': counting of unpooled tables is not built yet")
        source = lookups(i)
        rows: dict[str, Floats | float] = {
            "lookups": float(source.by_source(0, table.rows).sum()),
            "distinct": float(source.distinct(0, table.rows, 1)[0]),
            "bags": float(problem.batch_size),
        }
        state = problem.optimizer.state_bytes(table.dim)
        load.add([i], segment_load(rows, table.dim, Tier.HBM, problem.precision, state))
    return load


def in_uvm(load: Load) -> Load:
    """The same load with every row read from host memory, as ``segment_load`` counts that tier."""
    values = {f.name: getattr(load, f.name) for f in fields(Load)}
    for name in ("lookups", "lookup_bytes", "distinct", "distinct_bytes"):
        values[f"uvm_{name}"] = values[f"uvm_{name}"] + values[name]
        values[name] = np.zeros_like(values[name])
    return Load(**values)


def lower_bound_ms(table_loads: Load | Sequence[Load], machine: Machine, moves: frozenset[Move]) -> float:
    """Milliseconds that no plan made with ``moves`` can beat on its slowest rank, for these loads.

    ``table_loads`` [tables] are each table's alone in HBM, counted (one batch) or expected. Given
    several batches it bounds the slowest of the ranks' mean times over them: h summed over batches
    is super-additive too, so its weights are the means. Zero with HOST (the devices may do nothing
    at all) and with SCHEDULE (other samples meet in a batch).
    """
    if moves & {Move.HOST, Move.SCHEDULE}:
        return 0.0
    batches = [table_loads] if isinstance(table_loads, Load) else table_loads
    constants, world = machine.constants, machine.topology.world_size
    launch_ms = 2e3 * constants.launch_s
    if moves <= WHOLE:
        weights = np.mean([_whole_weights(loads, constants, moves) for loads in batches], axis=0) - launch_ms
        bound = float(max(weights.sum() / world, _pigeonhole(weights, world)))
    else:
        bound = float(np.mean([_split_ms(loads, constants, moves).sum() for loads in batches])) / world
    return (launch_ms + bound) * (1.0 - ROUNDING)


def _whole_weights(loads: Load, constants: Constants, moves: frozenset[Move]) -> Floats:
    weights = embedding_ms(loads, constants)
    # Where host memory is slower than gathering from HBM (always, on real machines) HBM wins here.
    return np.minimum(weights, embedding_ms(in_uvm(loads), constants)) if Move.UVM in moves else weights


def _pigeonhole(weights: Floats, world: int) -> float:
    descending = np.sort(weights)[::-1]
    ends = np.concatenate([[0.0], np.cumsum(descending)])
    k = np.arange((len(weights) - 1) // world + 1)
    return float((ends[k * world + 1] - ends[k * world - k]).max())


def _split_ms(loads: Load, constants: Constants, moves: frozenset[Move]) -> Floats:
    """Least milliseconds of each table's work however it is split, without launches, [tables]."""
    gather = constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    rate = max(gather, constants.uvm_bytes_per_s) if Move.UVM in moves else gather
    cache = max(constants.cache_bytes_per_s, rate)
    overhead = constants.access_overhead_bytes
    first = loads.distinct_bytes + overhead * loads.distinct
    repeats = loads.lookup_bytes - loads.distinct_bytes + overhead * (loads.lookups - loads.distinct)
    gradients = loads.gradient_bytes
    own = np.zeros_like(gradients) if Move.REPLICATE in moves else np.minimum(loads.bag_bytes, gradients)
    seconds = (
        (first + own) / rate
        + (repeats + gradients - own) / cache
        + 2.0 * (first + loads.state_bytes) / rate
        + ((INDEX_BYTES + constants.sort_bytes) * loads.lookups + loads.bag_bytes) / constants.hbm_bytes_per_s
    )
    return 1e3 * np.asarray(seconds)
