"""Bounds the mean step, of cut tables at the best prices and of whole ones: lemmas 7 and 13 of ``docs/bounds.md``."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds.demand import Demand
from shardbench.cost.bounds.embedding import (
    NO_BOUND,
    ROUNDING,
    by_tier,
    copies_hottest,
    keeps_order,
    pigeonhole_ms,
    whole_table_bound_ms,
)
from shardbench.cost.bounds.step_kernels import conversion_s, hides_sources
from shardbench.cost.bounds.step_relaxation import Prices, Relaxation
from shardbench.cost.collectives import all_reduce_s
from shardbench.cost.costmodel import hides_all_reduce, placing_backward_s, placing_forward_s, work_ms
from shardbench.cost.dense import dense_s
from shardbench.cost.load import VECTOR_BYTES
from shardbench.model.plan import Plan, ShardingGroups
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling
from shardbench.model.validate import used_moves

DEVICE_MOVES = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
"""The moves of plans that have no hosts and no batch schedule."""
GOLDEN = (5.0**0.5 - 1.0) / 2.0
SECTIONS = 14
"""Golden sections of a price's range."""
SWEEPS = 3
"""How often every price is searched for itself, one after another."""
STEP = 1e-3
"""The distance over which the slope of a price is looked at."""
HBM_RANGE = 3.0
"""The largest price of a byte of HBM, as a power of 16 of its scale."""
ENOUGH = 1e-5
"""Relative gain of a sweep below which there is no other."""


@dataclass(frozen=True, kw_only=True)
class StepBound:
    """Milliseconds of a step that no plan of some moves can beat."""

    ms: float
    dense_ms: float
    """The part of the dense model, and of its all-reduce where nothing can hide it: the same for every plan."""
    prices: Prices
    """The prices at which ``Relaxation.value_ms`` gives the bound, where it comes from means over ranks."""


def step_bound(
    demand: Demand,
    problem: Problem,
    dense: DenseShape,
    moves: frozenset[Move],
    *,
    ordered: bool = False,
    groups: ShardingGroups | None = None,
    prices: Prices | None = None,
) -> StepBound:
    """Prove a bound on the step, in the mean over the demand's batches, of any plan made with ``moves``.

    With ``ordered`` it holds for plans that are ``in_order``, and may be higher. What they copy by sharding group they
    copy by these ``groups``. With ``prices``, such as those of a like demand, no better ones are looked for.
    Raises BadInput for HOST and SCHEDULE,
    about which nothing is proven, and for moves that place no row at all.
    """
    if moves & NO_BOUND:
        raise BadInput(f"nothing is proven about plans with {', '.join(sorted(moves & NO_BOUND))}")
    dense_ms = dense_step_ms(demand, problem, dense)
    reduced_s = dense_all_reduce_s(problem, dense)
    relaxation = Relaxation(demand, problem, moves, ordered=ordered, reduced_s=reduced_s, groups=groups)
    if prices is None:
        prices = _best_prices(relaxation)
    value = max(relaxation.value_ms(prices), relaxation.calls_ms())
    if relaxation.kernels.whole:
        value = max(value, whole_tables_ms(demand, problem, moves, relaxation.calls_ms()))
    # Every iteration takes at least the host's floor, and so does the mean.
    links_ms = relaxation.links_ms(prices, min(_dense_by_batch_s(demand, problem, dense)))
    ms = max(dense_ms + value, links_ms, 1e3 * problem.machine.constants.step_floor_s)
    return StepBound(ms=ms * (1.0 - ROUNDING), dense_ms=dense_ms * (1.0 - ROUNDING), prices=prices)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBounds:
    """Bounds on the step of the plans of one question, each proven when first asked for."""

    demand: Demand
    problem: Problem
    dense: DenseShape
    _bounds: dict[tuple[frozenset[Move], bool, ShardingGroups | None], StepBound] = field(
        default_factory=dict, init=False
    )

    def of(self, plan: Plan, moves: frozenset[Move] = DEVICE_MOVES) -> StepBound | None:
        """Return bound on plans like this one, made with device moves of ``moves``; None for moves of ``NO_BOUND``."""
        if used_moves(plan, self.problem) & NO_BOUND:
            return None
        return self.least(moves, ordered=in_order(plan), groups=plan.groups)

    def least(
        self, moves: frozenset[Move] = DEVICE_MOVES, *, ordered: bool, groups: ShardingGroups | None = None
    ) -> StepBound:
        """Return the bound on plans made with device moves of ``moves``, or with ``ordered`` on those ``in_order``.

        They have these sharding groups.
        """
        key = moves & DEVICE_MOVES, ordered, groups
        if key not in self._bounds:
            self._bounds[key] = step_bound(
                self.demand, self.problem, self.dense, key[0], ordered=ordered, groups=groups
            )
        return self._bounds[key]


