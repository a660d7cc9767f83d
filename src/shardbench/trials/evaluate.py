"""One question, one answer: plan, validate, judge and bound, in the same way for all that is compared."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from shardbench.base.errors import BadInput, InvalidPlan, ShardBenchError, Unsupported
from shardbench.base.serialise import content_hash
from shardbench.base.temporary import temporary_folder
from shardbench.base.wall import Kind
from shardbench.cost.bounds.capacity import Curve
from shardbench.cost.bounds.embedding import NO_BOUND, Bound, keeps_order, split_bound, whole_table_bound_ms
from shardbench.cost.bounds.step import DEVICE_MOVES, StepBound, StepBounds
from shardbench.engine.processes.failures import TrialFailed, failed, failure_of
from shardbench.engine.processes.launch import Worker, call_in_child
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.validate import used_moves, validate
from shardbench.records.record import Planned
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.planning import Spent, learns, plan_here, wall_kind
from shardbench.trials.planning_process import PlanningProcess

J = TypeVar("J")
T = TypeVar("T")

WHOLE_TABLE_MOVES = frozenset({Move.TABLE, Move.UVM})


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The times that no plan of devices' tables can beat, each proven when first asked for; None where nothing is."""

    steps: StepBounds | None = None
    """Bounds on the whole step, and what the batches ask for."""

    @cached_property
    def any_rows(self) -> Bound | None:
        """Return the bound on the embedding time that holds whatever rows a plan puts into HBM."""
        return self._split(self.steps.demand.any_rows) if self.steps is not None else None

    @cached_property
    def hottest_first(self) -> Bound | None:
        """Return that of plans that keep the order of frequency in every table (``cost.bounds.keeps_order``)."""
        return self._split(self.steps.demand.hottest_first) if self.steps is not None else None

    @cached_property
    def whole_tables_ms(self) -> float | None:
        """Return that of plans that keep every table whole on one device."""
        if self.steps is None:
            return None
        return whole_table_bound_ms(self.steps.demand.loads, self.steps.problem, WHOLE_TABLE_MOVES)

    def _split(self, curves: Sequence[Curve]) -> Bound | None:
        if self.steps is None:
            return None
        return split_bound(self.steps.demand.loads, self.steps.problem, DEVICE_MOVES, curves)

    def of(self, plan: Plan, moves: Iterable[str]) -> Bound | None:
        """Return the bound on plans like this one, which makes ``moves``; None with hosts, a schedule or caches."""
        if NO_BOUND & set(moves):
            return None
        return self.hottest_first if keeps_order(plan) else self.any_rows

    def of_step(self, plan: Plan, moves: frozenset[Move] = DEVICE_MOVES) -> StepBound | None:
        """Return the bound on the step of plans like this one, made with ``moves``; None where nothing is proven."""
        return self.steps.of(plan, moves) if self.steps is not None else None


