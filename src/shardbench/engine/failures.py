"""Exceptions as outcomes of a trial: what went wrong, in one line, with the file and line of what raised."""

from pathlib import Path
from types import TracebackType

from shardbench.base.errors import Infeasible, InvalidPlan, ShardBenchError, Undeclared, Unsupported
from shardbench.records.trial import Failure, Outcome

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (Infeasible, Outcome.INFEASIBLE),
    (InvalidPlan, Outcome.INVALID),
    (Undeclared, Outcome.INVALID),
    (Unsupported, Outcome.SKIPPED),
    (MemoryError, Outcome.OOM),
    (TimeoutError, Outcome.TIMEOUT),
)
LONGEST_CAUSE = 500
"""Characters of an exception's text that a record keeps."""


class TrialFailed(ShardBenchError):
    """Something of a trial ended without a result; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.outcome}: {failure.cause}")
        self.failure = failure


def failed(outcome: Outcome, cause: str, phase: str, rule: str | None = None) -> TrialFailed:
    """What to raise for a failure of these fields."""
    return TrialFailed(Failure(outcome=outcome, cause=cause, phase=phase, rule=rule))


def failure_of(error: Exception, phase: str, package: str = "") -> Failure:
    """The failure that an exception is; one of the suite's own errors speaks for itself.

    Others get their type, and the place: the innermost line in ``package`` (a module name with
    all below it) where the exception passed there, else the line that raised.
    """
    if isinstance(error, TrialFailed):
        return error.failure
    outcome = next((found for kind, found in _OUTCOMES if isinstance(error, kind)), Outcome.ERROR)
    text = " ".join(str(error).split())
    rule = error.rule if isinstance(error, InvalidPlan | Undeclared) else None
    if not isinstance(error, ShardBenchError):
        place = place_of(error.__traceback__, package)
        text = f"{type(error).__name__}: {text}"[:LONGEST_CAUSE] + (f" ({place})" if place else "")
    return Failure(outcome=outcome, cause=text or outcome.value, phase=phase, rule=rule)


def place_of(traceback: TracebackType | None, package: str = "") -> str:
    """``file:line`` of the innermost frame in ``package``, else of the innermost; no folder of this machine."""
    places: list[tuple[str, str]] = []
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__", ""))
        name = Path(code.co_filename).name
        parents = module.split(".") if name == "__init__.py" else module.split(".")[:-1]
        places.append((module, f"{'/'.join([*parents, name])}:{traceback.tb_lineno}"))
        traceback = traceback.tb_next
    inside = [place for module, place in places if package and f"{module}.".startswith(f"{package}.")]
    return (inside or [place for _, place in places] or [""])[-1]
