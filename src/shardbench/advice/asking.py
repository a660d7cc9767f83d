"""Strategies asked one question within one budget, so that there is a plan whatever becomes of some of them.

Those that give ever better plans come first, with the whole budget: their plan is the one to beat. They have one from
the first moment on, and answer with the best so far when the time is up or somebody interrupts. The others share the
time that is left, the cheap ones first. Those that require modules, and other people's, plan beside them, in processes
of their own. A plan that came late is kept.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import TypeVar

from shardbench.advice.constrained import evaluate_under, under
from shardbench.base.deadline import interrupts, within
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.model.constraints import Constraints
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Improvement, Strategy, TableLimits
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.apart import STARTS_S, Apart
from shardbench.trials.discovery import HandedPlan
from shardbench.trials.evaluate import Answer, Planner, evaluate
from shardbench.trials.planning import StandIn, ours, traits_of
from shardbench.trials.simulate import CountedQuestion, Simulation

T = TypeVar("T")

FLOOR_S = 0.05
"""Least share of a strategy, whatever others took: most plan 200 tables in less."""
OTHERS_SHARE = 0.15
"""Share of the budget, at its end, that those with ever better plans leave to the others in any case."""
SLACK = 2.0
"""Times its share after which a plan is late: a strategy's own clock is coarse where its share is short."""
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
    fits: bool = True
    """False where the devices have less memory than the plan's predicted peak, which was looked at."""
    cause: str = ""


@dataclass
class Clock:
    """The moment at which all ends, on ``time.perf_counter``; or somebody interrupts before."""

    stop_at: float = math.inf
    interrupted: bool = False

    @property
    def left_s(self) -> float:
        """Return the seconds until then; none after an interruption."""
        return 0.0 if self.interrupted else self.stop_at - time.perf_counter()

    def call(self, call: Callable[[], T], before_s: float = 0.0) -> T:
        """Return what ``call`` gives; raises TimeoutError where that takes too long or somebody interrupts.

        It must be done so many seconds ``before_s`` the moment.
        """
        left_s = self.left_s - before_s
        if left_s <= 0.0:
            raise TimeoutError
        try:
            # Nobody can interrupt another thread.
            is_endless = left_s == math.inf or current_thread() is not main_thread()
            return call() if is_endless else within(left_s, call)
        except BaseException as error:
            if not interrupts(error):
                raise
            self.interrupted = True
            raise TimeoutError from error


class Anytime(StandIn):
    """A strategy that answers with the best plan that it has come to when its time is up."""

    def __init__(
        self, inner: Strategy, clock: Clock, before_s: float, on_step: Callable[[str, Improvement], None]
    ) -> None:
        """Its time is up so many seconds ``before_s`` the clock's end."""
        self.inner, self._clock, self._before_s, self._on_step = inner, clock, before_s, on_step
        self.name, self.moves = inner.name, inner.moves
        self.sees, self.requires = inner.sees, inner.requires  # type: ignore[misc]
        self.traits = traits_of(inner)

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Let the strategy learn."""
        self.inner.fit(problems, budget, seed)

    def under(self, limits: TableLimits) -> Strategy:
        """Return the strategy within these limits, with the same time."""
        inner = self.inner.under(limits)
        return self if inner is self.inner else Anytime(inner, self._clock, self._before_s, self._on_step)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the best plan so far; the first one is waited for. Raises Infeasible where there is none."""
        improvements = self.inner.improvements(problem, budget, seed)
        latest = next(improvements)

        def improve() -> None:
            nonlocal latest
            self._on_step(self.name, latest)
            for latest in improvements:
                self._on_step(self.name, latest)

        with suppress(TimeoutError):
            self._clock.call(improve, self._before_s)
        return latest.make_plan()


def improves(strategy: Strategy) -> bool:
    """Tell whether a strategy gives plans on the way to its best one."""
    return type(strategy).improvements is not Strategy.improvements


