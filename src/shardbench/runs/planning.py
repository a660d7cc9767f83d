"""A strategy at work: fitting and planning, here or confined in a process of its own, and the seconds that it takes."""

import multiprocessing.process
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shardbench.base.code import BASELINES, owner_of
from shardbench.base.deadline import interrupts
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.landlock import confine, confined
from shardbench.model.plan import MAX_SEGMENTS, Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.processes.failures import TrialFailed, failed, failure_of
from shardbench.processes.launch import Mark, MarkPoint, pickled, unmarked
from shardbench.records.trial import Failure, Outcome
from shardbench.workloads.trace import closed_test_split, seal_test_split

FIT, FITTED, PLAN, PLANNED = "fit", "fitted", "plan", "planned"
"""Points of fitting and planning that are marked where a process of its own does them."""
CHANGED = "the strategy changed the problem it was given"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Wall and CPU seconds of fitting and planning; the process that did it spent the latter."""

    fit_s: float = 0.0
    plan_s: float = 0.0
    fit_cpu_s: float = 0.0
    plan_cpu_s: float = 0.0


def fit(
    strategy: Strategy, problems: Sequence[Problem], budget: Budget, seed: int, *, mark: MarkPoint = unmarked
) -> Spent:
    """Let the strategy learn from what it may see of the problems, with the test split closed; return the seconds."""
    if not learns(strategy):
        return Spent()
    seen = [problem.restricted_to(strategy.sees) for problem in problems]
    with closed_test_split():
        wall, cpu = time.perf_counter(), time.process_time()
        mark(FIT)
        strategy.fit(seen, budget, seed)
        mark(FITTED)
        return Spent(fit_s=time.perf_counter() - wall, fit_cpu_s=time.process_time() - cpu)


def learns(strategy: Strategy) -> bool:
    """Tell whether the strategy does anything to fit."""
    return type(strategy).fit is not Strategy.fit


def may_need_engine(strategy: Strategy) -> bool:
    """Tell whether fitting or planning may import torch: of ours those do that learn or state what they require."""
    return not type(strategy).__module__.startswith(f"{BASELINES}.") or learns(strategy) or bool(strategy.requires)


def by_parents_clock(marks: Mapping[str, Sequence[Mark]]) -> Spent:
    """Return the seconds between marks, first beginning to last end: a strategy could set its own process's clocks."""

    def between(begin: str, end: str) -> tuple[float, float]:
        if not marks[begin] or not marks[end]:
            return 0.0, 0.0
        began, ended = marks[begin][0], marks[end][-1]
        return ended.at - began.at, ended.cpu_s - began.cpu_s

    (fit_s, fit_cpu_s), (plan_s, plan_cpu_s) = between(FIT, FITTED), between(PLAN, PLANNED)
    return Spent(fit_s=fit_s, fit_cpu_s=fit_cpu_s, plan_s=plan_s, plan_cpu_s=plan_cpu_s)


@dataclass(frozen=True)
class Sealed:
    """A strategy on its way to a process of its own, with the folders closed to it and the one that it may write to."""

    pickled: bytes
    closed: tuple[Path, ...]
    private: Path
    confines: bool
    """Whether the kernel can confine a process to these rules."""

    def opened(self) -> Strategy:
        """Return the strategy, in a process that can never read a test split again; raises TrialFailed."""
        seal_test_split()
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.private)
        # Sockets of its own pools lie there too, not beside the program's.
        multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
        if self.confines:
            # A signal to the harness is survived, and the trial that sent it has its own outcome.
            confine(self.closed, [self.private], signals=True)
        try:
            strategy: Strategy = pickle.loads(self.pickled)  # noqa: S301 - made by pickled
        except BaseException as error:
            raise TrialFailed(failure_of(error, "plan")) from error
        return strategy


def pickled_now(strategies: Iterable[Strategy]) -> dict[str, bytes]:
    """Return by name the strategies as they are now, pickled for the processes that plan.

    Pickling runs code of the strategy in this process, so it is done where there are no test batches yet. What cannot
    be pickled is left to the trial that fails of it.
    """
    made: dict[str, bytes] = {}
    for strategy in strategies:
        with suppress(TrialFailed):
            made[strategy.name] = pickled(strategy, "plan")
    return made


def plan_sealed(sealed: Sealed, problem: Problem, budget: Budget, seed: int, fitted: bool, *, mark: MarkPoint) -> str:
    """Return the plan as JSON, made in a process of its own; raises TrialFailed."""
    strategy = sealed.opened()
    before = problem.seen_hash()
    made, _ = plan_here(strategy, problem, budget, seed, fitted, mark=mark)
    if problem.seen_hash() != before:
        raise failed(Outcome.INVALID, CHANGED, "plan", "leaves-input-alone")
    return made


def _fields(seen: Problem) -> dict[str, int]:
    """Return the ids of a problem's parts; what these hold is compared where a process of its own plans."""
    return {name: id(value) for name, value in vars(seen).items() if name != "fingerprint"}


def plan_here(
    strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool, *, mark: MarkPoint = unmarked
) -> tuple[str, Spent]:
    """Return the plan as JSON, made in this process, and what it took; raises TrialFailed."""
    try:
        spent = Spent() if fitted else fit(strategy, (problem,), budget, seed, mark=mark)
        seen = problem.restricted_to(strategy.sees)
        before = _fields(seen)
        wall, cpu = time.perf_counter(), time.process_time()
        mark(PLAN)
        plan: object = strategy.plan(seen, budget, seed)
        mark(PLANNED)
        plan_s, plan_cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        if _fields(seen) != before:
            raise InvalidPlan(CHANGED, rule="leaves-input-alone")
        if not isinstance(plan, Plan):
            raise InvalidPlan(f"plan() returned {type(plan).__name__}, not a Plan", rule="returns-a-plan")
    except BaseException as error:
        if interrupts(error):
            raise
        raise TrialFailed(planning_failure(error, strategy)) from error
    return _written(plan), replace(spent, plan_s=plan_s, plan_cpu_s=plan_cpu_s)


def planning_failure(error: BaseException, strategy: Strategy) -> Failure:
    """Return the failure that a strategy's exception is; one of a confined process that reached out breaks a rule."""
    failure = failure_of(error, "plan", owner_of(type(strategy).__module__))
    refused = _refused(error) if confined() else None
    if refused is None:
        return failure
    # No folder of this machine in a record.
    told = failure.cause.replace(str(refused.filename), Path(str(refused.filename)).name)
    cause = f"reached for what is closed to planners ({told})"
    return failure.model_copy(update={"outcome": Outcome.INVALID, "cause": cause, "rule": "out-of-reach"})


def _refused(error: BaseException | None) -> PermissionError | None:
    """Return what the kernel said, where that is behind an error."""
    while error is not None and not isinstance(error, PermissionError):
        error = error.__cause__ or error.__context__
    return error


def _written(plan: Plan) -> str:
    """Write JSON that gives the same plan again: what a strategy built past the checks of Plan ends here."""
    try:
        if len(plan.segments) > MAX_SEGMENTS:
            raise BadInput(f"the plan has {len(plan.segments)} segments; a plan has {MAX_SEGMENTS} at most")
        text = plan.to_json()
        same = Plan.from_json(text, "plan") == plan
    except (ValueError, TypeError, BadInput) as error:
        raise failed(Outcome.INVALID, " ".join(str(error).split()), "validate", "round-trip") from error
    if not same:
        cause = "the plan read back from its JSON differs from the one written"
        raise failed(Outcome.INVALID, cause, "validate", "round-trip")
    return text