def in_order(plan: Plan) -> bool:
    """Return True where a plan keeps the order of frequency, in what is in HBM and in what is copied."""
    return keeps_order(plan) and copies_hottest(plan)


def dense_step_ms(demand: Demand, problem: Problem, dense: DenseShape) -> float:
    """Return mean milliseconds of the dense model, and of its all-reduce where nothing hides it, whatever the plan."""
    reduced_s = 0.0 if hides_all_reduce(problem.machine) else dense_all_reduce_s(problem, dense)
    return 1e3 * (float(np.mean(_dense_by_batch_s(demand, problem, dense))) + reduced_s)


def _dense_by_batch_s(demand: Demand, problem: Problem, dense: DenseShape) -> list[float]:
    machine, tables = problem.machine, problem.tables
    return [dense_s(history, machine, dense, tables, problem.batch_size) for history in demand.histories]


def dense_all_reduce_s(problem: Problem, dense: DenseShape) -> float:
    """Return the seconds of the all-reduce of the dense model's gradients."""
    return all_reduce_s(float(dense.parameters(problem.tables) * VECTOR_BYTES), problem.machine)


def expected_dense_s(problem: Problem, dense: DenseShape) -> float:
    """Return the seconds of the dense model, where every device has its share of the histories that profiles expect."""
    unpooled = [table.dim * (table.pooling is Pooling.NONE) for table in problem.tables]
    columns = float(np.dot([profile.mean_pooling for profile in problem.profiles], unpooled))
    histories = np.full(problem.world_size, columns * problem.batch_size / problem.world_size)
    return dense_s(histories, problem.machine, dense, problem.tables, problem.batch_size)


def _best_prices(relaxation: Relaxation) -> Prices:
    """Return prices found by coordinate ascent; the value is concave in them."""
    prices = relaxation.first_prices()
    value = relaxation.value_ms(prices, chunked=False)
    for _ in range(SWEEPS):
        before = value
        for names in relaxation.free_prices():
            prices, value = _improved(relaxation, prices, value, names)
        if value - before <= ENOUGH * abs(value):
            break
    return prices


def _improved(relaxation: Relaxation, prices: Prices, value: float, names: tuple[str, ...]) -> tuple[Prices, float]:
    """Return the prices with the best one for these names, the others kept, and the value that they prove."""
    memory = "hbm_byte" in names
    scale = relaxation.hbm_scale if memory else 1.0
    best = value, prices

    def try_price(x: float) -> float:
        nonlocal best
        price = scale * (16.0**x - 1.0) if memory else x
        candidate = replace(prices, **dict.fromkeys(names, price))
        bound_ms = relaxation.value_ms(candidate, chunked=False)
        if bound_ms > best[0]:
            best = bound_ms, candidate
        return bound_ms

    price = getattr(prices, names[-1])
    at, top = (math.log(price / scale + 1.0, 16.0), HBM_RANGE) if memory else (price, 1.0)
    # A concave function that falls at both sides of a point has its maximum there.
    if at < top and try_price(min(at + STEP, top)) > value:
        _sections(try_price, at, top)
    elif at > 0.0 and try_price(max(at - STEP, 0.0)) > value:
        _sections(try_price, 0.0, at)
    return best[1], best[0]


