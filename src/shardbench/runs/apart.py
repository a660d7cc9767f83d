"""Strategies that plan beside this process: what they need is slow to import, and here nobody could interrupt them.

They have a process of their own, one after the other on a lane, and as many lanes as there are cores. What has no plan
when the time is up is killed.
"""

import importlib
import pickle
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from types import TracebackType

from shardbench.base.host import cores
from shardbench.base.temporary import temporary_folder
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Strategy
from shardbench.processes.failures import TrialFailed, failed
from shardbench.processes.launch import Mark, MarkPoint, Worker, pickled
from shardbench.processes.server import FORK_SERVER
from shardbench.records.trial import Outcome
from shardbench.runs.planning import FIT, FITTED, PLAN, PLANNED, Spent, by_parents_clock, learns, plan_here
from shardbench.workloads.trace import seal_test_split

STARTS_S = 5.0
"""Budget below which they are not asked beside others: importing torch and torchrec alone takes about so long."""
GRACE_S = 1.0
"""Seconds after the budget that an answer may wait for them: killing a process takes a moment."""


@dataclass
class _Asked:
    strategy: Strategy
    sent: tuple[bytes, bytes]
    """The strategy and what it sees of the problem, pickled."""
    done: "Future[tuple[str, Spent]]"


class Apart:
    """Strategies at work in processes of their own, from entering to leaving the context.

    ``planner`` gives ``runs.evaluate`` what one of them made. Nothing of them outlives the context for longer than it
    takes to kill it.
    """

    def __init__(self, strategies: Sequence[Strategy], problem: Problem, budget_s: float, seed: int) -> None:
        """Take the strategies in the order in which they are to begin, and the seconds for all of them."""
        self._budget_s, self._seed = budget_s, seed
        self._lanes = min(len(strategies), cores())
        self._asked: dict[str, _Asked] = {}
        self._waiting: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._at_work: set[Worker] = set()
        self._deadline = 0.0
        problems: dict[frozenset[Sees], bytes] = {}
        # Here and now, where nobody else has the problem in hand.
        for strategy in strategies:
            asked = _Asked(strategy, (b"", b""), Future())
            try:
                if strategy.sees not in problems:
                    problems[strategy.sees] = pickled(problem.restricted_to(strategy.sees), "plan")
                asked.sent = pickled(strategy, "plan"), problems[strategy.sees]
                self._waiting.put(asked)
            except TrialFailed as failure:
                asked.done.set_exception(failure)
            self._asked[strategy.name] = asked

    def __enter__(self) -> "Apart":
        self._deadline = time.monotonic() + self._budget_s
        for _ in range(self._lanes):
            # Daemons: an answer does not wait for a process that is slow to die.
            threading.Thread(target=self._lane, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for worker in tuple(self._at_work):
            # It may have to wait for the fork server.
            threading.Thread(target=worker.let_go, daemon=True).start()

    def planner(
        self, strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool
    ) -> tuple[str, Spent]:
        """Return the plan of a strategy, by its name, as JSON and what it took; raises TrialFailed.

        It waits until the budget's end and GRACE_S at most. What it is given beside the name was given at the start.
        """
        left_s = self._deadline + GRACE_S - time.monotonic()
        try:
            return self._asked[strategy.name].done.result(max(left_s, 0.0))
        except NotDone:
            raise self._too_late() from None

    def _too_late(self) -> TrialFailed:
        cause = f"no plan in a process of its own within {self._budget_s:g} s: killed"
        return failed(Outcome.TIMEOUT, cause, "plan", "finishes")

    def _lane(self) -> None:
        while not self._stopped.is_set():
            try:
                # Those behind this one share what it leaves.
                waiting = self._waiting.qsize()
                asked = self._waiting.get_nowait()
            except queue.Empty:
                return
            left_s = self._deadline - time.monotonic()
            share_s = left_s * self._lanes / max(waiting, self._lanes)
            try:
                if share_s <= 0.0:
                    raise self._too_late()
                asked.done.set_result(self._plan(asked, share_s))
            except TrialFailed as failure:
                asked.done.set_exception(failure)
            except Exception as error:
                # Whoever waits for the answer is told why there is none, and the lane goes on with the next strategy.
                asked.done.set_exception(failed(Outcome.ERROR, f"{type(error).__name__}: {error}", "plan"))

    def _plan(self, asked: _Asked, share_s: float) -> tuple[str, Spent]:
        strategy, until = asked.strategy, time.monotonic() + share_s
        marks: dict[str, list[Mark]] = {name: [] for name in (FIT, FITTED, PLAN, PLANNED)}
        with temporary_folder() as folder, FORK_SERVER.without_engine(), Worker(folder / "log") as worker:
            self._at_work.add(worker)
            try:
                worker.call(_imported, (strategy.requires,), timeout_s=share_s, phase="start")
                left_s = max(until - time.monotonic(), 1e-3)
                budget = Budget(plan_s=left_s / (2 if learns(strategy) else 1), fit_s=left_s / 2)
                arguments = (*asked.sent, budget, self._seed)
                text = worker.call(_planned, arguments, timeout_s=left_s, phase="plan", marks=marks, text=True)
            except TrialFailed as failure:
                if failure.failure.outcome is Outcome.TIMEOUT:
                    raise self._too_late() from failure
                raise
            finally:
                self._at_work.discard(worker)
        return text, by_parents_clock(marks)


def _imported(modules: Sequence[str]) -> None:
    """Import what a strategy needs, so that this is none of its planning."""
    for module in modules:
        importlib.import_module(module)


def _planned(sent: bytes, seen: bytes, budget: Budget, seed: int, *, mark: MarkPoint) -> str:
    seal_test_split()
    strategy: Strategy = pickle.loads(sent)  # noqa: S301 - made by this program
    problem: Problem = pickle.loads(seen)  # noqa: S301
    return plan_here(strategy, problem, budget, seed, fitted=False, mark=mark)[0]
