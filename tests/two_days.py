"""Logs of two made-up days: the same rows are hot on both, or others on the second one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardbench.datasets.preparation.log_encode import Cells
from shardbench.datasets.preparation.log_profile import profile_log
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.workloads.table_list import ListedTable

SAMPLES = 4000
ROWS = {"user": 20_000, "item": 5_000}


def write_days(
    place: Path,
    *,
    folder: str,
    days: Sequence[int],
    seed: int = 0,
    rows: dict[str, int] = ROWS,
    mode: str = "ids",
    dim: int = 64,
    bag: int = 8,
) -> Path:
    """Profile a log of these days into ``place/folder``; the last of several days tests, else a part of the day."""
    log = place / f"{folder.replace('/', '-')}.csv"
    write_log(log, days, seed, rows, bag)
    target = place / folder
    target.parent.mkdir(parents=True, exist_ok=True)
    counted = mode == "vocabulary"
    tables = tuple(ListedTable(name=name, rows=None if counted else size, dim=dim) for name, size in rows.items())
    share = 0.5 if len(days) > 1 else 0.8
    profile_log(
        LogFiles(files=(log,)),
        target,
        tables,
        cells=Cells(mode=mode, delimiter="|"),
        cut=SampleSplit(train_share=share),
    )
    return target


def write_log(path: Path, days: Sequence[int], seed: int = 0, rows: dict[str, int] = ROWS, bag: int = 8) -> None:
    """Write the samples of these days, with bags of so many lookups in a column a table.

    Every row of day d is one of day 0, moved on by d x 1000 places: others are hot.
    """
    lines = [",".join(rows)]
    for number, day in enumerate(days):
        generator = np.random.default_rng([seed, number])
        columns = []
        for size in rows.values():
            hot = (size ** generator.random((SAMPLES, bag)) - 1).astype(np.int64)
            moved = (hot + 1000 * day) % size
            columns.append(["|".join(map(str, bag)) for bag in moved.tolist()])
        lines += [",".join(cells) for cells in zip(*columns)]
    path.write_text("\n".join(lines) + "\n")
