"""A proven lower bound on the slowest rank's embedding time under the cost model.

Write w(S) for the cost model's work of a device that holds the set S of tables (milliseconds of
memory traffic, forward and backward), L for its two launches, D for the host's dispatch of one
forward, x(S) for the tail of its longest bag, and f(S) for its time:
f(S) = max(D, L/2 + max(forward work, x)) + L/2 + backward work, so that f(S) >= L + w(S).

*Whole tables.* w is super-additive: w(S) >= sum of w({t}) over t in S.
  - Index, output, sort, update, state and access-overhead terms are linear in the load, and so is what a CPU
    pays a table, a bag, a page and a sequence's row.
  - Repeats cost R [g/c + (1-g)/r] with c >= r and the hit share g(W) = a / (a + W), where R are the
    repeated bytes, W = sum of R_t F_t / R the mean working set and F_t the table's first bytes.
    g falls and is convex in W, so by Jensen g(W_S) <= sum of (R_t / R_S) g(F_t): no more bytes hit
    together than alone, and a hit is the cheaper way. This holds for each tier and for gradients.
Every term of f grows with the load and x is a maximum over tables, so f(S) >= f({t}) for t in S.
A table's weight w_t is the smaller of w({t}) in HBM and in UVM where UVM may be used. A plan of
whole tables then costs a device that has any at least L + sum of its weights, which leaves bounds
for equal machines: the largest f({t}) (the smaller of its tiers), L + the mean of the weights over
devices, and, by the pigeonhole principle, L + the sum of the k + 1 smallest among the k W + 1
largest weights (some device holds k + 1 of them).

*Any split* (columns, rows, replicas). Bytes and lookups only grow by splitting: the parts of a
table together do at least the table's lookups, distinct rows, bags and gradients. Serving every
repeat at cache rate, and updating in the faster of the tiers, gives a linear lower estimate of each
part's work, so the slowest of W devices needs at least L + (total) / W, and D + L/2 in any case.
A replica sees only its own ranks' samples, so that the parts' first gradient bytes may add up to
less: with REPLICATE all gradients count at cache rate. The tail is left out: parts of a bag may be
short. What a CPU pays a table, a bag and a sequence's row counts, as every part of a table has
them; pages are left out, as its rows may lie closer together in parts.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.costmodel import embedding_ms, gather_rate, work_ms
from shardbench.cost.load import Load, in_uvm, segment_load
from shardbench.cost.lookups import CountedLookups, ExpectedLookups, TableLookups
from shardbench.model.machine import Constants, Machine
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling
from shardbench.workloads.trace import Bags

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
        source = lookups(i)
        asked = float(source.by_source(0, table.rows).sum())
        pooled = table.pooling is Pooling.SUM
        alone = segment_load(
            lookups=asked,
            distinct=float(source.distinct(0, table.rows, 1)[0]),
            bags=float(problem.batch_size) if pooled else asked,
            longest_bag=float(source.longest_bag(0, table.rows, 1, 1)[0, 0]) if pooled else 0.0,
            rows=float(table.rows),
            columns=table.dim,
            unpooled=not pooled,
            tier=Tier.HBM,
            precision=problem.precision,
            state=problem.optimizer.state_bytes(table.dim),
        )
        load.add_at(i, alone)
    return load


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
    if any(not loads.bags.any() for loads in batches):
        return 0.0
    constants, world = machine.constants, machine.topology.world_size
    launch_ms = 2e3 * constants.launch_s
    if moves <= WHOLE:
        weights = np.mean([_cheaper(work_ms, loads, constants, moves) for loads in batches], axis=0)
        alone = np.mean([_cheaper(embedding_ms, loads, constants, moves) for loads in batches], axis=0)
        bound = max(
            float(alone.max()), launch_ms + float(weights.sum() / world), launch_ms + pigeonhole_ms(weights, world)
        )
    else:
        work = float(np.mean([_split_ms(loads, constants, moves).sum() for loads in batches])) / world
        bound = max(1e3 * (constants.dispatch_s + constants.launch_s), launch_ms + work)
    return bound * (1.0 - ROUNDING)


def _cheaper(
    time_ms: Callable[[Load, Constants], Floats], loads: Load, constants: Constants, moves: frozenset[Move]
) -> Floats:
    """Milliseconds of each table in HBM or, where allowed and faster, in host memory, [tables]."""
    times = time_ms(loads, constants)
    # Where host memory is slower than gathering from HBM (always, on real machines) HBM wins here.
    return np.minimum(times, time_ms(in_uvm(loads), constants)) if Move.UVM in moves else times


def pigeonhole_ms(weights: Floats, world: int) -> float:
    """Largest, over k, sum of the k + 1 smallest among the ``k world + 1`` largest weights, at least one of them.

    No way to hand the weights [n] to ``world`` devices leaves every device less: of any k world + 1 weights some
    device gets k + 1, which together are no less than the k + 1 smallest.
    """
    descending = np.sort(weights)[::-1]
    ends = np.concatenate([[0.0], np.cumsum(descending)])
    k = np.arange((len(weights) - 1) // world + 1)
    return float((ends[k * world + 1] - ends[k * world - k]).max())


def _split_ms(loads: Load, constants: Constants, moves: frozenset[Move]) -> Floats:
    """Least milliseconds of each table's work however it is split, without launches, [tables]."""
    gather = gather_rate(constants)
    host = constants.uvm_bytes_per_s if Move.UVM in moves else 0.0
    rate, update = max(gather, host), max(gather / 2.0, host)
    cache = max(constants.cache_bytes_per_s, rate)
    overhead = constants.access_overhead_bytes
    first = loads.distinct_bytes + overhead * loads.distinct
    repeats = loads.lookup_bytes - loads.distinct_bytes + overhead * (loads.lookups - loads.distinct)
    gradients = loads.gradient_bytes
    own = np.zeros_like(gradients) if Move.REPLICATE in moves else loads.gradient_first_bytes
    seconds = (
        (first / rate)
        + own / gather
        + (repeats + gradients - own) / cache
        + (first + loads.state_bytes) / update
        + ((INDEX_BYTES + constants.sort_bytes) * loads.lookups + loads.bag_bytes) / constants.hbm_bytes_per_s
    )
    # Each part of a table is gone through by itself; pages may be fewer: parts of a table lie closer together.
    calls = 2.0 * (constants.table_s * loads.tables + constants.bag_s * loads.bags)
    return 1e3 * np.asarray(seconds + calls + constants.sequence_row_s * loads.sequence_rows)
