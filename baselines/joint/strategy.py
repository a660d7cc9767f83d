"""The planner's course: memory, menu, relaxation, packing, exchanges."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy
from shardbench.model.table import StepSchedule

from .expected import as_expected
from .menu import BRIEF_MENU, FULL_MENU, LEAN_MENU, WIDE_MENU
from .planner import WorkLeft
from .robust import Rating, pooled, ranked
from .search import Search
from .state import PlanState

LEAN_TABLE_S = 2e-3
"""Seconds a table below which a budget is too short for the lean menu."""
SPENT_SHARE, LATEST_SHARE = 0.5, 0.85
"""Shares of the budget that counted work may nominally take, and after which the search stops in any case."""


class Joint(Strategy):
    """All device moves at once, table by table, for the shortest step that the cost model predicts."""

    name = "joint"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
    exchanges: ClassVar[bool] = True
    """True where packings are improved by exchanges."""
    rating: ClassVar[Rating] = Rating.MEAN
    """What the plan is chosen by among those that the searches saw."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the best plan found; all draws are the same every time.

        Its notes hold the first plan's step, its own step, and the reason that the search ended.

        Raises Infeasible where no start fits.
        """
        return self.plans(problem, budget, seed, 1)[0]

    def plans(self, problem: Problem, budget: Budget, seed: int, most: int) -> tuple[Plan, ...]:
        """Return ``plan``'s plan and other good ones that the searches saw, at most ``most``, best first.

        Raises Infeasible where no start fits.
        """
        seen_rows = [profile.seen_rows for profile in problem.profiles]
        problem = as_expected(problem)
        deadline = time.monotonic() + LATEST_SHARE * budget.plan_s
        # What a pipeline hides depends on all tables at once. A plan that hides nothing is often short as well, so that
        # half of the work goes into one.
        problems = [problem]
        if problem.schedule is StepSchedule.PIPELINED:
            problems.append(replace(problem, schedule=StepSchedule.SEQUENTIAL))
        searches = [self._search(one, seen_rows, budget.plan_s / len(problems), deadline) for one in problems]
        seen = [plan for one in searches for plan in one.seen]
        pool = pooled(problem, seen)
        ordered = ranked(problem, pool, self.rating, budget.plan_s, deadline)
        nominal = PlanState(problem)
        notes: dict[str, float | int | str] = {"first_ms": searches[0].first_ms, "ended_by": searches[0].ended_by}
        return tuple(
            Plan(
                world_size=problem.world_size,
                segments=plan.segments,
                notes={**notes, "predicted_ms": plan.under(nominal).times().step_ms},
            )
            for plan in ordered[:most]
        )

    def _search(self, problem: Problem, seen_rows: Sequence[int], plan_s: float, deadline: float) -> Search:
        extents = [LEAN_MENU, FULL_MENU, WIDE_MENU]
        if plan_s < LEAN_TABLE_S * len(problem.tables):
            extents = [BRIEF_MENU]
        work = WorkLeft(nominal_s=SPENT_SHARE * plan_s, deadline=deadline)
        search = Search(problem, self.moves, seen_rows, work, exchanges=self.exchanges)
        search.run(extents)
        return search


class Variant(Joint):
    """The planner with something taken away, to show what each part of it gains.

    It is one that runs only where a suite or study names it.
    """

    role: ClassVar[Role] = Role.VARIANT


class WithoutColumns(Variant):
    """The planner without column ranges."""

    name = "joint-no-columns"
    moves = Joint.moves - {Move.COLUMNS}


class WithoutRows(Variant):
    """The planner with whole tables, their columns and whole copies: no table is dealt or cut by row."""

    name = "joint-no-rows"
    moves = Joint.moves - {Move.ROWS}


class WithoutCopies(Variant):
    """The planner without copies: no row has two places."""

    name = "joint-no-copies"
    moves = Joint.moves - {Move.REPLICATE}


class WithoutHostMemory(Variant):
    """The planner with all rows in HBM."""

    name = "joint-no-uvm"
    moves = Joint.moves - {Move.UVM}


class WholeTables(Variant):
    """The planner with whole tables on one device, and nothing else."""

    name = "joint-whole-tables"
    moves = frozenset({Move.TABLE})


class PackedOnly(Variant):
    """The planner's relaxation and packing, without exchanges."""

    name = "joint-packed-only"
    exchanges: ClassVar[bool] = False


class Nominal(Variant):
    """The planner that takes the shortest step under the constants as they are, whatever ties with it."""

    name = "joint-nominal"
    rating: ClassVar[Rating] = Rating.NOMINAL


class NinetiethPercentile(Variant):
    """The planner that takes the least 90th percentile of steps under draws instead of the least mean."""

    name = "joint-p90"
    rating: ClassVar[Rating] = Rating.P90


VARIANTS = (WithoutColumns, WithoutRows, WithoutCopies, WithoutHostMemory, WholeTables, PackedOnly)
"""The planner without some of its parts."""
RATINGS = (Nominal, NinetiethPercentile)
"""The planner with other ways to choose among the plans that it saw."""
