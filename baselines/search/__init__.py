"""Local search: how fast a plan of whole tables could be, found by plain local search."""

import time
from collections.abc import Iterable

import numpy as np

from shardbench.base.errors import Infeasible
from shardbench.cost.bounds import expected_table_loads, whole_table_bound_ms
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

from .local_search import TIERS, Effort, Tables, search

RESTARTS = 64
CANDIDATES = 15_000_000
"""Rated neighbours in all; decides before the clock does, so that a seed gives one plan."""


class Search(Strategy):
    """Local search (moves and swaps of whole tables) against the cost model on the training profiles."""

    name = "search"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.UVM})
    role = Role.SEARCH

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The best plan found; its notes hold the first start's, its own and the proven bound's time.

        Raises Infeasible where no greedy start fits.
        """
        deadline = time.monotonic() + 0.5 * budget.plan_s
        loads = expected_table_loads(problem)
        tables = Tables(loads, problem, problem.machine.constants)
        floor_ms = whole_table_bound_ms(loads, problem, self.moves)
        effort = Effort(candidates=CANDIDATES, deadline=deadline)
        found, started_ms = search(tables, RESTARTS, effort, seed, floor_ms * (1.0 + 1e-6))
        if found is None:
            raise Infeasible(
                f"none of {RESTARTS} greedy starts fits {int(tables.sizes.sum())} bytes of tables, "
                f"the largest of {int(np.max(tables.sizes))}"
            )
        return Plan(
            world_size=problem.world_size,
            segments=whole_tables(problem.tables, found.rank, [TIERS[i] for i in found.tier]),
            notes={"start_ms": started_ms, "slowest_ms": found.slowest_ms, "lower_bound_ms": floor_ms},
        )


def strategies() -> Iterable[Strategy]:
    """The one strategy of this folder."""
    return (Search(),)
