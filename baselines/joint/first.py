"""A plan before anything is counted: whole tables, each where least is looked up among the devices with room."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.costmodel import estimate
from shardbench.model.plan import OnRank, Plan, RowWise, Segment, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling

from .limits import Limits
from .links import Links

KERNEL_READS = 3.0
"""Times that a step's kernels read or write a row that is looked up."""


@dataclass(frozen=True)
class FirstPlan:
    """Whole tables, and tables dealt over all devices."""

    segments: tuple[Segment, ...]

    def broken(self, limits: Limits) -> int:
        """Return the number of tables that are in a form that limits do not allow."""
        return sum(not limits.allow_whole(segment) for segment in self.segments)

    def whole_ms(self, problem: Problem) -> float:
        """Return the milliseconds of the whole step."""
        return estimate(Plan(world_size=problem.world_size, segments=self.segments), problem).step_ms


def first_plan(problem: Problem, moves: frozenset[Move]) -> FirstPlan | None:
    """Return a plan of whole tables, and of tables dealt over all devices where no device has room; None without room.

    The dearest tables come first where all rows fit HBM, else those that are dearest by byte; where so not all find
    room, the largest.
    """
    sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.float64)
    work_ms = _work_ms(problem)
    fits = sizes.sum() <= problem.world_size * problem.topology.hbm_bytes
    orders = [np.argsort(-work_ms / (1.0 if fits else sizes), kind="stable"), np.argsort(-sizes, kind="stable")]
    for by_room, order in product((False, True), orders):
        segments = _packed(problem, moves, order.tolist(), work_ms, by_room=by_room)
        if segments is not None:
            return FirstPlan(segments)
    return None


def _work_ms(problem: Problem) -> Floats:
    """Return roughly how many milliseconds each table takes on one device: kernels and exchanges, [tables]."""
    links, pairs = Links(problem), zip(problem.tables, problem.profiles)
    rows = np.array([(profile.mean_pooling, table.dim, table.features) for table, profile in pairs])
    pooling, columns, features = rows.T
    unpooled = np.array([table.pooling is Pooling.NONE for table in problem.tables])
    lookups, vectors = pooling * problem.batch_size, np.where(unpooled, pooling, features) * problem.batch_size
    kernels = KERNEL_READS * lookups * columns * problem.precision.bytes / problem.machine.constants.hbm_bytes_per_s
    exchanged_bytes = lookups * INDEX_BYTES + 2.0 * vectors * columns * problem.exchange.bytes
    return np.asarray(1e3 * kernels + exchanged_bytes * links.exchanged)


def _packed(
    problem: Problem, moves: frozenset[Move], order: Iterable[int], work_ms: Floats, *, by_room: bool
) -> tuple[Segment, ...] | None:
    """Place tables in this order, each on the device of least work, or ``by_room`` of most room; None without room."""
    world, topology = problem.world_size, problem.topology
    room = {Tier.HBM: np.full(world, topology.hbm_bytes), Tier.UVM: np.full(world, topology.uvm_bytes)}
    tiers = [Tier.HBM, Tier.UVM] if Move.UVM in moves else [Tier.HBM]
    placed_ms, segments = np.zeros(world), list[Segment]()
    for index in order:
        table = problem.tables[index]
        size = problem.weight_bytes(table)
        dealt = -(-table.rows // world) * (size // table.rows)
        for tier, dealing in product(tiers, (False, True)):
            free = room[tier]
            if dealing and Move.ROWS in moves and 1 < world <= table.rows and free.min() >= dealt:
                free -= dealt
                segments.append(whole_table(table, RowWise(ranks=tuple(range(world)), tier=tier)))
                break
            if not dealing and free.max() >= size:
                rank = int(np.where(free >= size, -free if by_room else placed_ms, np.inf).argmin())
                free[rank] -= size
                placed_ms[rank] += work_ms[index]
                segments.append(whole_table(table, OnRank(rank=rank, tier=tier)))
                break
        else:
            return None
    return tuple(segments)
