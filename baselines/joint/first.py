"""A plan before anything is counted: tables each where least is looked up among the devices with room."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.costmodel import estimate
from shardbench.model.constraints import memories, sharding_type
from shardbench.model.plan import OnRank, Plan, RowWise, Segment, Tier, row_ranges
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling, Table

from .limits import Limits
from .links import Links
from .memory import FULL

KERNEL_READS = 3.0
"""Times that a step's kernels read or write a row that is looked up."""
Form = tuple[Ints, bool, tuple[tuple[int, Tier], ...]]
"""Bytes of HBM and host memory on a device, [2]; whether all devices have a part; ends of rows and where these are."""


@dataclass(frozen=True)
class FirstPlan:
    """Tables on one device each, and tables dealt over all devices."""

    segments: tuple[Segment, ...]

    def broken(self, limits: Limits, problem: Problem) -> int:
        """Return the number of tables that are in a form that limits do not allow."""
        by_table = Plan(world_size=problem.world_size, segments=self.segments).by_table()
        return sum(
            not limits.allow(table, sharding_type(by_table[table.name], table, problem.topology), memories(segments))
            for table in problem.tables
            if limits.name(table) and (segments := by_table[table.name])
        )

    def whole_ms(self, problem: Problem) -> float:
        """Return the milliseconds of the whole step."""
        return estimate(Plan(world_size=problem.world_size, segments=self.segments), problem).step_ms


def first_plan(problem: Problem, moves: frozenset[Move]) -> FirstPlan | None:
    """Return a plan of tables on one device each, and dealt over all where no device has room; None without room.

    The dearest tables come first; where so not all find room, the largest.
    """
    sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.float64)
    lookups = problem.batch_size * np.array([profile.mean_pooling for profile in problem.profiles])
    kept = _kept_rows(problem, moves, sizes)
    work_ms = _work_ms(problem, lookups, kept)
    orders = (np.argsort(-work_ms, kind="stable"), np.argsort(-sizes, kind="stable"))
    for by_room, order in product((False, True), orders):
        segments = _packed(problem, moves, order, kept, work_ms, by_room=by_room)
        if segments is not None:
            return FirstPlan(segments)
    return None


def _kept_rows(problem: Problem, moves: frozenset[Move], sizes: Floats) -> list[int]:
    """Return how many hottest rows of each table are in HBM.

    Where there is no room for all, rows never seen are in host memory, those of fewest expected lookups a byte first.
    """
    kept, room = [table.rows for table in problem.tables], FULL * problem.world_size * problem.topology.hbm_bytes
    if sizes.sum() <= room or not moves >= {Move.ROWS, Move.UVM}:
        return kept
    seen = np.array([max(profile.seen_rows, 1) for profile in problem.profiles])
    cold_bytes = sizes * (1.0 - seen / kept)
    unseen = np.array([profile.unseen_share * profile.mean_pooling for profile in problem.profiles])
    columns = np.array([table.dim for table in problem.tables])
    order = np.argsort(-unseen * columns / np.maximum(cold_bytes, 1.0), kind="stable")
    is_cold = np.cumsum(cold_bytes[order]) + (sizes - cold_bytes).sum() > room
    for index in order[is_cold].tolist():
        kept[index] = int(seen[index])
    return kept


def _work_ms(problem: Problem, lookups: Floats, kept: list[int]) -> Floats:
    """Return roughly how many milliseconds each table takes on one device: kernels and exchanges, [tables]."""
    constants, tables = problem.machine.constants, problem.tables
    columns, features = np.array([(table.dim, table.features) for table in tables], dtype=np.float64).T
    unpooled = np.array([table.pooling is Pooling.NONE for table in tables])
    vectors = np.where(unpooled, lookups, problem.batch_size * features)
    is_cut = np.array([rows < table.rows for rows, table in zip(kept, tables)])
    host_share = is_cut * np.array([profile.unseen_share for profile in problem.profiles])
    a_byte_s = (1.0 - host_share) / constants.hbm_bytes_per_s + host_share / constants.uvm_bytes_per_s
    kernels_s = KERNEL_READS * lookups * columns * problem.precision.bytes * a_byte_s
    exchanged_bytes = lookups * INDEX_BYTES + 2.0 * vectors * columns * problem.exchange.bytes
    return np.asarray(1e3 * kernels_s + exchanged_bytes * Links(problem).exchanged)


def _packed(
    problem: Problem, moves: frozenset[Move], order: Ints, kept: list[int], work_ms: Floats, *, by_room: bool
) -> tuple[Segment, ...] | None:
    """Place tables in this order, each on the device of least work, or ``by_room`` of most room; None without room."""
    topology, segments = problem.topology, list[Segment]()
    room = np.repeat([[topology.hbm_bytes], [topology.uvm_bytes * (Move.UVM in moves)]], problem.world_size, axis=1)
    placed_ms = np.zeros(problem.world_size)
    for index in order.tolist():
        table = problem.tables[index]
        for needs, dealt, ends in _forms(table, kept[index], problem, moves):
            fits = (room >= needs[:, None]).all(axis=0)
            if not (fits.all() if dealt else fits.any()):
                continue
            rank = int(np.where(fits, -room[0] if by_room else placed_ms, np.inf).argmin())
            at = slice(None) if dealt else slice(rank, rank + 1)
            room[:, at] -= needs[:, None]
            placed_ms[at] += work_ms[index] / (problem.world_size if dealt else 1)
            ranks = tuple(range(problem.world_size))
            segments += row_ranges(
                table,
                *(
                    (end, RowWise(ranks=ranks, tier=tier) if dealt else OnRank(rank=rank, tier=tier))
                    for end, tier in ends
                ),
            )
            break
        else:
            return None
    return tuple(segments)


def _forms(table: Table, kept: int, problem: Problem, moves: frozenset[Move]) -> Iterator[Form]:
    """Yield the forms of a table: with so many rows in HBM and the rest in host memory, else all in one of them."""
    world, row_bytes = problem.world_size, problem.weight_bytes(table) // table.rows
    if kept < table.rows:
        needs = row_bytes * np.array([kept, table.rows - kept])
        yield needs, False, ((kept, Tier.HBM), (table.rows, Tier.UVM))
    for tier, one in zip((Tier.HBM, Tier.UVM), np.eye(2, dtype=np.int64)):
        yield row_bytes * table.rows * one, False, ((table.rows, tier),)
        if Move.ROWS in moves and 1 < world <= table.rows:
            yield row_bytes * -(-table.rows // world) * one, True, ((table.rows, tier),)
