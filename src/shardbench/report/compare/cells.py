"""Studies of two results folders, cell by cell."""

from collections.abc import Iterable, Mapping, Sequence

from shardbench.records.cell import CellRecord, Scalar, Series, SeriesRow
from shardbench.report.compare.same_numbers import same

CELL_COLUMNS = (
    "baseline", "study", "backend", "cells_in_both", "only_this_run", "only_committed", "equal", "difference_pct",
    "column", "key",
)  # fmt: skip
SECONDS = "_s"
"""Ending of columns of what our own process took: clocks are never equal, whatever the row's backend."""

_WORDS = float("inf")
"""Difference of what is no number."""

Value = Scalar | Series
Found = Mapping[tuple[str, str], Sequence[CellRecord]]


def compare_cells(ours: Found, theirs: Found) -> list[dict[str, object]]:
    """A row a study of ``ours`` and of ``theirs``.

    A cell is equal where all its rows are, but for seconds; ``difference_pct`` is the largest of any number, in
    ``column`` of the cell ``key``, and none where what differs is no number, or was zero.
    """
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        mine, committed = ({cell.key: cell for cell in side.get(name, ())} for side in (ours, theirs))
        both = [key for key in mine if key in committed]
        off = {key: _difference(mine[key], committed[key]) for key in both}
        worst = max(off, key=lambda key: off[key][0], default=None)
        percent, column = off[worst] if worst is not None else (None, "")
        found.append({
            "baseline": name[0],
            "study": name[1],
            "backend": _backends([*mine.values(), *committed.values()]),
            "cells_in_both": len(both),
            "only_this_run": len(mine) - len(both),
            "only_committed": len(committed) - len(both),
            "equal": sum(not column for _, column in off.values()),
            "difference_pct": None if percent == _WORDS else percent,
            "column": column,
            "key": worst if column else "",
        })  # fmt: skip
    return found


def _backends(cells: Iterable[CellRecord]) -> str:
    return " and ".join(sorted({str(row["backend"]) for cell in cells for row in cell.rows}))


def _difference(ours: CellRecord, theirs: CellRecord) -> tuple[float, str]:
    """The largest difference in percent and its column; no column where there is none."""
    if len(ours.rows) != len(theirs.rows):
        return _WORDS, "number of rows"
    largest = (0.0, "")
    for a, b in zip(ours.rows, theirs.rows):
        for column in dict.fromkeys([*a, *b]):
            if not column.endswith(SECONDS):
                largest = max(largest, _of_column(column, a, b), key=lambda pair: pair[0])
    return largest


def _of_column(column: str, a: SeriesRow, b: SeriesRow) -> tuple[float, str]:
    if column not in a or column not in b:
        return _WORDS, column
    x, y = a[column], b[column]
    series = isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y)
    pairs: Iterable[tuple[Value, Value]] = zip(x, y) if series else [(x, y)]  # type: ignore[arg-type]
    percent = max((_percent(one, other) for one, other in pairs), default=0.0)
    return (percent, column) if percent else (0.0, "")


def _percent(x: Value, y: Value) -> float:
    if x == y:
        return 0.0
    if isinstance(x, int | float) and isinstance(y, int | float) and not isinstance(x, bool) and y:
        return 0.0 if same([x], [y]) else 100.0 * abs(x / y - 1.0)
    return _WORDS
