"""The part of a record about how it was made: by which code, when, and how busy the machine was."""

import os
from datetime import UTC, datetime

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveInt

from shardbench.base.code import JUDGE_VERSION, checkout
from shardbench.base.serialise import FiniteModel
from shardbench.base.wall import Kind

GIVEN_PLAN = "plan "
"""The beginning of the version of a plan that a suite names by its file; its hash follows."""


class Provenance(FiniteModel):
    """The code that made a record, and the circumstances; names no host and no path."""

    commit: str | None = None
    """The commit of the checkout that the package lies in; None where it is in none."""
    dirty: bool | None = None
    """Whether the code differs from the commit; None without one."""
    judge_version: PositiveInt
    """The version of the code that judges, the data sets among it."""
    made_by: str | None = None
    """The version of what is judged: a trial's strategy, or the strategies that a study's cell asks.

    It is ``GIVEN_PLAN`` and the plan's hash where a suite names the plan's file, whoever had made it.
    None where there is no file to read; such a record is never settled.
    """
    started: pydantic.AwareDatetime
    load_at_start: NonNegativeFloat
    """Processes that ran or waited to, mean over the minute before."""
    load_at_end: NonNegativeFloat
    wall: Kind | None = Field(default=None, exclude_if=lambda wall: wall is None)
    """What kept the planner of other people's code from what is not its own; None for reviewed code."""

    @classmethod
    def begin(cls, made_by: str | None, wall: Kind | None = None) -> "Provenance":
        """Return the provenance of what begins now; ``ended`` completes it."""
        (commit, dirty), load = checkout(), _load()
        return cls(
            commit=commit,
            dirty=dirty,
            judge_version=JUDGE_VERSION,
            made_by=made_by,
            started=datetime.now(UTC).replace(microsecond=0),
            load_at_start=load,
            load_at_end=load,
            wall=wall,
        )

    def ended(self) -> "Provenance":
        """Return the provenance with the load at the end, which is now."""
        return self.model_copy(update={"load_at_end": _load()})


def _load() -> float:
    return round(os.getloadavg()[0], 2)
