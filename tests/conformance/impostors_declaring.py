"""Strategies that say one thing and then another, speak for the process that asks, or work where nobody looks."""

import os
import struct
import sys
import time
from typing import Any

from impostors import Honest, OverfullDevice, PeeksAtProfile

from shardbench.engine.processes.launch import GOOD
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Strategy
from shardbench.trials import evaluate, planning_process
from shardbench.workloads.trace import is_sealed

_looks: dict[str, int] = {}
_LATE = 1.3


def looks(name: str) -> int:
    """Count the looks at something in this process."""
    _looks[name] = _looks.get(name, 0) + 1
    return _looks[name]


class ChangesWhatItSees(PeeksAtProfile):
    @property
    def sees(self) -> Any:
        return frozenset(Sees) if is_sealed() else frozenset({Sees.TABLES})


class ClaimsToBeOurs(Strategy):
    """Says that its class is of this repository, so that it would plan without a wall."""

    name = "honest"
    sees, moves, role = Honest.sees, Honest.moves, Honest.role

    def __init__(self) -> None:
        type(self).__module__ = "shardbench.baselines.shuffle"

    def __reduce__(self) -> Any:
        return _claiming, ()

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Honest().plan(problem, budget, seed)


def _claiming() -> Strategy:
    return ClaimsToBeOurs()


class PatchesWhoeverImportsIt(OverfullDevice):
    def __init_subclass__(cls) -> None:
        evaluate._check_plan = lambda *_: None  # type: ignore[assignment]


class ForgesItsDescription(Honest):
    """Says itself what it is, before it was asked."""

    def __init__(self) -> None:
        said(
            b'[{"name":"../honest","sees":[],"moves":["table"],"role":"competitor","version":1,"requires":[],'
            b'"traits":{"learns":false,"several":false,"about":"","kind":"x","modules":[]},"sent":""}]'
        )


class DiesWhileItIsMade(Honest):
    def __init__(self) -> None:
        os._exit(0)


class InterruptsWhileItIsPickled(Honest):
    def __getstate__(self) -> Any:
        raise KeyboardInterrupt


if sys.modules.get("register") is None:
    # Where it is described or plans; whoever lists impostors does not want it patched.
    class _Child(PatchesWhoeverImportsIt):
        pass


def said(text: bytes) -> None:
    """Write an answer to every pipe that the process has."""
    answer = GOOD + text
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, struct.pack("!i", len(answer)) + answer)
        except OSError:
            continue


def slow(function: Any, seconds: float) -> Any:
    """The function, so many seconds later."""

    def called(*arguments: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return function(*arguments, **named)

    return called


class Patches(Honest):
    """Has what runs after it take the time."""

    def patch(self, seconds: float) -> None:
        """Replace a function of its process."""

    patched = False

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        if not self.patched:
            type(self).patched = True
            self.patch(_LATE * budget.plan_s)
        return super().plan(problem, budget, seed)


class PatchesTheWriter(Patches):
    def patch(self, seconds: float) -> None:
        planning_process.plan_json = slow(planning_process.plan_json, seconds)


class AnswersBeforeItPlanned(Honest):
    """Says its plan, and that it was found to be good, and goes on."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        said(made.to_json().encode())
        said(b"")
        time.sleep(_LATE * budget.plan_s)
        return made
