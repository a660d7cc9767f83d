"""Every error a user can meet: one line that says what is wrong and what to do."""


class ShardBenchError(Exception):
    """Base of all errors raised on purpose; ``str()`` is one line for the user."""


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
