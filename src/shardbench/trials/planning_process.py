"""Strategies at work in processes of their own: those of this repository in plain ones, others behind a wall.

What such a process says is text, of which nothing runs here. It is handed the problem first, and then the strategy:
from there to the last byte of its answer the time is the strategy's, by this process's clock.
"""

import base64
import importlib
import json
import multiprocessing.process
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from shardbench.base.code import places_of, shipped_data
from shardbench.base.serialise import content_hash
from shardbench.base.temporary import temporary_folder
from shardbench.base.wall import PRIVATE, wall_around
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.engine.processes.launch import Worker, pickled
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.planning import (
    CHANGED,
    Spent,
    learns,
    ours,
    plan_json,
    planning_failure,
    require_plan,
    traits_of,
)
from shardbench.workloads.trace import seal_test_split

START_S = 60.0
"""Seconds for what is not the strategy's: reading a problem, and checks of a finished plan."""
LATE, LATE_S = 0.1, 2.0
"""A planner is killed this share of its budget after it, or so many seconds after it, whichever is later."""
DAYS_S = 86400.0 * 40
"""Seconds by which the calendar of a process ``elsewhere`` is ahead."""
Held = dict[str, Any]
"""What calls of one process have in common."""


class PlanningProcess:
    """Asks one strategy in a process of its own, which ends with the block.

    Behind a wall it does not see the folders ``hidden``, wherever they lie; ``log`` gets what it prints. ``elsewhere``:
    it has another working folder, home, user and date. Entering raises TrialFailed where the strategy cannot be sent.
    """

    def __init__(
        self, strategy: Strategy, hidden: Sequence[Path] = (), log: Path | None = None, *, elsewhere: bool = False
    ) -> None:
        self._strategy, self._hidden, self._log, self._elsewhere = strategy, tuple(hidden), log, elsewhere
        self._is_settled, self._receipt = False, ""
        self.received_s = 0.0

    def __enter__(self) -> "PlanningProcess":
        self._pickle = pickled(self._strategy, "plan")
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            wall = None
            if not ours(self._strategy):
                visible = tuple(places_of(*traits_of(self._strategy).modules, *self._strategy.requires))
                wall = wall_around(visible, (*self._hidden, *shipped_data()))
            self._private = str(PRIVATE if wall is not None else folder)
            self._worker = stack.enter_context(Worker(self._log or folder / "log", wall=wall))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def take(self, *problems: Problem, timeout_s: float = START_S) -> None:
        """Hand over what the strategy sees of problems, the first to plan; raises TrialFailed."""
        self._set_up(timeout_s)
        self._call(_take, (problems,), timeout_s, "start")

    def hand_over(self) -> str:
        """Hand over the strategy before it is asked for anything; return its class, there; raises TrialFailed.

        ``received_s`` is then what that took.
        """
        self._set_up(START_S)
        self._receipt = self._call(_receive, (self._pickle,), START_S, "copy")
        self.received_s = self._worker.took_s
        return self._receipt

    def _set_up(self, timeout_s: float) -> None:
        if not self._is_settled:
            # What a strategy needs of others, and its own modules, are none of its planning.
            modules = (*self._strategy.requires, *traits_of(self._strategy).modules)
            self._call(_settle, (self._private, modules, self._elsewhere), timeout_s, "start")
            self._is_settled = True

    def let_go(self) -> None:
        """Tell the process to end; from any thread."""
        self._worker.let_go()

    def make_plan(
        self, budget: Budget, seed: int, *, fitted: bool = False, slack: float = 1.0, most: int | None = None
    ) -> tuple[str, Spent]:
        """Fit, unless that is done or nothing is to be learned, and plan; give the plan as JSON and what it took.

        ``most`` asks for a list of up to so many plans (``Strategy.plans``). Raises TrialFailed; a call is killed a
        little after ``slack`` times its budget.
        """
        spent = Spent()
        if learns(self._strategy) and not fitted:
            spent = self.fit(budget, seed, slack=slack)
        receipt = self._receive(slack * budget.plan_s, "plan")
        left_s = slack * budget.plan_s - receipt[0]
        text = self._call_in_time(_plan, (budget, seed, most), left_s, slack * budget.plan_s, "plan")
        plan_s, plan_cpu_s = receipt[0] + self._worker.took_s, receipt[1] + self._worker.took_cpu_s
        self._call(_check, (), START_S, "plan")
        return text, replace(spent, plan_s=plan_s, plan_cpu_s=plan_cpu_s)

    def fit(self, budget: Budget, seed: int, *, slack: float = 1.0) -> Spent:
        """Let the strategy learn from the problems that it was handed; return what it took; raises TrialFailed."""
        allowed_s = slack * budget.fit_s
        wall_s, cpu_s = self._receive(allowed_s, "fit")
        self._call_in_time(_fit, (budget, seed), allowed_s - wall_s, allowed_s, "fit")
        return Spent(fit_s=wall_s + self._worker.took_s, fit_cpu_s=cpu_s + self._worker.took_cpu_s)

    def pickle_strategy(self) -> bytes:
        """Return the strategy as it is now, pickled, for other such processes alone; raises TrialFailed."""
        return base64.b64decode(self._call(_pickle_strategy, (), START_S, "fit"))

    def _receive(self, allowed_s: float, purpose: str) -> tuple[float, float]:
        """Hand over the strategy, where that is not done; return wall and CPU seconds that it took to be there."""
        if self._receipt:
            return 0.0, 0.0
        self._receipt = self._call_in_time(_receive, (self._pickle,), allowed_s, allowed_s, purpose)
        return self._worker.took_s, self._worker.took_cpu_s

    def _call_in_time(
        self, function: Callable[..., str], arguments: tuple[object, ...], left_s: float, allowed_s: float, purpose: str
    ) -> str:
        try:
            return self._call(function, arguments, max(left_s, 0.0) + max(LATE * allowed_s, LATE_S), "plan")
        except TrialFailed as failure:
            if failure.failure.outcome is Outcome.TIMEOUT:
                cause = f"no result from {purpose} after {allowed_s:g} s, killed"
                raise failed(Outcome.TIMEOUT, cause, "plan", "finishes") from failure
            raise

    def _call(self, function: Callable[..., str], arguments: tuple[object, ...], timeout_s: float, phase: str) -> str:
        return self._worker.call(function, arguments, timeout_s=timeout_s, phase=phase, text=True)


