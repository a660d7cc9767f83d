"""Strategies asked one question within one budget, so that there is a plan whatever becomes of some of them.

The cheap ones come first; what they leave is for those with all device moves, and at least FIRST_SHARE of the budget.
Those that require modules, and other people's, plan beside them, in processes of their own. A plan that came late is
kept.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import current_thread, main_thread

from shardbench.advice.constrained import Constrained, evaluate_under
from shardbench.base.deadline import within
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.serialise import content_hash
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.model.constraints import Constraints
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.apart import STARTS_S, Apart
from shardbench.trials.evaluate import WHOLE_TABLE_MOVES, Answer, Planner, evaluate
from shardbench.trials.planning import ours
from shardbench.trials.simulate import CountedQuestion, Simulation

FIRST_SHARE = 0.5
"""Least share of the budget for the strategies with all device moves, which use what they get."""
FLOOR_S = 0.05
"""Least share of a strategy, whatever others took: most plan 200 tables in less."""
SLACK = 2.0
"""Times its share after which a plan is late: a strategy's own clock is coarse where its share is short."""
HURRIED_SHARE = 0.6
"""What a strategy with all device moves is told of its share, where it must be judged within that too."""
YOURS = "yours"
"""The name of the user's own plan among the others."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What asking a strategy came to; ``step_ms`` is None where it has no plan, and ``cause`` says why."""

    strategy: str
    plan_s: float
    step_ms: float | None = None
    ties: bool = False
    """Whether its step and the best one's are not told apart by what is known of the machine."""
    late: bool = False
    """Whether it took more than SLACK times its share of the budget."""
    cause: str = ""


