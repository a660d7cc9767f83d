"""TorchRec's own EmbeddingShardingPlanner, asked on the same problem and machine."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from shardbench.base.errors import Infeasible
from shardbench.model.plan import Plan, ShardingGroups, copied_by_group
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

IN_GROUP = ("table_wise", "column_wise", "row_wise", "data_parallel")
"""Sharding types in a group, which is described as one node: table-row-wise and the like are no types of their own."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the planner may choose from, and whether it is told what it chooses for."""

    types: tuple[str, ...]
    """The sharding types that it chooses from."""
    first_only: bool = False
    """True where a table is offered the first of the types that it can have, and no other."""
    caches: bool = True
    """False where host memory has no cache."""
    blind: bool = False
    """True where the planner is told neither batch size nor lengths, and offered no host memory."""


class _TorchRecPlanner(Strategy):
    """TorchRec's planner with a fixed set of sharding types; README.md lists the deviations."""

    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    requires = ("torchrec", "fbgemm_gpu")
    offer: ClassVar[Offer]

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the planner's best plan (it has no randomness); raises Infeasible where it finds none.

        The budget is enforced from outside: the planner's own time limit does not bound it.
        """
        # Imported late: torchrec takes seconds to import, and listing strategies must stay cheap.
        from shardbench.baselines.torchrec_planner.planner import ask  # noqa: PLC0415
        from shardbench.engine.torchrec.sharding import translate  # noqa: PLC0415

        # deviation 1: blocks of rows become rows that are dealt
        return translate(ask(problem, self.offer), problem)


class TorchRecTableWise(_TorchRecPlanner):
    """Whole tables only: the planner's partitioner and cost estimates without its large search space."""

    name = "torchrec-table-wise"
    moves = frozenset({Move.TABLE, Move.UVM, Move.CACHE})
    offer = Offer(types=("table_wise",))


class TorchRecFused(_TorchRecPlanner):
    """All sharding types it enumerates by itself, with fused kernels in HBM or host memory, cached or not."""

    name = "torchrec-fused"
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM, Move.CACHE})
    offer = Offer(
        types=("table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "data_parallel")
    )


class TorchRecAsMlperf(TorchRecFused):
    """The planner as MLPerf's DLRMv4 asks it: in HBM, and by its defaults of 512 samples a rank and a lookup each."""

    name = "torchrec-as-mlperf"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE})
    offer = replace(TorchRecFused.offer, blind=True)


class TorchRec2D(_TorchRecPlanner):
    """TorchRec's 2D parallelism: its planner's plan for a sharding group, copied to all, copies averaged each step."""

    name = "torchrec-2d"
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
    offer = Offer(types=IN_GROUP, caches=False)  # deviation 16

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the copied plan (no randomness); raises Infeasible where the planner finds none for any group.

        Where the machine has no two groups the plan is for one of all ranks, without copies.
        """
        last_error: Infeasible | None = None
        for size in group_sizes(problem):
            try:
                return copy_to_groups(super().plan(one_group(problem, size), budget, seed), problem)
            except Infeasible as error:
                last_error = error
        if last_error is not None:
            raise last_error
        return super().plan(problem, budget, seed)


class TorchRec2DTableWise(TorchRec2D):
    """Whole tables on the devices of a sharding group, the same in every group."""

    name = "torchrec-2d-table-wise"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE, Move.REPLICATE, Move.UVM})
    offer = Offer(types=("table_wise",), caches=False)


class TorchRec2DRowWise(TorchRec2D):
    """Rows dealt over a sharding group's devices, the same in every group; whole tables where rows are too few."""

    name = "torchrec-2d-row-wise"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE, Move.ROWS, Move.REPLICATE, Move.UVM})
    offer = Offer(types=("row_wise", "table_wise"), first_only=True, caches=False)


def group_sizes(problem: Problem) -> list[int]:
    """Return the sizes of sharding groups to try, the smallest first; none where one group alone is possible.

    A group is no smaller than a node, and its copies of a row lie inside a node; the devices of the smallest one hold
    all tables with their state, or of the largest where none does (deviation 13).
    """
    world, local = problem.world_size, problem.topology.devices_per_node
    sizes = [world // copies for copies in range(local, 1, -1) if local % copies == 0 and world // copies >= local]
    needed = sum(problem.weight_bytes(table) for table in problem.tables)
    return [size for size in sizes if needed <= size * problem.topology.hbm_bytes] or sizes[-1:]


def one_group(problem: Problem, size: int) -> Problem:
    """Return the problem as a sharding group sees it: its devices on one node, and its ranks' share of the batch.

    Nothing in it tells the planner that groups span nodes, nor what the copies cost to average (deviations 12 and 14).
    """
    topology = replace(problem.topology, nodes=1, devices_per_node=size)
    machine = replace(problem.machine, topology=topology)
    batch_size = problem.batch_size // problem.world_size * size
    return replace(problem, machine=machine, topology=topology, batch_size=batch_size)


def copy_to_groups(plan: Plan, problem: Problem) -> Plan:
    """Turn a plan for one group's devices into one for all: every group has a copy of what it places."""
    # Interleaved, and averaged after every step, as TorchRec does unless it is told otherwise. Weights alone are
    # averaged (deviation 10), in one collective (deviation 11).
    groups = ShardingGroups(size=plan.world_size, interleaved=True)
    notes = {**plan.notes, "group_size": groups.size, "sync_every": groups.sync_every}
    return replace(copied_by_group(plan, problem.world_size, groups), notes=notes)


def strategies() -> Iterable[Strategy]:
    """Return one strategy for each set of sharding types, in one group of all ranks or in several; one plans blind."""
    return (
        TorchRecTableWise(),
        TorchRecFused(),
        TorchRecAsMlperf(),
        TorchRec2D(),
        TorchRec2DTableWise(),
        TorchRec2DRowWise(),
    )
