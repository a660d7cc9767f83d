"""TorchRec's own EmbeddingShardingPlanner, asked on the same problem and machine."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from shardbench.model.plan import NodeSharded, OnLocalRank, OnRank, Placement, Plan, Replicated, RowWise
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

IN_GROUP = ("table_wise", "column_wise", "row_wise", "data_parallel")
"""Sharding types in a group that is one node, where table-row-wise and table-column-wise are no types of their own."""


class _TorchRecPlanner(Strategy):
    """TorchRec's planner with a fixed set of sharding types; README.md lists the deviations."""

    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    requires = ("torchrec", "fbgemm_gpu")
    sharding_types: ClassVar[tuple[str, ...]]
    first_only: ClassVar[bool] = False
    """True where a table is offered the first of the types that it can have, and no other."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the planner's best plan (it has no randomness); raises Infeasible where it finds none.

        The budget is enforced from outside: the planner's own time limit does not bound it.
        """
        # Imported late: torchrec takes seconds to import, and listing strategies must stay cheap.
        from shardbench.baselines.torchrec_planner.planner import ask  # noqa: PLC0415
        from shardbench.baselines.torchrec_planner.translate import translate  # noqa: PLC0415

        return translate(ask(problem, self.sharding_types, first_only=self.first_only), problem)


class TorchRecTableWise(_TorchRecPlanner):
    """Whole tables only: the planner's partitioner and cost estimates without its large search space."""

    name = "torchrec-table-wise"
    moves = frozenset({Move.TABLE, Move.UVM, Move.CACHE})
    sharding_types = ("table_wise",)


class TorchRecFused(_TorchRecPlanner):
    """All sharding types it enumerates by itself, with fused kernels in HBM or host memory, cached or not."""

    name = "torchrec-fused"
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM, Move.CACHE})
    sharding_types = (
        "table_wise",
        "column_wise",
        "table_column_wise",
        "row_wise",
        "table_row_wise",
        "data_parallel",
    )


class TorchRec2D(_TorchRecPlanner):
    """TorchRec's 2D parallelism: its planner's plan for one node, copied to every node, copies averaged each step."""

    name = "torchrec-2d"
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM, Move.CACHE})
    sharding_types: ClassVar[tuple[str, ...]] = IN_GROUP

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the copied plan (no randomness); raises Infeasible where the planner finds none for one node."""
        return copied(super().plan(one_node(problem), budget, seed), problem)


class TorchRec2DTableWise(TorchRec2D):
    """Whole tables on the devices of a node, the same on every node."""

    name = "torchrec-2d-table-wise"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE, Move.REPLICATE, Move.UVM, Move.CACHE})
    sharding_types = ("table_wise",)


class TorchRec2DRowWise(TorchRec2D):
    """Rows dealt over the devices of a node, the same on every node; whole tables where there are too few rows."""

    name = "torchrec-2d-row-wise"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE, Move.ROWS, Move.REPLICATE, Move.UVM, Move.CACHE})
    sharding_types = ("row_wise", "table_wise")
    first_only = True


def one_node(problem: Problem) -> Problem:
    """Return the problem as a group sees it: one node's devices, and the share of the batch that its ranks have.

    Nothing in it tells the planner what the copies cost to average (deviation 12).
    """
    topology = replace(problem.topology, nodes=1)
    machine = replace(problem.machine, topology=topology)
    batch_size = problem.batch_size // problem.topology.nodes
    return replace(problem, machine=machine, topology=topology, batch_size=batch_size)


def copied(plan: Plan, problem: Problem) -> Plan:
    """Turn a plan for one node's devices into one for all: every node has a copy of what it places.

    On a machine of one node, which has one group, the plan stays as it is.
    """
    if problem.topology.nodes == 1:
        return plan
    segments = tuple(replace(s, placement=_copied(s.placement, problem)) for s in plan.segments)
    return replace(plan, world_size=problem.world_size, segments=segments)


def _copied(place: Placement, problem: Problem) -> Placement:
    # Weights alone are averaged, after every step (deviation 10), in one collective (deviation 11).
    if isinstance(place, OnRank):
        return OnLocalRank(local_rank=place.rank, tier=place.tier, cache_ratio=place.cache_ratio)
    if isinstance(place, RowWise):  # over all ranks of the group
        return NodeSharded(tier=place.tier, cache_ratio=place.cache_ratio)
    # Data-parallel tables are all-reduced over all ranks, in 2D as without it.
    return Replicated(ranks=tuple(range(problem.world_size)))


def strategies() -> Iterable[Strategy]:
    """Return one strategy for each set of sharding types, in one group of all ranks or in a group for each node."""
    return (TorchRecTableWise(), TorchRecFused(), TorchRec2D(), TorchRec2DTableWise(), TorchRec2DRowWise())
