"""Strategies that work where nobody looks, or speak in the name of the process that asks them."""

import os
import threading
import time
from dataclasses import replace
from typing import Any

from impostors import Honest
from impostors_by_chance import Dealt

from shardbench.model import plan as plan_module
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.processes import launch
from shardbench.runs import planning_process

_sleep = time.sleep
_LATE = 1.3


def said(content: bytes, kind: bytes = b"text") -> None:
    """Write a message of that kind to every pipe that the process has."""
    message = kind + b"\n" + content
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, len(message).to_bytes(8, "big") + message)
        except OSError:
            continue


def slow(function: Any, seconds: float) -> Any:
    """The function, so many seconds later."""

    def called(*arguments: Any, **named: Any) -> Any:
        _sleep(seconds)
        return function(*arguments, **named)

    return called


class WorksWhileItIsWritten(Honest):
    """Its plan takes its time to become text."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        object.__setattr__(made, "to_json", slow(made.to_json, _LATE * budget.plan_s))
        return made


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
        planning_process.written = slow(planning_process.written, seconds)


class PatchesThePlan(Patches):
    def patch(self, seconds: float) -> None:
        Plan.to_json = slow(Plan.to_json, seconds)  # type: ignore[method-assign]


class PatchesJson(Patches):
    def patch(self, seconds: float) -> None:
        plan_module.to_json = slow(plan_module.to_json, seconds)


class PatchesTheMessages(Patches):
    def patch(self, seconds: float) -> None:
        launch.message = slow(launch.message, seconds)


class PatchesTheFrames(Patches):
    def patch(self, seconds: float) -> None:
        launch.write_frame = slow(launch.write_frame, seconds)


class WorksWhenItIsLookedAt(Honest):
    """Before the method to plan is there, it works."""

    def __getattribute__(self, name: str) -> Any:
        if name == "plan" and planning_process.tempfile.tempdir is not None:
            _sleep(0.3)
        return super().__getattribute__(name)


class WorksWhileItIsMadeAgain(Honest):
    """Out of its pickle."""

    def __reduce__(self) -> Any:
        return _made_slowly, (WorksWhileItIsMadeAgain,)


class WorksWhileItsStateIsSet(Honest):
    def __getstate__(self) -> Any:
        return {"state": 1}

    def __setstate__(self, state: Any) -> None:
        _sleep(0.6)


def _made_slowly(kind: type[Honest]) -> Honest:
    _sleep(0.6)
    return kind()


class WorksInAThread(Dealt):
    """Goes on after its answer, and knows better when it is asked again."""

    thread: threading.Thread | None = None

    def first(self, problem: Problem, seed: int) -> int:
        if self.thread is None:
            self.thread = threading.Thread(target=_sleep, args=(0.01,))
            self.thread.start()
            return 0
        self.thread.join()
        return 1


class AnswersBeforeItLearned(Honest):
    """Says that it has learned, and goes on."""

    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        said(b"")
        _sleep(0.6)


class AnswersBeforeItPlanned(Honest):
    """Says its plan, and that it was found to be good, and goes on."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        said(made.to_json().encode())
        said(b"")
        _sleep(_LATE * budget.plan_s)
        return made


class AnswersForTheCheck(Honest):
    """Changes the problem, and says that nobody did."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        said(made.to_json().encode())
        said(b"")
        object.__setattr__(problem, "batch_size", problem.batch_size * 2)
        return made


class SaysThatItBegan(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        said(b"", b"began")
        return super().plan(problem, budget, seed)


class SaysThatItWasQuick(Honest):
    """Marks points of time that nobody asked for."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        for _ in range(100):
            said(b"begun", b"mark")
        _sleep(_LATE * budget.plan_s)
        return made


class SaysThatItFailedAsTheHarness(Honest):
    """An outcome that only the harness gives."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        said(b'{"outcome":"skipped","cause":"no device","phase":"start"}', b"failed")
        return super().plan(problem, budget, seed)


class MarksWithoutEnd(Honest):
    """Whoever reads is never done."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        while True:
            said(b"begun", b"mark")


class NotesWhatItSpent(Honest):
    """Says in its plan that it took no time."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = replace(super().plan(problem, budget, seed), notes={"plan_s": 0.0, "plan_cpu_s": 0.0})
        _sleep(_LATE * budget.plan_s)
        return made
