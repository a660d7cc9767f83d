"""Turns counts that others made of a log into a folder, from which the kind ``access_log`` draws its lookups.

Nobody must move a log for that: a warehouse counts ``table, value`` (or ``table, row``) and gives the ``count``.
"""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardbench.base.arrays import Ints, Words
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.array_file import ArrayFile
from shardbench.datasets.preparation.log_encode import Cells, RowsOfTable
from shardbench.datasets.preparation.log_profile import (
    PROFILES,
    SEEN,
    LoggedTable,
    Profiled,
    SeenTables,
    TableProfiles,
    order_file,
    ordered,
    seen_table,
)
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.prepared import NOTE, write_model
from shardbench.model.profile import AccessProfile
from shardbench.workloads.table_list import ListedTable

TABLE, COUNT = "table", "count"
VALUE, ROW = "value", "row"


def tables_of(counts: LogFiles) -> tuple[str, ...]:
    """Return the names of the tables that counts are of, in the order of their first lines."""
    names = (batch.column(TABLE).cast(pa.string()).unique() for _, batch in counts.batches([TABLE]))
    return tuple(dict.fromkeys(name for part in names for name in part.drop_null().to_pylist()))


def profile_counts(counts: LogFiles, target: Path, tables: Sequence[ListedTable], *, cells: Cells) -> Profiled:
    """Write the folder ``target``, which must not exist, and return its description.

    ``counts`` has the columns ``table``, ``count`` and ``value``, or ``row`` where ``cells`` are ids; a missing value
    is a bag without a lookup. Of ``tables`` it takes, too, how many lookups a bag has on average (``pooling``, else 1)
    and which share of the samples has a bag (``coverage``): there are as many samples as some table has bags. Raises
    BadInput that names file and column, or a table without counts.
    """
    coders = {table.name: RowsOfTable(table.name, cells, table.rows) for table in tables}
    met = _gathered(counts, coders, ROW if cells.mode == "ids" else VALUE)
    lacking = next((name for name, one in met.items() if not one.words), None)
    if lacking is not None:
        raise BadInput(f"{counts.files[0].name} has no counts of table {lacking}: leave it out, or correct its name")
    there = {one.name: met[one.name].lookups / (one.pooling or 1) / len(one.inputs) for one in tables}
    samples = ceil(max(there[t.name] / (t.coverage or 1) + met[t.name].missing / len(t.inputs) for t in tables))
    profiles, seen, logged, checksums = {}, {}, [], {}
    with whole_folder(target) as folder:
        for number, table in enumerate(tables):
            rows, own, features = coders[table.name], met[table.name], len(table.inputs)
            words, of_word = np.unique(np.concatenate(own.words), return_inverse=True)
            counted = np.zeros(len(words), dtype=np.int64)
            np.add.at(counted, of_word, np.concatenate(own.counts))
            rows.values = len(words)
            rows.most_id = int(words.max()) if cells.mode == "ids" else 0
            empty = own.missing if cells.missing == "row" else 0
            order, sums = ordered(rows.rows_of(rows.codes(words)), counted, empty)
            share = min(1.0, (there[table.name] + empty / features) / samples)
            present = max(int(len(order) > 0), round(samples * (1 - (1 - share) ** features)))
            profile = AccessProfile.from_counts(sums, rows=rows.rows, samples=samples, present=present)
            logged.append(
                LoggedTable(
                    name=table.name, rows=rows.rows, dim=table.dim, pooled=table.pooled, features=table.inputs,
                    lookups=tuple((profile.lookups + feature) // features for feature in range(features)),
                )
            )  # fmt: skip
            profiles[table.name], seen[table.name] = profile, seen_table(logged[-1], profile, rows, cells)
            file = ArrayFile(folder / order_file(number), np.int64)
            file.append(order)
            checksums[file.path.name] = file.close()
        write_model(folder / PROFILES, TableProfiles(tables=profiles))
        write_model(folder / SEEN, SeenTables(tables=seen))
        note = Profiled(
            samples=samples, train_samples=samples, read_rows=samples, mode=cells.mode, missing=cells.missing, rate=1.0,
            seed=cells.seed, time=None, split_at=None, tables=tuple(logged), checksums=checksums, counted=True,
        )  # fmt: skip
        write_model(folder / NOTE, note)
    return note


class _Met:
    """What was counted of one table: words and how often each was met, in parts, and missing values."""

    def __init__(self) -> None:
        self.words: list[Words] = []
        self.counts: list[Ints] = []
        self.missing = 0

    @property
    def lookups(self) -> int:
        """Return how many values were met."""
        return sum(int(counts.sum()) for counts in self.counts)


def _gathered(counts: LogFiles, coders: dict[str, RowsOfTable], column: str) -> dict[str, _Met]:
    """Return what was counted of each table; of others nothing is kept."""
    met = {name: _Met() for name in coders}
    for file, batch in counts.batches([TABLE, column, COUNT], [COUNT]):
        times = batch.column(COUNT)
        if not pa.types.is_integer(times.type) or times.null_count or (pc.min(times).as_py() or 0) < 0:
            raise BadInput(f"{file} column {COUNT}: counts are whole numbers from 0 on, and none is missing")
        names = batch.column(TABLE).cast(pa.string())
        for name in set(names.unique().to_pylist()) & met.keys():
            own = pc.and_(pc.equal(names, name), pc.greater(times, 0))
            coded = coders[name].coded(batch.column(column).filter(own), f"{file} column {column}")
            numbers = times.filter(own).cast(pa.int64()).to_numpy(zero_copy_only=False)
            if (coded.bag_lengths > 1).any():
                raise BadInput(f"{file} column {column}: a count is of one value, not of a list")
            met[name].words.append(coded.each(coded.words))
            met[name].counts.append(numbers[coded.there])
            met[name].missing += int(numbers[~coded.there].sum())
    return met
