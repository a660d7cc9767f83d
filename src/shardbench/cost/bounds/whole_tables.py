"""Bounds the step of plans of whole tables, which is longer as these are not cut: lemma 13 of ``docs/bounds.md``."""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds.demand import Demand
from shardbench.cost.bounds.embedding import by_tier, pigeonhole_ms, whole_table_bound_ms
from shardbench.cost.bounds.step_kernels import conversion_s, hides_sources
from shardbench.cost.costmodel import placing_backward_s, placing_forward_s, work_ms
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling


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
