"""What runs in a trial's child processes before anything is timed: planning and bounding."""

import time
from dataclasses import dataclass

from shardbench.base.errors import InvalidPlan
from shardbench.cost.bounds import lower_bound_ms, table_loads
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import seal_test_split

DEVICE_MOVES = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
WHOLE_TABLE_MOVES = frozenset({Move.TABLE, Move.UVM})


@dataclass(frozen=True, kw_only=True)
class Planning:
    """A plan as JSON (it crosses a process boundary unvalidated) and what it took."""

    plan: str
    plan_s: float
    fit_s: float


def plan_sealed(strategy: Strategy, problem: Problem, budget: Budget, seed: int) -> Planning:
    """Fit and plan with the test split sealed, seeing only what the strategy declared.

    Raises InvalidPlan where the strategy returned no Plan or changed the problem.
    """
    seal_test_split()
    before = problem.fingerprint
    seen = problem.restricted_to(strategy.sees)
    fit_s = 0.0
    if type(strategy).fit is not Strategy.fit:
        start = time.perf_counter()
        strategy.fit((seen,), budget, seed)
        fit_s = time.perf_counter() - start
    start = time.perf_counter()
    plan = strategy.plan(seen, budget, seed)
    plan_s = time.perf_counter() - start
    if not isinstance(plan, Plan):
        raise InvalidPlan(f"plan() returned {type(plan).__name__}, not a Plan")
    problem.__dict__.pop("fingerprint", None)
    if problem.fingerprint != before:
        raise InvalidPlan("the strategy changed the problem it was given")
    return Planning(plan=plan.to_json(), plan_s=plan_s, fit_s=fit_s)


def simulated_bounds(problem: Problem, batches: Batches) -> tuple[float, float]:
    """Lower bounds (any device move, whole tables) on the slowest rank's mean embedding ms."""
    loads = [table_loads(problem, lambda i, n=n: batches.bags(n, i)) for n in range(len(batches.numbers))]  # type: ignore[misc]
    return (
        lower_bound_ms(loads, problem.machine, DEVICE_MOVES),
        lower_bound_ms(loads, problem.machine, WHOLE_TABLE_MOVES),
    )
