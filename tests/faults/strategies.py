"""Strategies that go wrong: importable plug-ins of the processes that plan."""

import time
from collections.abc import Callable

from misbehaving import Ends, Honest


class NoText(Exception):
    def __str__(self):
        raise ZeroDivisionError


def _raise(name: str) -> None:
    raise RAISED[name][0]()


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "SystemExit": (lambda: SystemExit(0), "SystemExit: 0"),
    "SystemExit with words": (lambda: SystemExit("bye"), "SystemExit: bye"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "what is no Exception": (lambda: Ends("for all"), "Ends: for all"),
    "what has no text": (NoText, r"NoText: \(its text cannot be made\)"),
    "what is no text": (lambda: ValueError("byte \udc80 of a name"), r"ValueError: byte \\udc80 of a name"),
}
"""What a strategy raises, and what is said of it."""
IN_PICKLING = ("getstate", "reduce")
PLACES = (*IN_PICKLING, "unpickling", "plan", "requires")


class Raises(Honest):
    """Raises something at some place."""

    name = "shuffle"

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what

    def _at(self, where: str) -> None:
        if self.where == where:
            _raise(self.what)

    @property
    def requires(self):
        self._at("requires")
        return ()

    def __getstate__(self):
        self._at("getstate")
        return vars(self)

    def __reduce__(self):
        self._at("reduce")
        if self.where == "unpickling":
            return _raise, (self.what,)
        return type(self), (self.where, self.what), self.__getstate__()

    def plan(self, problem, budget, seed):
        self._at("plan")
        return super().plan(problem, budget, seed)


class PicklesForEver(Honest):
    """Cannot be sent to the process that plans, and takes its time."""

    name = "shuffle"

    def __getstate__(self):
        time.sleep(1e6)
