"""Public data sets as they are downloaded, each read like a log of one's own (``log_profile``), by one command.

Nothing of them is shipped, and no file is looked at but those the user gives.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardbench.base.errors import BadInput
from shardbench.datasets.log_encode import Cells, Mode
from shardbench.datasets.log_profile import Cut, Profiled, profile_log
from shardbench.datasets.log_reader import Log
from shardbench.workloads.table_list import ListedTable

_DAY = re.compile(r"day_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Download:
    """One public data set: what its files are, and which columns are looked up in which tables."""

    suffix: str
    """What its texts are, whatever they are called: .csv or .tsv."""
    header: tuple[str, ...] | None
    """Names of the columns; None where the first line has them."""
    time: str | None
    """Column of times; None: rows are in the order of time."""
    tables: tuple[ListedTable, ...]
    mode: Mode
    """How values become rows where nothing else is asked for."""
    expected: str
    """What the files are, for whoever gives others."""
    train_share: Callable[[int], float]
    """Share of the rows that trains, by the number of files."""
    check: Callable[[Sequence[Path]], None] = lambda files: None
    """Raises BadInput for files that cannot be the data set's."""


def prepare_download(
    of: Download,
    files: Sequence[Path],
    target: Path,
    *,
    mode: Mode | None = None,
    rows: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Profiled:
    """Writes the folder ``target`` of a data set's files, which must not exist, and gives its description.

    ``rows`` is the size of every hashed table; None: what the data set states. Nothing is left of a failure; raises
    BadInput that says what the files should be.
    """
    chosen = mode or of.mode
    if chosen == "ids":
        raise BadInput("its values are no row numbers: take mode 'hash' or 'vocabulary'")
    if rows is not None and chosen != "hash":
        raise BadInput(f"mode '{chosen}' counts the rows itself: leave rows out, or take mode 'hash'")
    tables = [
        table.model_copy(update={"rows": (rows or table.rows) if chosen == "hash" else None}) for table in of.tables
    ]
    if chosen == "hash" and any(table.rows is None for table in tables):
        raise BadInput("give the rows of the hashed tables: none are published")
    try:
        of.check(files)
        log = Log(files=tuple(files), header=of.header, suffix=of.suffix)
        cut = Cut(time=of.time, train_share=of.train_share(len(files)), seed=seed)
        return profile_log(log, target, tables, cells=Cells(mode=chosen, seed=seed), cut=cut, progress=progress)
    except BadInput as error:
        raise BadInput(f"{error}; expected: {of.expected}") from error


def days_in_order(files: Sequence[Path]) -> None:
    """Raises BadInput where files are not called ``day_N``, in ascending order."""
    found = [_DAY.match(path.name) for path in files]
    days = [int(match.group(1)) for match in found if match]
    if len(days) < len(files) or any(a >= b for a, b in zip(days, days[1:])):
        raise BadInput(f"{', '.join(path.name for path in files)} are no days in order"[:200])