def _take(problems: tuple[Problem, ...], *, held: Held) -> str:
    for problem in problems:
        if isinstance(problem.tables, tuple):
            # At other addresses, in falling order: no plan may hang on them.
            object.__setattr__(problem, "tables", tuple([replace(table) for table in problem.tables[::-1]])[::-1])
    held |= {"problems": problems, "before": [_state(problem) for problem in problems]}
    return ""


def _settle(private: str, modules: Sequence[str], elsewhere: bool, *, held: Held) -> str:
    """Make this process's surroundings those of a strategy, and import the modules there."""
    held["walled"] = private == str(PRIVATE)
    seal_test_split()
    os.environ["TMPDIR"] = tempfile.tempdir = private
    # Pools have sockets and a tracker of semaphores of their own.
    multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)
    program = sys.modules["__main__"]
    if not Path(getattr(program, "__file__", None) or "/").exists():
        # Pools would look for it.
        program.__file__ = program.__spec__ = None
    if "torch" in sys.modules:
        # Worker threads do not survive a fork: with more than one, OpenMP would wait for ever.
        sys.modules["torch"].set_num_threads(1)
    home = Path(private, "elsewhere") if elsewhere else Path(private)
    home.mkdir(exist_ok=True)
    os.chdir(home)
    os.environ["HOME"] = str(home)
    if elsewhere:
        # What is around a strategy, and none of its business.
        os.environ.update(USER="somebody", LOGNAME="somebody", HOSTNAME="elsewhere")
        now = time.time
        time.time = lambda: now() + DAYS_S
    for module in modules:
        importlib.import_module(module)
    return ""


def _receive(pickle_bytes: bytes, *, held: Held) -> str:
    try:
        strategy = held["strategy"] = pickle.loads(pickle_bytes)  # noqa: S301 - whatever it does, it does here
    except BaseException as error:
        raise TrialFailed(_failure(error, held)) from error
    return f"{type(strategy).__module__}.{type(strategy).__qualname__}"


def _fit(budget: Budget, seed: int, *, held: Held) -> str:
    _forget_the_dice()
    try:
        held["strategy"].fit(held["problems"], budget, seed)
    except BaseException as error:
        raise _blame(error, held) from error
    return _check(held=held)


def _pickle_strategy(*, held: Held) -> str:
    return base64.b64encode(pickle.dumps(held["strategy"])).decode()


def _plan(budget: Budget, seed: int, most: int | None, *, held: Held) -> str:
    _forget_the_dice()
    strategy, problem = held["strategy"], held["problems"][0]
    try:
        outputs = (
            (strategy.plan(problem, budget, seed),) if most is None else strategy.plans(problem, budget, seed, most)
        )
        held["plans"] = plans = [require_plan(plan) for plan in outputs]
    except BaseException as error:
        raise _blame(error, held) from error
    held["texts"] = [plan_json(plan) for plan in plans]
    return json.dumps(held["texts"]) if most is not None else str(held["texts"][0])


def _check(*, held: Held) -> str:
    """Hold the problem against what it was, and plans against what their text gives again; raises TrialFailed."""
    if [_state(problem) for problem in held["problems"]] != held["before"]:
        raise failed(Outcome.INVALID, CHANGED, "plan", "leaves-input-alone")
    for plan, text in zip(held.pop("plans", ()), held.pop("texts", ())):
        plan_json(plan, text)
    return ""


def _blame(error: BaseException, held: Held) -> TrialFailed:
    """Return the failure that an error is, unless the problem was changed: that makes nonsense of most others."""
    failure = _failure(error, held)
    is_suspect = failure.outcome in (Outcome.INFEASIBLE, Outcome.INVALID) and failure.rule != "declared-information"
    if is_suspect and [_state(problem) for problem in held["problems"]] != held["before"]:
        return failed(Outcome.INVALID, CHANGED, "plan", "leaves-input-alone")
    return TrialFailed(failure)


def _failure(error: BaseException, held: Held) -> Failure:
    return planning_failure(error, held.get("strategy"), walled=held["walled"])


def _forget_the_dice() -> None:
    """Put the generators that everyone shares into a state of chance: a plan hangs on its seed alone."""
    random.seed()
    np.random.seed(None)
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def _state(problem: Problem) -> str:
    """Return what must not change: the problem's content, and what its profiles answer."""
    profiles = (profile for profile in (problem.profiles if isinstance(problem.profiles, tuple) else ()))
    answers = [(p.cdf(np.linspace(0.0, p.rows, 9)), p.expected_distinct(p.rows**0.5)) for p in profiles]
    return content_hash(problem.seen_hash(), [(cdf.tolist(), distinct) for cdf, distinct in answers])
