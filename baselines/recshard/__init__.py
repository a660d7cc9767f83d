"""RecShard: every table split by access frequency over HBM and UVM, placed by a mixed-integer program."""

import time
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Plan, Segment, Tier, row_ranges
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

from .search import ProvenPlan, minimise
from .steps import Statistics, expected_share, make_steps

BUDGET_SHARE = 0.8
"""Share of the planning budget after which the search ends: what is left is for the plan itself."""
INT32_ROWS = 1 << 31
"""Rows up to which a split table's map from row to place (below or above the cut) is 4 bytes a row, beyond it 8."""


class RecShard(Strategy):
    """Rows split over HBM and UVM by access frequency, tables placed by a mixed-integer program (ASPLOS 2022)."""

    name = "recshard"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.ROWS, Move.UVM})
    statistics: ClassVar[Statistics] = Statistics.ALL
    expects_unseen: ClassVar[bool] = False
    """True where rows that the sample never saw count with the accesses that they are expected to get."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the best plan found in 80 % of the budget; its notes hold its time, the proven bound and their gap.

        ``predicted_slowest_ms`` and ``expected_hbm_share`` are of the sample's accesses: rows that it never
        saw are left out, unless ``expects_unseen``; ``unseen_rows`` says which, and
        ``unseen_rows_lookups_share`` what share of new lookups they are expected to get.

        Raises Infeasible where there is no plan or no access profile, TimeoutError where none was
        found in time. The seed decides the order of the packings that the search starts from.
        """
        deadline = time.monotonic() + BUDGET_SHARE * budget.plan_s
        _check_profiles(problem)
        steps = make_steps(problem, self.statistics, expects_unseen=self.expects_unseen)
        proven_plan = minimise(steps, problem, seed, deadline)
        return Plan(
            world_size=problem.world_size,
            segments=_segments(problem, proven_plan),
            notes=self._notes(problem, proven_plan),
        )

    def _notes(self, problem: Problem, plan: ProvenPlan) -> dict[str, float | int | str]:
        profiles, hot = problem.profiles, plan.rows
        lookups = np.array([profile.mean_pooling for profile in profiles])
        hbm_shares = [
            float(expected_share(profile, rows, expects_unseen=self.expects_unseen))
            for profile, rows in zip(profiles, hot, strict=True)
        ]
        unseen = np.array([profile.unseen_share for profile in profiles])
        rows = np.array([table.rows for table in problem.tables])
        split = rows[(hot > 0) & (hot < rows)]
        return {
            "statistics": self.statistics.value,
            "predicted_slowest_ms": plan.slowest_ms,
            "proven_bound_ms": plan.bound_ms,
            "gap_pct": 100.0 * plan.gap,
            "status": plan.status,
            "expected_hbm_share": _mean(np.array(hbm_shares), lookups, otherwise=1.0),
            "unseen_rows": "counted" if self.expects_unseen else "left out",
            "unseen_rows_lookups_share": _mean(unseen, lookups, otherwise=0.0),
            "remap_bytes": int((split * np.where(split <= INT32_ROWS, 4, 8)).sum()),
        }


def _mean(shares: Floats, weights: Floats, otherwise: float) -> float:
    return min(1.0, float(weights @ shares) / float(weights.sum())) if weights.any() else otherwise


class RecShardCdf(RecShard):
    """Ablation of RecShard: the access CDFs alone, every table looked up once a sample."""

    name = "recshard-cdf"
    role = Role.VARIANT
    statistics = Statistics.CDF


class RecShardCdfCoverage(RecShard):
    """Ablation of RecShard: CDFs and coverage, one lookup in every sample that has the feature."""

    name = "recshard-cdf-coverage"
    role = Role.VARIANT
    statistics = Statistics.CDF_COVERAGE


class RecShardCdfPooling(RecShard):
    """Ablation of RecShard: CDFs and mean pooling factors, every feature present in every sample."""

    name = "recshard-cdf-pooling"
    role = Role.VARIANT
    statistics = Statistics.CDF_POOLING


class RecShardUnseen(RecShard):
    """RecShard that expects accesses to rows that its sample never saw (Good-Turing): ours, not the paper's."""

    name = "recshard-unseen"
    role = Role.VARIANT
    expects_unseen = True


def _check_profiles(problem: Problem) -> None:
    # A problem without profiles carries blank ones: one sample in which nothing was looked up.
    blank = [profile.lookups == 0 and profile.samples == 1 for profile in problem.profiles]
    if all(blank):
        raise Infeasible("no access profile: no table was looked up in the training sample; profile the train split")
    # A feature that no sample of many has is a statistic; one that nobody counted is none. Samples
    # may differ in number from table to table: all that is used of a profile is a share or a mean.
    if any(blank):
        name = problem.tables[blank.index(True)].name
        raise Infeasible(
            f"no access profile of table '{name}' ({sum(blank)} of {len(blank)} tables have none); "
            "profile the train split for every table"
        )


def _segments(problem: Problem, plan: ProvenPlan) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for table, rank, hot in zip(problem.tables, plan.best.device.tolist(), plan.rows.tolist(), strict=True):
        uvm = OnRank(rank=rank, tier=Tier.UVM)
        segments += row_ranges(table, (hot, OnRank(rank=rank)), (table.rows, uvm))
    return tuple(segments)


def strategies() -> Iterable[Strategy]:
    """Return RecShard, and RecShard without some of its statistics."""
    return (RecShard(), RecShardCdf(), RecShardCdfCoverage(), RecShardCdfPooling(), RecShardUnseen())
