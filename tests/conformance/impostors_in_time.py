"""Strategies that do not keep their budget, or end in a way of their own."""

import os
import signal
import time
from typing import Any

from impostors import Honest

from shardbench.base.errors import Unsupported
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.processes.failures import failed
from shardbench.records.trial import Outcome

_sleep = time.sleep


class Overruns(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        _sleep(1.3 * budget.plan_s)
        return super().plan(problem, budget, seed)


class OverrunsWhileItLearns(Honest):
    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        _sleep(2.3 * budget.fit_s)


class SetsTheClock(Honest):
    """Makes its process's clocks say that it took no time."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        for clock in ("perf_counter", "monotonic", "process_time", "time"):
            setattr(time, clock, lambda: 0.0)
        _sleep(1.3 * budget.plan_s)
        return super().plan(problem, budget, seed)


class StopsItself(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().plan(problem, budget, seed)


class IgnoresSignals(Honest):
    """Hangs, and does not let itself be ended by those that can be ignored."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            _sleep(60.0)


class SleepsWhileItIsPickled(Honest):
    def __getstate__(self) -> Any:
        _sleep(60.0)
        return {}


class ExitsAsIfAllWereWell(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise SystemExit(0)


class Interrupts(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise KeyboardInterrupt


class IsKilled(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().plan(problem, budget, seed)


class SaysThatItIsSkipped(Honest):
    """A trial that is skipped counts for nobody."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise Unsupported("this version cannot run it")


class SpeaksForTheHarness(Honest):
    """Raises what only the harness raises."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise failed(Outcome.SKIPPED, "no such device", "start")


class DeclinesWhileItLearns(Honest):
    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        raise ZeroDivisionError("no training")