class Question(ABC, Generic[J]):
    """A planning problem, and how a valid plan for it is judged."""

    closed: tuple[Path, ...] = ()
    """Folders that a process that plans does not see behind a wall, wherever they lie."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.proven_bounds: Bounds | None = None
        """The bounds, once they are known."""
        self.overruns: dict[tuple[str, int], tuple[float, str]] = {}
        """Planners, by name and seed, that were killed after their budget of so many seconds; what was said."""

    @abstractmethod
    def judge(self, plan: Plan) -> J:
        """Judge a valid plan; raises Unsupported for one that cannot be judged."""

    def prove_bounds(self) -> Bounds:
        """Prove bounds on what any plan comes to; nothing by default."""
        return Bounds()

    def held_out(self) -> "Question[J] | None":
        """Return the same with other test lookups, which nobody knew before; None where there are no others."""
        return None

    def untouched(self) -> bool:
        """Tell whether nobody changed the files that the question holds."""
        return True

    def bounds(self, limits: "JudgeLimits | None" = None) -> Bounds:
        """Return the bounds, proven once; raises TrialFailed where that takes longer than the limits allow."""
        if self.proven_bounds is None:
            self.proven_bounds = _within(self.prove_bounds, (), limits, "bound")
        return self.proven_bounds


class RulesOnly(Question[None]):
    """A problem whose plans are held against the rules of plans alone."""

    def judge(self, plan: Plan) -> None:
        """Judge nothing: the rules held before."""


@dataclass(frozen=True, kw_only=True)
class JudgeLimits:
    """Limits of judging and bounding, which run in processes of their own where they are given."""

    timeout_s: float
    log: Path
    """The file for what these processes and the planner print."""


Planner = Callable[[Strategy, Problem, Budget, int, bool], tuple[str, Spent]]
"""Fits, unless that is done (the last argument), and plans; gives the plan as JSON and what it took, or TrialFailed."""


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[J]):
    """A strategy's valid plan and what it comes to."""

    question: Question[J]
    plan: Plan
    planned: Planned
    """Hash, seconds, moves, notes and memory, as a record keeps them."""
    spent: Spent
    judged: J
    moves: frozenset[Move]
    """The moves that the strategy declares."""
    limits: JudgeLimits | None = None

    @property
    def bounds(self) -> Bounds:
        """Return the bounds of the question."""
        return self.question.bounds(self.limits)


def evaluate(
    question: Question[J],
    strategy: Strategy,
    budget: Budget,
    seed: int,
    *,
    sealed: bool = True,
    fitted: bool = False,
    limits: JudgeLimits | None = None,
    on_plan: Callable[[Plan, Planned], None] | None = None,
    slack: float = 1.0,
    planner: Planner | None = None,
) -> Answer[J] | Failure:
    """Fit, plan, validate and judge; return the answer, or how it failed.

    The strategy sees of the problem what it declared, and never the test split: ``sealed`` plans in
    a process of its own that is killed when its time is up; else the split is closed while it plans
    here. Either way one that took more than ``slack`` times its budget has failed (none with an infinite slack, for who
    shows late plans and says so: trials and studies never do); one that does not
    learn and was killed is not asked the same question again with less. ``fitted`` says that the strategy
    has learned already. ``on_plan`` is told of a valid plan before it is judged. Where a ``planner`` is
    given, it lets the strategy fit and plan, sealed in its own way.
    Raises BadInput for faults of the user's files alone.
    """
    try:
        if planner is None:
            planner = partial(_plan_apart, question=question, limits=limits, slack=slack) if sealed else plan_here
        text, spent = planner(strategy, question.problem, budget, seed, fitted)
        for phase, took_s, limit_s in (
            ("fitting", spent.fit_s, budget.fit_s),
            ("planning", spent.plan_s, budget.plan_s),
        ):
            if took_s > slack * limit_s:
                cause = f"{phase} took {took_s:.1f} s, its budget is {limit_s:g} s"
                raise failed(Outcome.TIMEOUT, cause, "plan", "finishes")
        plan = _read(text)
        planned = _check_plan(plan, spent, strategy, question.problem)
        if on_plan is not None:
            on_plan(plan, planned)
        judged = _within(question.judge, (plan,), limits, "count")
    except TrialFailed as failure:
        return failure.failure
    return Answer(
        question=question, plan=plan, planned=planned, spent=spent, judged=judged, moves=strategy.moves, limits=limits
    )


def answer_of(
    question: Question[J], strategy: Strategy, budget: Budget | None = None, seed: int = 0, *, fitted: bool = False
) -> Answer[J]:
    """Return the answer, planned in this process, for what has no result without it; raises BadInput if it failed."""
    answer = evaluate(question, strategy, budget or Budget(), seed, sealed=False, fitted=fitted)
    if isinstance(answer, Failure):
        raise BadInput(f"{strategy.name} on {question.problem.name}: {answer.outcome}: {answer.cause}")
    return answer


