"""NeuroShard (MLSys 2023): pre-trained cost networks, and a search on them over column splits and placements."""

from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.learned.learner import Learner
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move, Role

CAPS = tuple(1.0 + 0.05 * step for step in range(11))
"""Most that a device's width may be, over the devices' mean."""


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """The defaults are the published ones."""

    beams: int = 3
    """Column plans that are kept after each halving."""
    candidates: int = 10
    """Shards to halve: as many of the largest, and as many of those with the longest predicted kernels."""
    splits: int = 10
    """Halvings at the most."""
    caps: tuple[float, ...] = CAPS


class NeuroShard(Learner):
    """Beam search over column splits, greedy placement over a grid of width caps, rated by pre-trained networks."""

    name = "neuroshard"
    version = 2
    trainings = "shardbench.baselines.neuroshard.training:NeuroShardTraining"
    moves = frozenset({Move.TABLE, Move.COLUMNS})
    # Its samples are as many as the budget has room for, whatever the clock says: a seed gives one plan.
    limit_share = float("inf")
    limits = SearchLimits()

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Give the plan that the networks call the fastest; no randomness.

        Raises Infeasible where no column plan of the search fits, BadInput before ``fit`` and for another number of
        devices than that of the problems fitted on.
        """
        from shardbench.learned.tasks.task import table_set  # noqa: PLC0415

        from .search import plan_shards, segments  # noqa: PLC0415

        shards, column_plan = plan_shards(self.fitted, table_set(problem), self.limits, budget.plan_s)
        return Plan(
            world_size=problem.world_size,
            segments=segments(problem, shards, column_plan),
            notes={**self.notes(), "splits": column_plan.splits, "predicted_ms": column_plan.ms},
        )

    def notes(self) -> dict[str, float | int | str]:
        """Give the table sets that the oracle was asked about, and the epochs."""
        return {"oracle_calls": self.fitted.oracle_calls, "epochs": len(self.fitted.history)}


class NeuroShardUntrained(NeuroShard):
    """The same search on networks as they are drawn: a control."""

    name = "neuroshard-untrained"
    role = Role.VARIANT
    trains = False


class NeuroShardWhole(NeuroShard):
    """The placement alone, without column splits: what they contribute."""

    name = "neuroshard-whole"
    role = Role.VARIANT
    moves = frozenset({Move.TABLE})
    limits = SearchLimits(splits=0)


def strategies() -> Iterable[NeuroShard]:
    """Give NeuroShard, its untrained control, and the variant without column splits."""
    return (NeuroShard(), NeuroShardUntrained(), NeuroShardWhole())