@dataclass
class Asking:
    """Strategies' answers to one question, within one budget."""

    question: CountedQuestion
    constraints: Constraints
    budget_s: float
    seed: int
    clock: Clock = field(default_factory=Clock)
    """The moment until which they are asked, once there is a plan."""
    on_step: Callable[[str, float], None] = lambda name, step_ms: None
    """Hears of every plan that is better than the strategy's last one: its step, the dense model included, or nan."""
    start: float = field(default_factory=time.perf_counter)
    tried: list[Attempt] = field(default_factory=list)
    answers: dict[str, Answer[Simulation]] = field(default_factory=dict)

    def judge_yours(self, plan: Plan) -> Answer[Simulation]:
        """Judge the user's own plan; raises BadInput where it is none, or breaks a constraint."""
        if plan.sync_every > 1:
            every = plan.sync_every
            raise BadInput(f"your plan averages copies every {every} steps: it trains another model than the others")
        answer = evaluate(self.question, HandedPlan(YOURS, plan), Budget(), self.seed, sealed=False)
        if isinstance(answer, Failure):
            raise BadInput(f"your plan cannot be compared: {answer.cause}")
        try:
            self.constraints.when_applied.check(plan, self.question.problem)
        except InvalidPlan as error:
            raise BadInput(f"your plan cannot be compared: {error}") from error
        self.tried.append(Attempt(strategy=YOURS, plan_s=0.0, step_ms=answer.judged.step_ms))
        return answer

    def ask(self, strategies: Sequence[Strategy]) -> None:
        """Ask all; those that require modules, and other people's, beside the others."""
        local = [strategy for strategy in strategies if ours(strategy) and not strategy.requires]
        # Fewer moves are fewer plans to look at: what is quick comes first, and is there whatever follows.
        separate = sorted((s for s in strategies if s not in local), key=lambda strategy: len(strategy.moves))
        if local and self.budget_s < STARTS_S:
            cause = f"{Outcome.TIMEOUT.value}: not asked with less than {STARTS_S:g} s"
            for strategy in separate:
                self.tried.append(Attempt(strategy=strategy.name, plan_s=0.0, cause=cause))
            separate = []
        constrained = [under(self.constraints, strategy) for strategy in separate]
        with Apart(constrained, self.question.problem, self.budget_s, self.seed) as processes:
            self._ask_here(local)
            for strategy in separate:
                self._ask(strategy, self.budget_s, planner=processes.planner)

    def _ask_here(self, strategies: Sequence[Strategy]) -> None:
        first = [strategy for strategy in strategies if improves(strategy)]
        cheap = sorted((s for s in strategies if s not in first), key=lambda strategy: len(strategy.moves))
        for strategy in first:
            # The same whether others are asked or not: they take nothing from its plan.
            before_s = OTHERS_SHARE * self.budget_s
            self._ask(Anytime(strategy, self.clock, before_s, self._hear), self.budget_s / len(first))
        for number, strategy in enumerate(cheap):
            left_s = min(self.clock.left_s, self.budget_s)
            self._ask(strategy, max(left_s / (len(cheap) - number), FLOOR_S))

    def _hear(self, name: str, improvement: Improvement) -> None:
        self.on_step(name, improvement.step_ms())

    def _ask(self, strategy: Strategy, share_s: float, planner: Planner | None = None) -> None:
        """Ask one; the first plan is waited for."""
        start, budget = time.perf_counter(), Budget(plan_s=share_s, fit_s=share_s)

        def evaluation() -> Answer[Simulation] | Failure:
            # However late it comes, a plan is a plan.
            return evaluate_under(
                self.constraints, self.question, strategy, budget, self.seed, slack=math.inf, planner=planner
            )

        over = Failure(outcome=Outcome.TIMEOUT, cause="stopped: the time for all is over", phase="plan")
        try:
            is_waited_for = not self.answers or isinstance(strategy, Anytime)
            answer = evaluation() if is_waited_for and not self.clock.interrupted else self.clock.call(evaluation)
        except TimeoutError:
            answer = over
        if isinstance(answer, Failure):
            took_s = time.perf_counter() - start
            answer = over if self.answers and self.clock.left_s <= 0.0 else answer
            self.tried.append(
                Attempt(strategy=strategy.name, plan_s=took_s, cause=f"{answer.outcome.value}: {answer.cause}")
            )
            return
        took_s = answer.spent.plan_s + answer.spent.fit_s
        late = took_s > SLACK * share_s
        self.answers[strategy.name] = answer
        self.tried.append(Attempt(strategy=strategy.name, plan_s=took_s, step_ms=answer.judged.step_ms, late=late))
