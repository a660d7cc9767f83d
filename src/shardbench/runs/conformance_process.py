"""The process in which a strategy is under test: forked from this one, sealed, confined and timed from outside.

What it says is JSON, of which nothing runs here; it judges nothing.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import numpy as np

from shardbench.base.landlock import confine
from shardbench.base.serialise import content_hash
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Strategy
from shardbench.processes.descendants import end_with_parent
from shardbench.processes.failures import TrialFailed, failed
from shardbench.processes.frames import read_frame, write_frame
from shardbench.records.trial import Failure, Outcome
from shardbench.runs.planning import CHANGED, Spent, fit, learns, plan_here, planning_failure
from shardbench.workloads.trace import seal_test_split

COPY, FIT, PLAN = "copy", "fit", "plan"
DAYS_S = 86400.0 * 40
"""Seconds by which the second process's calendar is ahead."""
SLACK = 2.0
"""A strategy is ended after so many times its budget: checks run on machines of any speed."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What the process is to do with the strategy."""

    what: str
    problem: Problem | None = None
    budget: Budget = field(default_factory=Budget)
    seed: int = 0


class PlanningProcess:
    """Asks a strategy in a process of its own, which ends with the block.

    ``closed`` are folders that it cannot reach, where the kernel can see to that. ``elsewhere``: it has another
    working folder, home, user and date.
    """

    def __init__(self, strategy: Strategy, closed: Sequence[Path], *, elsewhere: bool = False) -> None:
        self._strategy, self._closed, self._elsewhere = strategy, tuple(closed), elsewhere

    def __enter__(self) -> "PlanningProcess":
        self._private = tempfile.TemporaryDirectory(prefix="shardbench-test-")
        context = multiprocessing.get_context("fork")
        theirs, self._asks = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        surroundings = _Surroundings(self._closed, Path(self._private.name), self._elsewhere)
        arguments = (self._strategy, surroundings, theirs, answers)
        self._process = context.Process(target=_serve, args=arguments)
        with warnings.catch_warnings():
            # Python 3.12 warns about forking beside threads; the child starts none of their work.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        answers.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._asks.close()
        self._answers.close()
        _kill(self._process.pid)
        self._process.join()
        self._process.close()
        self._private.cleanup()

    def ask(self, ask: Ask, limit_s: float) -> tuple[str, float]:
        """Return what the process answers and the seconds that it took by this one's clock; raises TrialFailed."""
        began = time.perf_counter()
        try:
            self._asks.send(ask)
            said = read_frame(self._answers, time.monotonic() + limit_s)
        except TimeoutError as error:
            cause = f"no answer to '{ask.what}' after {limit_s:g} s, killed"
            raise failed(Outcome.TIMEOUT, cause, ask.what, "finishes") from error
        except (EOFError, OSError) as error:
            code = _exit_code(self._process.pid)
            cause = "the process gave no answer" if code is None else f"the process died with exit code {code}"
            raise failed(Outcome.ERROR, cause, ask.what, "raises-infeasible-only") from error
        took_s = time.perf_counter() - began
        answer = _read(said)
        if isinstance(answer, Failure):
            raise TrialFailed(answer)
        return answer, took_s

    def plan(self, strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool) -> tuple[str, Spent]:
        """Fit and plan as ``evaluate`` asks a planner to."""
        fit_s, seen = 0.0, problem.restricted_to(strategy.sees)
        if learns(strategy) and not fitted:
            limit_s = SLACK * (budget.plan_s + budget.fit_s)
            _, fit_s = self.ask(Ask(what=FIT, problem=seen, budget=budget, seed=seed), limit_s)
        text, plan_s = self.ask(Ask(what=PLAN, problem=seen, budget=budget, seed=seed), SLACK * budget.plan_s)
        return text, Spent(fit_s=fit_s, plan_s=plan_s)


@dataclass(frozen=True)
class _Surroundings:
    closed: Sequence[Path]
    private: Path
    elsewhere: bool

    def enter(self) -> None:
        """Make them the surroundings of this process."""
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.private)
        if self.elsewhere:
            # What is around a strategy, and none of its business.
            os.chdir(self.private)
            os.environ.update(HOME=str(self.private), USER="somebody", LOGNAME="somebody", HOSTNAME="elsewhere")
            now = time.time
            time.time = lambda: now() + DAYS_S
        confine(self.closed, [self.private])


