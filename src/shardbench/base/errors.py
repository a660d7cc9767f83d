"""Every error a user can meet: one line that says what is wrong and what to do."""

from shardbench.base.deadline import call_or

LONGEST_ERROR = 2_000
"""Most characters of what is said of one error: words out of a file may be part of it."""


def text_of(error: BaseException) -> str:
    """Return the text of an exception, which somebody else's code may make."""
    return call_or(lambda: str(error), "(its text cannot be made)")


def one_line(text: str, longest: int = LONGEST_ERROR) -> str:
    """Return the text in one line of at most so many characters, all of which can be encoded."""
    # Lone surrogates, which no file and no JSON takes, become escapes.
    encodable = text[: 10 * longest].encode(errors="backslashreplace").decode()
    line = " ".join(encodable.split())
    return line if len(line) <= longest else f"{line[: longest - 4]} ..."


def described(error: BaseException, longest: int = LONGEST_ERROR) -> str:
    """Return the kind and text of an exception of somebody else's code, in one line."""
    text = one_line(text_of(error), longest)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ShardBenchError(Exception):
    """Base of all errors raised on purpose; ``str()`` is one line for the user."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class BadInput(ShardBenchError):
    """A file, option or name that cannot be used as given; the CLI exits with 2."""


class Infeasible(ShardBenchError):
    """Raised by a strategy that has no plan for a problem; recorded as ``infeasible``."""


class InvalidPlan(ShardBenchError):
    """A plan that breaks coverage, capacity, the engine's limits or its declared moves.

    ``rule`` is the broken one, by the names of the conformance checks.
    """

    def __init__(self, message: str, rule: str = "valid") -> None:
        super().__init__(message)
        self.rule = rule


class Undeclared(ShardBenchError):
    """A strategy touched information that its ``sees`` does not declare."""

    rule = "declared-information"


class Unsupported(ShardBenchError):
    """A valid plan that this version cannot count or run; recorded as ``skipped``."""