class HandedPlan(Strategy):
    """A plan that somebody else made, as a strategy that gives it whatever the problem."""

    sees = frozenset({Sees.TABLES})
    # Validation reads off the plan which it uses; copies that drift apart train another model.
    moves = frozenset(Move) - {Move.LOCAL_STEPS}

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.fixed_plan = name, plan

    @cached_property
    def plan_hash(self) -> str:
        """Return the hash by which records know the plan."""
        return content_hash(self.fixed_plan)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan that was handed in."""
        return self.fixed_plan


@dataclass
class Asking:
    """Strategies' answers to one question, within one budget."""

    question: CountedQuestion
    constraints: Constraints | None
    budget_s: float
    seed: int
    on_tried: Callable[[Attempt], None] | None
    stop_at: float = math.inf
    """The moment on ``time.perf_counter`` from which on nobody plans or is judged any more, once there is a plan."""
    hurried: bool = False
    """Whether judging plans takes its part of the budget too, as it does with thousands of tables."""
    judging_s: float = 0.0
    """What judging the last plan took, where it counts."""
    start: float = field(default_factory=time.perf_counter)
    tried: list[Attempt] = field(default_factory=list)
    answers: dict[str, Answer[Simulation]] = field(default_factory=dict)

    def judge_yours(self, plan: Plan, limits: Constraints) -> Answer[Simulation]:
        """Judge the user's own plan; raises BadInput where it is none, or breaks a constraint."""
        problem = self.question.problem
        if plan.sync_every > 1:
            every = plan.sync_every
            raise BadInput(f"your plan averages copies every {every} steps: it trains another model than the others")
        answer = evaluate(self.question, HandedPlan(YOURS, plan), Budget(), self.seed, sealed=False)
        if isinstance(answer, Failure):
            raise BadInput(f"your plan cannot be compared: {answer.cause}")
        try:
            limits.check(plan, problem)
        except InvalidPlan as error:
            raise BadInput(f"your plan cannot be compared: {error}") from error
        self._note(Attempt(strategy=YOURS, plan_s=0.0, step_ms=answer.judged.step_ms))
        return answer

    def ask(self, strategies: Sequence[Strategy]) -> None:
        """Ask all; those that require modules, and other people's, beside the others."""
        local = [strategy for strategy in strategies if ours(strategy) and not strategy.requires]
        # Fewer moves are fewer plans to look at: what is quick comes first, and is there whatever follows.
        separate = sorted((s for s in strategies if s not in local), key=lambda strategy: len(strategy.moves))
        if local and self.budget_s < STARTS_S:
            cause = f"{Outcome.TIMEOUT.value}: not asked with less than {STARTS_S:g} s"
            for strategy in separate:
                self._note(Attempt(strategy=strategy.name, plan_s=0.0, cause=cause))
            separate = []
        with Apart(self._under_constraints(separate), self.question.problem, self.budget_s, self.seed) as processes:
            self._ask_here(local)
            for strategy in separate:
                self._ask(strategy, self.budget_s, planner=processes.planner)

    def _ask_here(self, strategies: Sequence[Strategy]) -> None:
        general = [strategy for strategy in strategies if strategy.moves >= DEVICE_MOVES]

        def cost(strategy: Strategy) -> tuple[bool, int]:
            # Parts of tables are many where tables are.
            return self.hurried and not strategy.moves <= WHOLE_TABLE_MOVES, len(strategy.moves)

        cheap = sorted((s for s in strategies if s not in general), key=cost)
        left_s = self.budget_s
        of_all_s = FIRST_SHARE * self.budget_s if general else 0.0
        for number, strategy in enumerate(cheap):
            if self.hurried and self.answers and left_s <= of_all_s:
                cause = f"{Outcome.TIMEOUT.value}: not asked: what is left is for those with all device moves"
                self._note(Attempt(strategy=strategy.name, plan_s=0.0, cause=cause))
                continue
            left_s -= self._ask(strategy, max((left_s - of_all_s) / (len(cheap) - number), FLOOR_S))
        left_s = max(left_s, of_all_s)
        for number, strategy in enumerate(general):
            share_s = left_s / (len(general) - number)
            # A search that has a part for every table looks at its clock seldom.
            share_s = HURRIED_SHARE * share_s - self.judging_s if self.hurried else share_s
            left_s -= self._ask(strategy, max(share_s, FLOOR_S))

    def _under_constraints(self, strategies: Sequence[Strategy]) -> list[Strategy]:
        if self.constraints is None:
            return list(strategies)
        return [Constrained(strategy, self.constraints) for strategy in strategies]

    def _ask(self, strategy: Strategy, share_s: float, planner: Planner | None = None) -> float:
        """Ask one; return the seconds that it took."""
        start, budget = time.perf_counter(), Budget(plan_s=share_s, fit_s=share_s)

        def evaluation() -> Answer[Simulation] | Failure:
            # However late it comes, a plan is a plan.
            if self.constraints is None:
                return evaluate(
                    self.question, strategy, budget, self.seed, sealed=False, slack=math.inf, planner=planner
                )
            return evaluate_under(
                self.constraints, self.question, strategy, budget, self.seed, slack=math.inf, planner=planner
            )

        answer = self._in_time(evaluation)
        if isinstance(answer, Failure):
            took_s = time.perf_counter() - start
            self._note(Attempt(strategy=strategy.name, plan_s=took_s, cause=f"{answer.outcome.value}: {answer.cause}"))
            return took_s
        took_s = answer.spent.plan_s + answer.spent.fit_s
        late = took_s > SLACK * share_s
        if self.hurried:
            self.judging_s = time.perf_counter() - start - took_s
            took_s += self.judging_s
        self.answers[strategy.name] = answer
        self._note(Attempt(strategy=strategy.name, plan_s=took_s, step_ms=answer.judged.step_ms, late=late))
        return took_s

    def _in_time(self, evaluation: Callable[[], Answer[Simulation] | Failure]) -> Answer[Simulation] | Failure:
        """Return the answer, or that there was no time for it; the first plan is waited for."""
        over = Failure(outcome=Outcome.TIMEOUT, cause="stopped: the time for all is over", phase="plan")
        # Nobody can interrupt another thread.
        if not self.answers or self.stop_at == math.inf or current_thread() is not main_thread():
            return evaluation()
        left_s = self.stop_at - time.perf_counter()
        if left_s <= 0.0:
            return over
        try:
            answer = within(left_s, evaluation)
        except TimeoutError:
            return over
        return over if isinstance(answer, Failure) and time.perf_counter() >= self.stop_at else answer

    def _note(self, attempt: Attempt) -> None:
        self.tried.append(attempt)
        if self.on_tried is not None:
            self.on_tried(attempt)
