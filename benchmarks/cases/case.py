"""What cases share: the clock, and what pytest-benchmark's reader holds their seconds against."""

import math
import resource
import time

from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy


def cpu_s() -> float:
    """Return CPU seconds of this process and of those that it started and that ended.

    A machine that others use, too, takes its time: that is no regression of ours.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Case:
    """A class of benchmarks in asv's form; less is better in all of them.

    asv reads the methods ``time_...`` (CPU seconds), ``peakmem_...`` (the bytes of a process at its largest, its
    imports included) and ``track_...`` (a value). The micro-benchmarks read those called ``time_...`` of every class
    that states ``against``, and those called ``long_...``, which take too long to be asked at every change.
    """

    timer = staticmethod(cpu_s)
    against = ""
    """What the seconds are held against by the micro-benchmarks, which ask ``reference`` for it."""
    repeats = 3
    most = math.inf
    """The largest ratio that is not a fault."""

    def reference(self) -> object:
        """Do what the seconds are held against, after ``setup``."""
        raise NotImplementedError

    def check(self, outcome: object) -> None:
        """Raise AssertionError where a method's result is wrong."""


class PlanCase(Case):
    """One strategy's plan of one problem, beside the greedy plan of the same problem."""

    against = "a greedy-lookup plan"

    def ask(self, strategy: Strategy, problem: Problem, budget: Budget) -> None:
        """Keep what is asked of whom; the strategy sees what it declares."""
        self.strategy, self.problem, self.budget = strategy, problem, budget
        self.seen = problem.restricted_to(strategy.sees)

    def plan(self) -> object:
        """Return the strategy's plan."""
        return self.strategy.plan(self.seen, self.budget, 0)

    def reference(self) -> object:
        """Return the plan of the papers' lookup heuristic."""
        return get_strategy("greedy-lookup").plan(self.problem, Budget(), 0)

    def check(self, plan: object) -> None:
        """Raise an error where the plan is not valid."""
        validate(plan, self.problem, self.strategy.moves)
