"""Public data sets as they are downloaded, each read by one command like a log that users bring (``log_profile``).

Nothing of them is shipped, and no file is looked at but those the user gives.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.log_encode import Cells, Mode
from shardbench.datasets.preparation.log_profile import Profiled, profile_log
from shardbench.datasets.preparation.log_reader import Source
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.datasets.preparation.side_by_side import Tell
from shardbench.workloads.table_list import ListedTable

_DAY = re.compile(r"day_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Download:
    """One public data set: what its files are, and which columns are looked up in which tables."""

    read: Callable[[tuple[Path, ...]], Source]
    """Function that reads the files as a log; raises BadInput."""
    tables: tuple[ListedTable, ...]
    mode: Mode
    """How values become rows unless the user says otherwise; ``ids``: they are rows, and users cannot change it."""
    expected: str
    """What the files must be, for the message to users who give others."""
    train_share: Callable[[tuple[Path, ...]], float]
    """Share of the rows that trains unless the user says otherwise."""
    time: str | None = None
    """Column of times; None: rows are in the order of time."""
    check: Callable[[Sequence[Path]], None] = lambda files: None
    """Function that raises BadInput for files that cannot be the data set's."""


def prepare_download(
    of: Download,
    files: Sequence[Path],
    target: Path,
    *,
    mode: Mode | None = None,
    rows: int | None = None,
    train_share: float | None = None,
    seed: int = 0,
    progress: Tell = lambda read_bytes, rows: None,
) -> Profiled:
    """Write the folder ``target`` of a data set's files, which must not exist, and return its description.

    ``rows`` is the size of every hashed table, ``train_share`` the first share of the rows, by time, that trains; None:
    what the data set states. Nothing is left of a failure; raises BadInput that says what the files should be.
    """
    own_mode = mode or of.mode
    tables = _tables(of, own_mode, rows)
    try:
        of.check(files)
        share = of.train_share(tuple(files)) if train_share is None else train_share
        split = SampleSplit(time=of.time, train_share=share, seed=seed)
        cells = Cells(mode=own_mode, seed=seed)
        return profile_log(of.read(tuple(files)), target, tables, cells=cells, cut=split, progress=progress)
    except BadInput as error:
        raise BadInput(f"{error}; expected: {of.expected}") from error


def _tables(of: Download, mode: Mode, rows: int | None) -> Sequence[ListedTable]:
    """Return the tables, with their rows where these are not to be counted."""
    if of.mode == "ids":
        if mode != "ids" or rows is not None:
            raise BadInput("its values are row numbers of published tables: leave mode and rows out")
        return of.tables
    if mode == "ids":
        raise BadInput("its values are no row numbers: take mode 'hash' or 'vocabulary'")
    if rows is not None and mode != "hash":
        raise BadInput(f"mode '{mode}' counts the rows itself: leave rows out, or take mode 'hash'")
    tables = [
        table.model_copy(update={"rows": (rows or table.rows) if mode == "hash" else None}) for table in of.tables
    ]
    if mode == "hash" and any(table.rows is None for table in tables):
        raise BadInput("give the rows of the hashed tables: none are published")
    return tables


def days_in_order(files: Sequence[Path]) -> None:
    """Raise BadInput where files are not called ``day_N``, in ascending order."""
    matches = [_DAY.match(path.name) for path in files]
    days = [int(match.group(1)) for match in matches if match]
    if len(days) < len(files) or any(a >= b for a, b in zip(days, days[1:])):
        raise BadInput(f"{', '.join(path.name for path in files)} are not days in order"[:200])
