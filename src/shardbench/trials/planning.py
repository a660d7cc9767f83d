"""A strategy at work in this process: fitting and planning, the seconds that it takes, and what its errors are."""

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardbench.base.code import PACKAGE, owner_of
from shardbench.base.deadline import interrupts
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.serialise import FiniteModel
from shardbench.base.wall import PRIVATE, Kind, kind
from shardbench.engine.processes.failures import TrialFailed, failed, failure_of
from shardbench.model.plan import MAX_SEGMENTS, Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure, Outcome
from shardbench.workloads.trace import closed_test_split

_OUT_OF_REACH = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOENT, errno.EROFS, errno.ESRCH, errno.ENETUNREACH, errno.ECONNREFUSED}
)
"""What the kernel says where planners reach for files, processes and machines that are not there for them."""
CHANGED = "the strategy changed the problem it was given"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Wall and CPU seconds of fitting and planning, as a record has them; the process that did it spent the latter."""

    fit_s: float = 0.0
    plan_s: float = 0.0
    fit_cpu_s: float = 0.0
    plan_cpu_s: float = 0.0


def fit(strategy: Strategy, problems: Sequence[Problem], budget: Budget, seed: int) -> Spent:
    """Let the strategy learn from what it may see of the problems, with the test split closed; return the seconds."""
    if not learns(strategy):
        return Spent()
    views = [problem.restricted_to(strategy.sees) for problem in problems]
    with closed_test_split():
        wall, cpu = time.perf_counter(), time.process_time()
        strategy.fit(views, budget, seed)
        return Spent(fit_s=time.perf_counter() - wall, fit_cpu_s=time.process_time() - cpu)


class Traits(FiniteModel):
    """What a strategy's class says of it."""

    learns: bool
    """Whether it does anything to fit."""
    several: bool
    """Whether it gives several plans for a race."""
    about: str
    """What it says of itself: the first line of its docstring."""
    kind: str
    """The name of the class, with its module."""
    modules: tuple[str, ...]
    """The modules in which the strategy's classes are defined."""


class StandIn(Strategy):
    """A strategy that stands for another one, of which its own class says nothing."""

    traits: Traits
    """The traits of that other strategy."""


def traits_of(strategy: Strategy) -> Traits:
    """Return the traits of a strategy, or of the one that it stands for."""
    if isinstance(strategy, StandIn):
        return strategy.traits
    kind = type(strategy)
    return Traits(
        learns=kind.fit is not Strategy.fit,
        several=kind.plans is not Strategy.plans,
        about=(kind.__doc__ or "").strip().split("\n")[0],
        kind=f"{kind.__module__}.{kind.__qualname__}",
        modules=tuple(sorted({base.__module__ for base in kind.__mro__ if issubclass(base, Strategy)})),
    )


def learns(strategy: Strategy) -> bool:
    """Tell whether the strategy does anything to fit."""
    return traits_of(strategy).learns


def may_need_engine(strategy: Strategy) -> bool:
    """Tell whether fitting or planning in a fork may import torch: of ours those that learn or require something do."""
    return ours(strategy) and (learns(strategy) or bool(strategy.requires))


def ours(strategy: Strategy) -> bool:
    """Tell whether the strategy is of this repository."""
    return all(module.partition(".")[0] == PACKAGE for module in traits_of(strategy).modules)


def wall_kind(strategy: Strategy) -> Kind | None:
    """Return what keeps a strategy that plans from what is not its own; None for reviewed code of this repository."""
    return None if ours(strategy) else kind()


def _fields(problem: Problem) -> dict[str, int]:
    """Return the ids of a problem's parts; what these hold is compared where a process of its own plans."""
    return {name: id(value) for name, value in vars(problem).items() if name != "fingerprint"}


@closed_test_split()
def plan_here(strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool) -> tuple[str, Spent]:
    """Return the plan as JSON, made here with the test split closed, and what it took; raises TrialFailed."""
    try:
        spent = Spent() if fitted else fit(strategy, (problem,), budget, seed)
        view = problem.restricted_to(strategy.sees)
        before = _fields(view)
        wall, cpu = time.perf_counter(), time.process_time()
        plan: object = strategy.plan(view, budget, seed)
        plan_s, plan_cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        if _fields(view) != before:
            raise InvalidPlan(CHANGED, rule="leaves-input-alone")
        checked_plan = require_plan(plan)
    except BaseException as error:
        if interrupts(error):
            raise
        raise TrialFailed(planning_failure(error, strategy)) from error
    text = plan_json(checked_plan)
    return plan_json(checked_plan, text), replace(spent, plan_s=plan_s, plan_cpu_s=plan_cpu_s)


def require_plan(plan: object) -> Plan:
    """Return what a strategy made, which must be a plan; raises InvalidPlan."""
    if not isinstance(plan, Plan):
        raise InvalidPlan(f"plan() returned {type(plan).__name__}, not a Plan", rule="returns-a-plan")
    return plan


def planning_failure(error: BaseException, strategy: Strategy | None, *, walled: bool = False) -> Failure:
    """Return the failure that a strategy's exception is; behind the wall one that reached out breaks a rule."""
    failure = failure_of(error, "plan", owner_of(type(strategy).__module__) if strategy is not None else "")
    refusal = _find_refusal(error) if walled else None
    if refusal is None:
        return failure
    # No folder of this machine in a record.
    excerpt = failure.cause.replace(str(refusal.filename), Path(str(refusal.filename)).name)
    cause = f"reached for what is closed to planners ({excerpt})"
    return failure.model_copy(update={"outcome": Outcome.INVALID, "cause": cause, "rule": "out-of-reach"})


def _find_refusal(error: BaseException | None) -> OSError | None:
    """Return what the kernel said of something that is not there behind the wall, where that is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OUT_OF_REACH:
            path = Path(os.fsdecode(error.filename)).absolute() if isinstance(error.filename, str | bytes) else None
            # A file that is missing among its own.
            own = path is not None and path.is_relative_to(PRIVATE) and os.access(path.parent, os.W_OK)
            if not (own and error.errno == errno.ENOENT):
                return error
        error = error.__cause__ or error.__context__
    return None


def plan_json(plan: Plan, before: str | None = None) -> str:
    """Return a plan's JSON; ``before``: it must be that, and give the same plan again.

    What a strategy built past the checks of Plan ends here, in TrialFailed.
    """
    try:
        if len(plan.segments) > MAX_SEGMENTS:
            raise BadInput(f"the plan has {len(plan.segments)} segments; a plan has {MAX_SEGMENTS} at most")
        if before is None:
            return plan.to_json()
        same = Plan.from_json(before, "plan") == plan
    except (ValueError, TypeError, BadInput) as error:
        raise failed(Outcome.INVALID, " ".join(str(error).split()), "validate", "round-trip") from error
    if not same:
        cause = "the plan read back from its JSON differs from the one written"
        raise failed(Outcome.INVALID, cause, "validate", "round-trip")
    return before
