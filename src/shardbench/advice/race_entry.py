"""Who enters a race: the distinct plans of all strategies that answered, and the runners-up of those that have some."""

import logging
from collections.abc import Sequence

from shardbench.advice.best_plan import Candidate, PlanSearch, contents_hash
from shardbench.advice.constrained import evaluate_under
from shardbench.model.constraints import ANY_PLAN, Constraints
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure
from shardbench.trials.discovery import HandedPlan, missing_modules, strategies
from shardbench.trials.planning import traits_of
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import closed_test_split
from shardbench.workloads.workload import Workload

_LOG = logging.getLogger(__name__)
RUNNERS_UP = 3
"""Plans of a strategy beside its best one that are raced."""


def entrants() -> list[Strategy]:
    """List the installed strategies that run without being named and miss nothing here, learned ones among them."""
    return [each for each in strategies().values() if not (each.role.named_only or missing_modules(each))]


def gather_candidates(
    search: PlanSearch,
    workload: Workload,
    strategies: Sequence[Strategy],
    *,
    constraints: Constraints = ANY_PLAN,
    budget_s: float = 30.0,
    seed: int = 0,
) -> tuple[Candidate, ...]:
    """Return a search's candidates and, from strategies that give several plans, the runners-up, best predicted first.

    Runners-up are planned within ``budget_s`` seconds, take the names ``joint-2``, ``joint-3`` and so on, and are left
    out where they break a rule or a constraint. Of equal plans, whatever their notes, the first one counts.
    """
    names = {one.name for one in search.candidates}
    several = [one for one in strategies if traits_of(one).several and one.name in names]
    problem = constraints.applied(search.problem)
    by_hash = {contents_hash(one.plan): one for one in reversed(search.candidates)}
    question = CountedQuestion(problem, DrawnBatches(workload), workload.dense)
    for strategy in several:
        budget = Budget(plan_s=budget_s / len(several))
        for number, plan in enumerate(_runners_up(strategy, problem, budget, seed), 2):
            runner_up = HandedPlan(f"{strategy.name}-{number}", plan)
            answer = evaluate_under(constraints, question, runner_up, budget, seed, slack=1.0)
            if not isinstance(answer, Failure) and runner_up.name not in names:
                one = Candidate(name=runner_up.name, plan=answer.plan, step_ms=answer.judged.step_ms)
                by_hash.setdefault(contents_hash(one.plan), one)
    return tuple(sorted(by_hash.values(), key=lambda one: one.step_ms))


def _runners_up(strategy: Strategy, problem: Problem, budget: Budget, seed: int) -> tuple[Plan, ...]:
    """Return the runners-up; a strategy that fails to give them is said to, as its best plan is there already."""
    with closed_test_split():
        try:
            return strategy.plans(problem.restricted_to(strategy.sees), budget, seed, 1 + RUNNERS_UP)[1:]
        except Exception as error:
            _LOG.warning("%s gives no runners-up: %s: %s", strategy.name, type(error).__name__, error)
            return ()
