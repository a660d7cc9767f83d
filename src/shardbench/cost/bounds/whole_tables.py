"""Bounds the step of a plan of whole tables, which is longer because tables cannot be cut.

The bound of ``bounds.embedding`` holds for the sum of the forward and backward phases, which end with their slowest
ranks. A device sends the vectors of the tables it holds and receives their lookups, which takes at least their bytes
over one link: in the mean over devices, and by the pigeonhole principle for k + 1 of any k W + 1 tables. Where links
are not duplex (``collectives.moved``) a device is busy with at least half of what it sends; the mean is the same, as
what is sent is received. Calls are the same for all, and so is what a rank puts in place to send: each of its lookups
once; and what it converts of its samples' vectors, where they travel in another format than fp32. A device converts
those of its tables as well. So the step takes at least the sum of these, and as much as k + 1 tables take in all phases
together, the copies around their kernels with them. A pipeline may hide what is put in place to be sent and the bytes
of lookups, as ``hides_sources`` says.
"""

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