def _within(function: Callable[..., T], arguments: tuple[object, ...], limits: JudgeLimits | None, phase: str) -> T:
    if limits is not None:
        return call_in_child(function, arguments, timeout_s=limits.timeout_s, phase=phase, log=limits.log)
    try:
        return function(*arguments)
    except (InvalidPlan, Unsupported) as error:
        raise TrialFailed(failure_of(error, phase)) from error


def _plan_apart(
    strategy: Strategy,
    problem: Problem,
    budget: Budget,
    seed: int,
    fitted: bool,
    *,
    question: Question[J],
    limits: JudgeLimits | None,
    slack: float,
) -> tuple[str, Spent]:
    """Plan in a process of its own, which is killed when its time is up: a Planner, for a question."""
    planner_key = (strategy.name, seed)
    more_s, last_cause = question.overruns.get(planner_key, (0.0, ""))
    # Who learns may have less to do with less time; any other one has shown that it does not mind its budget.
    if budget.plan_s < more_s and (fitted or not learns(strategy)):
        cause = f"not asked with {budget.plan_s:g} s: {last_cause}"
        raise failed(Outcome.TIMEOUT, cause, "plan", "finishes")
    with PlanningProcess(strategy, question.closed, limits.log if limits is not None else None) as process:
        try:
            # What is withheld must not be where the strategy is: it could look through the frames below it.
            process.take(problem.restricted_to(strategy.sees))
            return process.make_plan(budget, seed, fitted=fitted, slack=slack)
        except TrialFailed as failure:
            if failure.failure.outcome is Outcome.TIMEOUT:
                question.overruns[planner_key] = (budget.plan_s, failure.failure.cause)
            raise
        finally:
            # Nothing else keeps other people's code from them.
            if wall_kind(strategy) is Kind.UNCONFINED and not question.untouched():
                raise failed(Outcome.INVALID, "the test batches were changed", "plan", "leaves-input-alone")


def _read(text: str) -> Plan:
    """Read the plan that another process wrote, and validate it again."""
    try:
        return Plan.from_json(text, "plan")
    except BadInput as error:
        raise failed(Outcome.INVALID, str(error), "validate", "round-trip") from error


def _check_plan(plan: Plan, spent: Spent, strategy: Strategy, problem: Problem) -> Planned:
    try:
        memory = validate(plan, problem, strategy.moves)
    except ShardBenchError as error:
        raise TrialFailed(failure_of(error, "validate")) from error
    return Planned(
        plan_hash=content_hash(plan),
        **vars(spent),
        segments=len(plan.segments),
        moves=tuple(sorted(used_moves(plan, problem))),
        notes=plan.notes,
        groups=plan.groups,
        hbm_memory_bytes=tuple(memory.hbm.tolist()),
        uvm_memory_bytes=tuple(memory.uvm.tolist()),
        host_memory_bytes=tuple(memory.host.tolist()),
    )


StepJudge: TypeAlias = Callable[[Plan, Problem], float | None]
"""Gives the milliseconds of a step, None where it cannot judge the plan; it crosses to its process by its name."""
NEEDS = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
"""What of a problem a judge gets."""
SecondJudge: TypeAlias = Callable[[Plan, Problem, float], float | None]
"""A StepJudge in its process, with the seconds that it may take; raises TrialFailed where it fails or takes longer."""


@contextmanager
def second_judge(judge: StepJudge | None) -> Iterator[SecondJudge | None]:
    """Give the judge for as long as the context lasts; its process begins with the first plan. None gives None."""
    if judge is None:
        yield None
        return
    lock = threading.Lock()

    def step_ms(plan: Plan, problem: Problem, timeout_s: float) -> float | None:
        # Threads ask it one after the other.
        with lock:
            return worker.call(judge, (plan, problem.restricted_to(NEEDS)), timeout_s=timeout_s, phase="count")

    with temporary_folder() as folder, Worker(folder / "judge.log") as worker:
        yield step_ms
