"""Local search: how fast a plan of whole tables could be, found by plain local search."""

import time
from collections.abc import Iterable

import numpy as np

from shardbench.base.errors import Infeasible
from shardbench.cost.bounds.embedding import whole_table_bound_ms
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

from .local_search import WorkLimit, search
from .tables import TIERS, Tables

CANDIDATES = 2_000_000
"""Rated changes in all: they and the kicks end the search, not the clock, so that a seed gives one plan."""
CLOCK_SHARE = 0.9
"""Share of the planning budget after which the clock ends the search after all."""


class Search(Strategy):
    """Local search (moves and swaps of whole tables) against the cost model on the training profiles."""

    name = "search"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.UVM})
    role = Role.SEARCH

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Give the best plan found; its notes hold the first start's, its own and the proven bound's time.

        They also say what ended the search, and how many changes it rated. Raises Infeasible where no start fits.
        """
        effort = WorkLimit(candidates=CANDIDATES, deadline=time.monotonic() + CLOCK_SHARE * budget.plan_s)
        tables = Tables(problem)
        floor_ms = whole_table_bound_ms(tables.loads, problem, self.moves)
        outcome = search(tables, effort, seed, floor_ms * (1.0 + 1e-6))
        if outcome is None and not tables.uvm:
            # They fit in sum, but not one by one.
            tables = Tables(problem, uvm=True)
            outcome = search(tables, effort, seed, floor_ms * (1.0 + 1e-6))
        if outcome is None:
            raise Infeasible(
                f"none of the starts fits {int(tables.sizes.sum())} bytes of tables, "
                f"the largest of {int(np.max(tables.sizes))}"
            )
        best = outcome.best
        return Plan(
            world_size=problem.world_size,
            segments=whole_tables(problem.tables, best.rank.tolist(), [TIERS[i] for i in best.tier]),
            notes={
                "start_ms": outcome.start_ms,
                "slowest_ms": tables.slowest_ms(best.rank, best.tier),
                "lower_bound_ms": floor_ms,
                "rated": effort.rated,
                "ended_by": outcome.reason,
            },
        )


def strategies() -> Iterable[Strategy]:
    """Give the one strategy of this folder."""
    return (Search(),)