def _sections(function: Callable[[float], float], low: float, high: float) -> None:
    """Evaluate a concave function ever nearer to its maximum, by golden sections."""
    function(low)
    function(high)
    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(SECTIONS):
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - GOLDEN * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + GOLDEN * (high - low)
            at_b = function(b)


def whole_tables_ms(demand: Demand, problem: Problem, moves: frozenset[Move], calls_ms: float) -> float:
    """Return milliseconds beside the dense model that no plan of whole tables beats; ``calls_ms`` are the latencies."""
    loads, world, constants = demand.loads, problem.world_size, problem.machine.constants
    lengths = sum(table.features for table in problem.tables) * (problem.batch_size // world)
    sources = constants.lookup_copy_s * demand.sources.sum(axis=0) + constants.length_copy_s * lengths
    sent = float(not hides_sources(problem))
    calls_ms += 1e3 * sent * float(sources.max())
    if not loads.bags.any():
        return calls_ms
    converting_ms, own_converting_ms = _converted_ms(demand, problem)
    calls_ms += own_converting_ms
    lookups, vectors = _exchanged_ms(demand, problem)
    lookups = sent * lookups
    own = 1.0 if problem.machine.device != "cpu" else 0.5
    floors = [max(float(ms.sum()) / world, pigeonhole_ms(own * ms, world)) for ms in (lookups, vectors)]
    apart = whole_table_bound_ms(loads, problem, moves) + floors[0] + 2.0 * floors[1]
    apart += max(float(converting_ms.sum()) / world, pigeonhole_ms(converting_ms, world))
    works = np.minimum(*by_tier(work_ms, loads, problem, moves & {Move.UVM}))
    works = (
        works
        + converting_ms
        + 1e3 * (placing_forward_s(loads, constants) + placing_backward_s(loads, constants)).mean(axis=0)
    )
    launches = 1e3 * (constants.launch_s + constants.backward_launch_s) * float(loads.bags.any(axis=1).mean())
    together = launches + pigeonhole_ms(works + own * (lookups + 2.0 * vectors), world)
    return calls_ms + max(apart, together)


def _converted_ms(demand: Demand, problem: Problem) -> tuple[Floats, float]:
    """Return mean milliseconds to convert a table's vectors where it is, [tables], and least ones of a rank's own."""
    samples = np.array([t.features for t in problem.tables]) * (problem.batch_size / problem.world_size)
    dims = np.array([t.dim for t in problem.tables])
    pooled = np.array([t.pooling is Pooling.SUM for t in problem.tables])
    numbers = np.where(pooled, samples, demand.sources.T).T * dims[:, None]
    milliseconds = 1e3 * conversion_s(problem) * numbers
    return milliseconds.sum(axis=1), float(milliseconds.sum(axis=0).min())


def _exchanged_ms(demand: Demand, problem: Problem) -> tuple[Floats, Floats]:
    """Return least mean milliseconds that a table's lookups and its vectors take on the far link, [tables] each."""
    topology, constants = problem.topology, problem.machine.constants
    world, local = topology.world_size, topology.devices_per_node
    several = topology.nodes > 1
    near = demand.sources.reshape(-1, topology.nodes, local).sum(axis=2) if several else demand.sources
    away = demand.sources.sum(axis=1) - near.max(axis=1)
    peers = world - local if several else local - 1
    rate = constants.inter_bytes_per_s if several else constants.intra_bytes_per_s
    samples = np.array([t.features for t in problem.tables]) * (problem.batch_size // world)
    dims = np.array([t.dim for t in problem.tables])
    pooled = np.array([t.pooling is Pooling.SUM for t in problem.tables])
    lookups = INDEX_BYTES * away + LENGTH_BYTES * samples * peers
    vectors = problem.exchange.bytes * dims * np.where(pooled, samples * peers, away)
    return 1e3 * lookups / rate, 1e3 * vectors / rate
