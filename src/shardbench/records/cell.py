"""A cell of a study, and the record that it ends in."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from shardbench.base.serialise import content_hash
from shardbench.records.base_record import BaseRecord
from shardbench.records.trial import Outcome

Scalar = str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | float | bool | None
Cell = dict[str, Scalar]
"""Parameters of one unit of work: small, plain, and complete (a seed among them where one is used)."""
Row = dict[str, Scalar]
"""One row of numbers and words that a cell gives."""
Series = tuple[float | None, ...]
"""A number for each of several alike things, such as the tasks that a row's mean is over; None where there is none."""
SeriesRow = Mapping[str, Scalar | Series]
"""A row that may have series beside its numbers and words."""

BACKENDS = ("simulated", "measured", "counted")
"""``backend`` of a row: the cost model's, timed here, or exact counting and arithmetic."""


class CellRecord(BaseRecord):
    """The outcome of one cell of a study: its rows, or why there are none."""

    study: str
    version: PositiveInt
    cell: Cell
    wall_s: NonNegativeFloat
    cpu_s: NonNegativeFloat
    """CPU seconds of the process that ran it."""
    rows: tuple[SeriesRow, ...] = ()
    failure: Annotated[str, Field(min_length=1)] | None = None
    """The reason in one line; a failed cell has no rows."""
    outcome: Outcome | None = None
    """The kind of failure; None where there is none, and in records of versions that did not say."""

    @property
    def expected_key(self) -> str:
        """Return the hash of the study's name and version and of the cell."""
        return cell_key(self.study, self.version, self.cell)

    @property
    def about(self) -> str:
        """Return the name of the study."""
        return self.study

    @property
    def summary(self) -> str:
        """Say which study and cell it is, how many rows it gave, and how long it took."""
        how = "" if self.outcome in (None, Outcome.ERROR) else f"{self.outcome}: "
        outcome = f"failed: {how}{self.failure}" if self.failure else f"{len(self.rows)} rows"
        return f"{cell_text(self.study, self.cell)}: {outcome} ({self.wall_s:.1f} s)"

    @property
    def cause(self) -> str:
        """Return the failure, or an empty string."""
        return self.failure or ""

    @model_validator(mode="after")
    def _consistent(self) -> "CellRecord":
        if (self.failure is None) != bool(self.rows):
            raise ValueError("a record has either rows or a failure")
        if self.outcome is not None and (self.failure is None or self.outcome is Outcome.OK):
            raise ValueError(f"a record with the outcome {self.outcome} must state its failure")
        for row in self.rows:
            if row.get("backend") not in BACKENDS:
                raise ValueError(f"a row's backend is {row.get('backend')!r}; it must be one of {', '.join(BACKENDS)}")
            both = self.cell.keys() & row.keys()
            if both:
                raise ValueError(f"'{min(both)}' is in the cell and in its rows; name it once")
        return self


def cell_key(study: str, version: int, cell: Cell) -> str:
    """Return the key of a cell, 16 hex digits."""
    return content_hash(study, version, cell)


def cell_text(study: str, cell: Cell) -> str:
    """Write a cell in a few words."""
    return " ".join([study, *(f"{name}={value}" for name, value in cell.items())])
