"""TorchRec's own EmbeddingShardingPlanner, asked on the same problem and machine."""

from collections.abc import Iterable
from typing import ClassVar

from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy


class _TorchRecPlanner(Strategy):
    """TorchRec's planner with a fixed set of sharding types; see README.md for the deviations."""

    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    requires = ("torchrec", "fbgemm_gpu")
    sharding_types: ClassVar[tuple[str, ...]]

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The planner's best plan (it has no randomness); raises Infeasible where it finds none.

        The budget is enforced from outside: the planner's own time limit does not bound it.
        """
        # Imported late: torchrec takes seconds to import, and listing strategies must stay cheap.
        from shardbench.baselines.torchrec_planner.planner import ask  # noqa: PLC0415
        from shardbench.baselines.torchrec_planner.translate import translate  # noqa: PLC0415

        return translate(ask(problem, self.sharding_types), problem)


class TorchRecTableWise(_TorchRecPlanner):
    """Whole tables only: the planner's partitioner and cost estimates without its large search space."""

    name = "torchrec-table-wise"
    moves = frozenset({Move.TABLE, Move.UVM})
    sharding_types = ("table_wise",)


class TorchRecFused(_TorchRecPlanner):
    """All sharding types it enumerates by itself, with fused kernels in HBM or host memory."""

    name = "torchrec-fused"
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
    sharding_types = (
        "table_wise",
        "column_wise",
        "table_column_wise",
        "row_wise",
        "table_row_wise",
        "data_parallel",
    )


def strategies() -> Iterable[Strategy]:
    """One strategy per set of sharding types."""
    return (TorchRecTableWise(), TorchRecFused())
