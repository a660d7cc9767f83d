"""A plan before anything is counted: tables each where least is looked up among the devices with room."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.model.plan import Segment, Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling, Table

from .contributions import Links
from .memory import FULL
from .pieces import Counter, Holders, PieceCut
from .state import PlanState

KERNEL_READS = 3.0
"""Times that a step's kernels read or write a row that is looked up."""
Form = tuple[Ints, Holders, tuple[tuple[int, int, Tier], ...]]
"""Bytes of HBM and host memory on a device, [2]; one device or all; ranges of rows and where these are."""


@dataclass(frozen=True)
class FirstPlan:
    """Tables on one device each, and tables dealt over all devices."""

    problem: Problem
    placed: tuple[tuple[PieceCut, int], ...]
    """Pieces, and the device of each that is on one."""

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all tables."""
        tables, world = self.problem.tables, range(self.problem.world_size)
        return tuple(
            cut.segment(tables[cut.table], [rank] if cut.scope is Holders.RANK else world) for cut, rank in self.placed
        )

    def whole_ms(self, nothing: PlanState) -> float:
        """Return the milliseconds of the whole step under the problem of a state that has nothing placed."""
        counter, state = Counter(nothing.problem), nothing.with_sums(nothing)
        counted = counter.count([cut for cut, _ in self.placed])
        for at, (_, rank) in enumerate(self.placed):
            state.add(counter.piece(counted, at), rank)
        return state.whole_ms


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
        placed = _packed(problem, moves, order, kept, work_ms, by_room=by_room)
        if placed is not None:
            return FirstPlan(problem, placed)
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
) -> tuple[tuple[PieceCut, int], ...] | None:
    """Place tables in this order, each on the device of least work, or ``by_room`` of most room; None without room."""
    topology, placed = problem.topology, list[tuple[PieceCut, int]]()
    room = np.repeat([[topology.hbm_bytes], [topology.uvm_bytes * (Move.UVM in moves)]], problem.world_size, axis=1)
    placed_ms = np.zeros(problem.world_size)
    for index in order.tolist():
        table = problem.tables[index]
        for needs, scope, spans in _forms(table, kept[index], problem, moves):
            fits, dealt = (room >= needs[:, None]).all(axis=0), scope is Holders.WORLD
            if not (fits.all() if dealt else fits.any()):
                continue
            rank = int(np.where(fits, -room[0] if by_room else placed_ms, np.inf).argmin())
            at = slice(None) if dealt else slice(rank, rank + 1)
            room[:, at] -= needs[:, None]
            placed_ms[at] += work_ms[index] / (problem.world_size if dealt else 1)
            # The colder rows of a table are pooled with the hotter ones.
            cuts = (PieceCut(index, scope, start, stop, table.dim, tier, start == 0) for start, stop, tier in spans)
            placed += [(cut, rank) for cut in cuts]
            break
        else:
            return None
    return tuple(placed)


def _forms(table: Table, kept: int, problem: Problem, moves: frozenset[Move]) -> Iterator[Form]:
    """Yield the forms of a table: with so many rows in HBM and the rest in host memory, else all in one of them."""
    world, row_bytes = problem.world_size, problem.weight_bytes(table) // table.rows
    if kept < table.rows:
        needs = row_bytes * np.array([kept, table.rows - kept])
        yield needs, Holders.RANK, ((0, kept, Tier.HBM), (kept, table.rows, Tier.UVM))
    for tier, one in zip((Tier.HBM, Tier.UVM), np.eye(2, dtype=np.int64)):
        yield row_bytes * table.rows * one, Holders.RANK, ((0, table.rows, tier),)
        if Move.ROWS in moves and 1 < world <= table.rows:
            yield row_bytes * -(-table.rows // world) * one, Holders.WORLD, ((0, table.rows, tier),)