def _read(said: bytes) -> str | Failure:
    """Read the text or the failure that a process wrote, which may have written anything."""
    try:
        answer = json.loads(said)
        return str(answer["text"]) if "text" in answer else Failure.model_validate(answer["failure"])
    except (ValueError, KeyError, TypeError) as error:
        cause = f"an answer that cannot be read: {type(error).__name__}"
        raise failed(Outcome.ERROR, cause, PLAN, "raises-infeasible-only") from error


def _exit_code(pid: int | None) -> int | None:
    """Return the exit code of a process that ends within a second; ``join`` waits for whoever holds its pipes."""
    until = time.monotonic() + 1.0
    while pid is not None and time.monotonic() < until:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        time.sleep(0.01)
    return None


def _kill(pid: int | None) -> None:
    # The child is not yet reaped, so its id cannot belong to anyone else.
    if pid is None:
        return
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _serve(strategy: Strategy, surroundings: "_Surroundings", asks: Connection, answers: Connection) -> None:
    os.setsid()
    end_with_parent()
    _keep_open(asks.fileno(), answers.fileno())
    if "torch" in sys.modules:
        # Worker threads do not survive a fork: with more than one, OpenMP would wait for ever.
        sys.modules["torch"].set_num_threads(1)
    surroundings.enter()
    seal_test_split()
    while True:
        try:
            ask: Ask = asks.recv()
        except EOFError:
            return
        _forget_the_dice()
        try:
            if ask.what == COPY:
                strategy = _copy(strategy)
            answer: dict[str, object] = {"text": _done(strategy, ask)}
        except TrialFailed as error:
            answer = {"failure": error.failure.model_dump(mode="json")}
        write_frame(answers, json.dumps(answer).encode())


def _keep_open(*descriptors: int) -> None:
    """Close all other files but the standard streams: what this process inherited is not the strategy's to write to."""
    kept = {0, 1, 2, *descriptors}
    for stream in (sys.stdout, sys.stderr):
        # Streams in memory have no descriptor.
        with contextlib.suppress(OSError, ValueError):
            kept.add(stream.fileno())
    # Of multiprocessing's tracker of semaphores, whose pipe a strategy with processes of its own needs.
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    if tracker is not None and tracker._fd is not None:
        kept.add(tracker._fd)
    for low, high in itertools.pairwise([*sorted(kept), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)


def _forget_the_dice() -> None:
    """Put the generators that everyone shares into a state of chance: a plan hangs on its seed alone."""
    random.seed()
    np.random.seed(None)
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def _copy(strategy: Strategy) -> Strategy:
    """Return the strategy as another process gets it."""
    try:
        copy = pickle.loads(pickle.dumps(strategy))  # noqa: S301 - just made
    except Exception as error:
        failure = planning_failure(error, strategy)
        raise failed(failure.outcome, failure.cause, COPY, failure.rule or "picklable") from error
    if type(copy) is not type(strategy):
        raise failed(Outcome.ERROR, f"a pickled copy is a {type(copy).__name__}", COPY, "picklable")
    made: Strategy = copy
    return made


def _done(strategy: Strategy, ask: Ask) -> str:
    if ask.problem is None:
        return ""
    problem = ask.problem
    if Sees.TABLES in strategy.sees:
        # At other addresses, in falling order: no plan may hang on them.
        object.__setattr__(problem, "tables", tuple([replace(table) for table in problem.tables[::-1]])[::-1])
    before = _state(problem)
    text, wrong = "", None
    try:
        if ask.what == FIT:
            fit(strategy, (problem,), ask.budget, ask.seed)
        else:
            text, _ = plan_here(strategy, problem, ask.budget, ask.seed, True)
    except TrialFailed as error:
        wrong = error
    except (Exception, SystemExit) as error:
        wrong = TrialFailed(planning_failure(error, strategy))
    # A changed problem makes nonsense of what was found against it.
    touched = wrong is None or wrong.failure.outcome in (Outcome.INFEASIBLE, Outcome.INVALID)
    told = wrong is not None and wrong.failure.rule == "declared-information"
    if touched and not told and _state(problem) != before:
        raise failed(Outcome.INVALID, CHANGED, ask.what, "leaves-input-alone")
    if wrong is not None:
        raise wrong
    return text


def _state(problem: Problem) -> str:
    """Return what must not change: the problem's content, and what its profiles answer."""
    seen = (profile for profile in (problem.profiles if isinstance(problem.profiles, tuple) else ()))
    answers = [(p.cdf(np.linspace(0.0, p.rows, 9)), p.expected_distinct(p.rows**0.5)) for p in seen]
    return content_hash(problem.seen_hash(), [(cdf.tolist(), distinct) for cdf, distinct in answers])
