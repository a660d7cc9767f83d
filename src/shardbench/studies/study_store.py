"""Records of studies: one JSON line a cell, failures included."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import pydantic
from pydantic import Field, NonNegativeFloat, PositiveInt

from shardbench.base.code import class_code
from shardbench.base.jsonlines import JsonLines
from shardbench.base.serialise import content_hash
from shardbench.model.discovery import strategy_codes
from shardbench.records.provenance import Provenance
from shardbench.studies.study import BACKENDS, Cell, Row, Study


class StudyRecord(pydantic.BaseModel):
    """What one cell of a study gave, or why it gave nothing."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    key: str
    study: str
    version: PositiveInt
    cell: Cell
    environment: str
    """Hash; the environment itself is stored once."""
    wall_s: NonNegativeFloat
    cpu_s: NonNegativeFloat
    """CPU seconds of the process that ran it."""
    provenance: Provenance | None = None
    """None in records of versions that did not state their code."""
    rows: tuple[Row, ...] = ()
    failure: Annotated[str, Field(min_length=1)] | None = None
    """One line; a failed cell has no rows."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "StudyRecord":
        if self.key != cell_key(self.study, self.version, self.cell):
            raise ValueError(f"key {self.key} is not that of the cell: the line was edited")
        if (self.failure is None) != bool(self.rows):
            raise ValueError("a record has either rows or a failure")
        for row in self.rows:
            if row.get("backend") not in BACKENDS:
                raise ValueError(f"a row's backend is {row.get('backend')!r}; it must be one of {', '.join(BACKENDS)}")
            both = self.cell.keys() & row.keys()
            if both:
                raise ValueError(f"'{min(both)}' is in the cell and in its rows; name it once")
        return self


def cell_key(study: str, version: int, cell: Cell) -> str:
    """16 hex digits."""
    return content_hash(study, version, cell)


def cell_code(study: Study, cell: Cell, rows: Iterable[Row] = ()) -> str | None:
    """Hash of the code behind a cell: the study's owner with its reproduction, and the strategies named.

    Strategies are named by ``strategy`` in the cell or its rows. None where the study has no file to read.
    """
    own = class_code(study, Study, reproduction=True)
    named = {name for row in (cell, *rows) if isinstance(name := row.get("strategy"), str)}
    return content_hash(own, {name: _strategy_code(name) for name in named}) if own else None


@cache
def _strategy_code(name: str) -> str | None:
    return strategy_codes([name])[name]


class StudyStore(JsonLines[StudyRecord]):
    """Records of one study in ``<results>/studies/<owner>/<study>.jsonl``."""

    def __init__(self, results: Path, owner: str, study: str) -> None:
        super().__init__(results / "studies" / owner / f"{study}.jsonl", StudyRecord, "cell")

    def latest(self) -> dict[str, StudyRecord]:
        """The last record of every cell key."""
        return {record.key: record for record in self.read()}


def rows_frame(study: Study, cells: Iterable[Cell], known: dict[str, StudyRecord]) -> pd.DataFrame:
    """Rows of all cells that have some, in the cells' order; the cells' columns come first, then the study's."""
    cells = list(cells)
    rows: list[Row] = []
    for cell in cells:
        record = known.get(cell_key(study.name, study.version, cell))
        rows += [{**cell, **row} for row in record.rows] if record else []
    frame = pd.DataFrame(rows)
    leading = dict.fromkeys([*(name for cell in cells for name in cell), *study.columns])
    ordered = [name for name in leading if name in frame.columns]
    return frame[[*ordered, *sorted(set(frame.columns) - set(ordered))]]
