"""Strategies that say one thing and then another, or do something where they are only looked at."""

import os
import sys
from typing import Any

from impostors import Honest, OverfullDevice, PeeksAtProfile, UndeclaredMove
from impostors_in_answers import said

from shardbench.base.errors import InvalidPlan
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.runs import conformance, described, evaluate
from shardbench.workloads.trace import is_sealed

_looks: dict[str, int] = {}


def looks(name: str) -> int:
    """Count the looks at something in this process."""
    _looks[name] = _looks.get(name, 0) + 1
    return _looks[name]


class ChangesItsMoves(UndeclaredMove):
    """Declares all where it plans."""

    @property
    def moves(self) -> Any:
        return frozenset(Move) if is_sealed() else frozenset({Move.TABLE})


class ChangesWhatItSees(PeeksAtProfile):
    @property
    def sees(self) -> Any:
        return frozenset(Sees) if is_sealed() else frozenset({Sees.TABLES})


class ChangesItsName(Honest):
    """Has a good one at the first looks."""

    @property
    def name(self) -> Any:
        return "honest" if looks("name") < 2 else "../../records/honest"


class ChangesItsRole(Honest):
    @property
    def role(self) -> Any:
        return Strategy.role if looks("role") < 3 else "winner"


class ChangesWhatItRequires(Honest):
    @property
    def requires(self) -> Any:
        return () if looks("requires") < 2 else ("no_such_module",) * looks("requires")


class RequiresAFolder(Honest):
    """A folder without code, of a name that leads elsewhere."""

    requires = ("..results",)


class RequiresCode(Honest):
    """A module in a package that fails where it is imported."""

    requires = ("lure.part",)


class ClaimsToBeOurs(Strategy):
    """Says that its class is of this repository, and requires what is then imported before it is timed."""

    name = "honest"
    requires = ("lure.part",)
    sees, moves, role = Honest.sees, Honest.moves, Honest.role

    def __init__(self) -> None:
        type(self).__module__ = "shardbench.baselines.shuffle"

    def __reduce__(self) -> Any:
        return _claiming, ()

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Honest().plan(problem, budget, seed)


def _claiming() -> Strategy:
    return ClaimsToBeOurs()


class TwoOfOneName(Honest):
    """Brings two."""

    def __new__(cls) -> Any:
        return [Honest(), Honest()]


class PatchesWhatDescribesIt(OverfullDevice):
    """Makes the process that describes it take everything for good."""

    def __getstate__(self) -> Any:
        evaluate.validate = lambda *_: None  # type: ignore[assignment]
        conformance.check = lambda *_: None  # type: ignore[assignment]
        described.declaration_fault = lambda *_: ""
        InvalidPlan.__init__ = lambda *_: None  # type: ignore[assignment,method-assign]
        return {}


class PatchesWhoeverImportsIt(OverfullDevice):
    def __init_subclass__(cls) -> None:
        evaluate._planned = lambda *_: None  # type: ignore[assignment]


class ForgesItsDescription(Honest):
    """Says itself what it is, before it was asked."""

    def __init__(self) -> None:
        said(
            b'[{"name":"../honest","sees":[],"moves":["table"],"role":"competitor","requires":[],"learns":false,'
            b'"about":"",'
            b'"several":false,"kind":"x","modules":[],"sent":""}]'
        )


class AnswersWithAPickleWhileItIsDescribed(Honest):
    def __init__(self) -> None:
        said(b"cposix\nabort\n(tR.", b"object")


class ExitsWhileItIsMade(Honest):
    def __init__(self) -> None:
        raise SystemExit(0)


class InterruptsWhileItIsMade(Honest):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class RecursesWhileItIsMade(Honest):
    def __init__(self) -> None:
        self.__init__()  # type: ignore[misc]


class DiesWhileItIsMade(Honest):
    def __init__(self) -> None:
        os._exit(0)


class ExitsWhenItIsLookedAt(Honest):
    @property
    def sees(self) -> Any:
        raise SystemExit(0)


class InterruptsWhileItIsPickled(Honest):
    def __getstate__(self) -> Any:
        raise KeyboardInterrupt


class RecursesWhileItIsPickled(Honest):
    def __getstate__(self) -> Any:
        return self.__getstate__()


class ExitsWhileItIsMadeAgain(Honest):
    def __getstate__(self) -> Any:
        return {"state": 1}

    def __setstate__(self, state: Any) -> None:
        raise SystemExit(0)


class RecursesWhileItPlans(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return self.plan(problem, budget, seed)


class RaisesTheBaseWhileItPlans(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise BaseException("of no kind")


class InterruptsWhileItLearns(Honest):
    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        raise KeyboardInterrupt


if sys.modules.get("register") is None:
    # Where it is described or plans; whoever lists impostors does not want it patched.
    class _Child(PatchesWhoeverImportsIt):
        pass
