"""Strategies that plan beside this process: what they need is slow to import, or they are other people's.

They have a process of their own, one after the other on a lane. There are as many lanes as cores, but for the one of
who plans here. What has no plan when the time is up is killed.
"""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone

from shardbench.base.host import cores
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Outcome
from shardbench.trials.planning import Spent, learns
from shardbench.trials.planning_process import PlanningProcess

STARTS_S = 5.0
"""Budget below which they are not asked beside others: importing torch and torchrec alone takes about so long."""
GRACE_S = 1.0
"""Seconds after the budget that an answer may wait for them: killing a process takes a moment."""


class Apart:
    """Strategies at work in processes of their own, from entering to leaving the context.

    ``planner`` gives ``runs.evaluate`` what one of them made. Nothing of them outlives the context for longer than it
    takes to kill it.
    """

    def __init__(self, strategies: Sequence[Strategy], problem: Problem, budget_s: float, seed: int) -> None:
        """Take the strategies in the order in which they are to begin, and the seconds for all of them."""
        self._budget_s, self._seed = budget_s, seed
        self._lanes = min(len(strategies), max(cores() - 1, 1))
        self._answers: dict[str, Future[tuple[str, Spent]]] = {one.name: Future() for one in strategies}
        self._waiting: queue.SimpleQueue[Strategy] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._at_work: set[PlanningProcess] = set()
        self._deadline = 0.0
        self._problem = problem
        for strategy in strategies:
            self._waiting.put(strategy)

    def __enter__(self) -> "Apart":
        self._deadline = time.monotonic() + self._budget_s
        for _ in range(self._lanes):
            # Daemons: an answer does not wait for a process that is slow to die.
            threading.Thread(target=self._lane, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for process in tuple(self._at_work):
            # It may have to wait for the fork server.
            threading.Thread(target=process.let_go, daemon=True).start()

    def planner(
        self, strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool
    ) -> tuple[str, Spent]:
        """Return the plan of a strategy, by its name, as JSON and what it took; raises TrialFailed.

        It waits until the budget's end and GRACE_S at most. What it is given beside the name was given at the start.
        """
        left_s = self._deadline + GRACE_S - time.monotonic()
        try:
            return self._answers[strategy.name].result(max(left_s, 0.0))
        except NotDone:
            raise self._too_late() from None

    def _too_late(self) -> TrialFailed:
        cause = f"no plan in a process of its own within {self._budget_s:g} s: killed"
        return failed(Outcome.TIMEOUT, cause, "plan", "finishes")

    def _lane(self) -> None:
        while not self._stop.is_set():
            try:
                # Those behind this one share what it leaves.
                waiting = self._waiting.qsize()
                strategy = self._waiting.get_nowait()
            except queue.Empty:
                return
            answer, left_s = self._answers[strategy.name], self._deadline - time.monotonic()
            share_s = left_s * self._lanes / max(waiting, self._lanes)
            try:
                if share_s <= 0.0:
                    raise self._too_late()
                answer.set_result(self._plan(strategy, share_s))
            except TrialFailed as failure:
                answer.set_exception(failure)
            except Exception as error:
                # Whoever waits for the answer is told why there is none, and the lane goes on with the next strategy.
                answer.set_exception(failed(Outcome.ERROR, f"{type(error).__name__}: {error}", "plan"))

    def _plan(self, strategy: Strategy, share_s: float) -> tuple[str, Spent]:
        until = time.monotonic() + share_s
        with FORK_SERVER.without_engine(), PlanningProcess(strategy) as process:
            self._at_work.add(process)
            try:
                process.take(self._problem.restricted_to(strategy.sees), timeout_s=share_s)
                left_s = max(until - time.monotonic(), 1e-3)
                return process.make_plan(
                    Budget(plan_s=left_s / (2 if learns(strategy) else 1), fit_s=left_s / 2), self._seed
                )
            except TrialFailed as failure:
                if failure.failure.outcome is Outcome.TIMEOUT:
                    raise self._too_late() from failure
                raise
            finally:
                self._at_work.discard(process)
