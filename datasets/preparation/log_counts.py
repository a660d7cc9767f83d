"""Turns counts that others made of a log into a folder, from which the kind ``access_log`` draws its lookups.

Nobody must move a log for that: a warehouse counts ``table, value`` (or ``table, row``) and gives the ``count``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.distinct import WordCounts
from shardbench.datasets.preparation.log_encode import Cells, RowsOfTable
from shardbench.datasets.preparation.log_profile import Profiled, counted_table, order_file, write_notes
from shardbench.datasets.preparation.log_reader import LogFiles
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
    lacking = next((name for name, one in met.items() if not one.lookups + one.missing), None)
    if lacking is not None:
        raise BadInput(f"{counts.files[0].name} has no counts of table {lacking}: leave it out, or correct its name")
    there = {one.name: met[one.name].lookups / (one.pooling or 1) / len(one.inputs) for one in tables}
    samples = ceil(max(there[t.name] / (t.coverage or 1) + met[t.name].missing / len(t.inputs) for t in tables))
    of_tables = []
    with whole_folder(target) as folder:
        for number, table in enumerate(tables):
            rows, own, features = coders[table.name], met[table.name], len(table.inputs)
            words, counted, rows.values = own.counts.of_train()
            # Numbers of a vocabulary do not depend on the order of the lines.
            order = np.argsort(words)
            rows.most_id = int(words.max(initial=0)) if cells.mode == "ids" else 0
            empty = own.missing if cells.missing == "row" else 0
            share = min(1.0, (there[table.name] + empty / features) / samples)
            lookups = own.lookups + empty
            of_tables.append(
                counted_table(
                    folder / order_file(number), table, rows, codes=rows.codes(words[order]), counts=counted[order],
                    empty=empty, samples=samples,
                    present=max(int(lookups > 0), round(samples * (1 - (1 - share) ** features))),
                    lookups=tuple((lookups + feature) // features for feature in range(features)), checksums={},
                )
            )  # fmt: skip
        return write_notes(
            folder, of_tables, samples=samples, train_samples=samples, read_rows=samples, mode=cells.mode,
            missing=cells.missing, rate=1.0, seed=cells.seed, time=None, split_at=None, counted=True,
        )  # fmt: skip


@dataclass
class _Met:
    """What was counted of one table: its words, how many lookups these are, and missing values."""

    counts: WordCounts = field(default_factory=WordCounts)
    lookups: int = 0
    missing: int = 0


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
            of_values = numbers[coded.there]
            met[name].counts.add(coded.each(coded.words), of_values, of_values)
            met[name].lookups += int(of_values.sum())
            met[name].missing += int(numbers[~coded.there].sum())
    return met
