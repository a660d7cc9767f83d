"""Turns access logs into a folder of bags, profiles and row orders, which the kind ``access_log`` reads.

The log is read part by part; memory is that of a part and of the distinct rows of a table, not of the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from shardbench.base.arrays import Bools, Ints
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.base.serialise import StrictModel
from shardbench.datasets.preparation.array_file import ArrayFile, part
from shardbench.datasets.preparation.distinct import sharing
from shardbench.datasets.preparation.log_encode import Cells, Mode, RowsOfTable
from shardbench.datasets.preparation.log_reader import Source, times
from shardbench.datasets.preparation.prepared import NOTE, Note, write_model
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Rows, TableName, Width
from shardbench.workloads.profiling import RowCounter
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.value_hash import Missing, mixed, own_rows

PROFILES = "profiles.json"
SEEN = "seen.json"
HOT_SHARE = 0.01
"""Share of the rows seen, hottest first, whose share of the lookups is told."""
CHUNK = 1 << 20
"""Lookups that are counted, or put together, at once."""
_SAMPLED_TIMES = 1 << 20
_MAX_ROWS32 = 2**31 - 1


class LoggedTable(StrictModel):
    """One table of a profiled log."""

    name: TableName
    rows: Rows
    dim: Width
    pooled: bool
    features: Annotated[tuple[str, ...], Field(min_length=1)]
    lookups: tuple[NonNegativeInt, ...]
    """Lookups of each feature, of both splits together."""

    @pydantic.model_validator(mode="after")
    def _of_each(self) -> "LoggedTable":
        if len(self.lookups) != len(self.features):
            raise ValueError(f"{len(self.features)} features but lookups of {len(self.lookups)}")
        return self


class Profiled(Note):
    """What ``prepared.json`` says of a profiled log."""

    train_samples: PositiveInt
    read_rows: PositiveInt
    """Rows of the log, of which ``samples`` were kept."""
    mode: Mode
    missing: Missing
    rate: float
    time: str | None
    split_at: int | None
    """Samples before this time train."""
    tables: Annotated[tuple[LoggedTable, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class SampleSplit:
    """Which samples of a log are kept, and which of these train."""

    time: str | None = None
    """Column of times; None: the log is in the order of time."""
    train_share: float = 0.8
    rate: float = 1.0
    """Share of the rows that is kept."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.train_share < 1 and 0 < self.rate <= 1):
            raise BadInput(f"train share {self.train_share} must be in (0, 1), rate {self.rate} in (0, 1]")

    def kept(self, first: int, rows: int) -> Bools:
        """Return which rows [first, first + rows) of the log are kept, bool [rows]: the same ones however it is cut."""
        if self.rate == 1.0:
            return np.ones(rows, dtype=np.bool_)
        draws = mixed(np.arange(first, first + rows, dtype=np.int64), self.seed) >> np.uint64(11)
        return np.asarray(draws < np.uint64(round(self.rate * 2**53)))


def values_file(table: int, feature: int) -> str:
    """Return the name of the file of a feature's row ids, one after the other."""
    return f"t{table}_f{feature}_values.npy"


def offsets_file(table: int, feature: int) -> str:
    """Return the name of the file of where a feature's bags begin and end in its row ids, int64 [samples + 1]."""
    return f"t{table}_f{feature}_offsets.npy"


def order_file(table: int) -> str:
    """Return the name of the file of a table's rows seen in the train split, hottest first, int64 [seen]."""
    return f"t{table}_order.npy"


def profile_log(
    log: Source,
    target: Path,
    tables: Sequence[ListedTable],
    *,
    cells: Cells,
    cut: SampleSplit,
    count_values: bool = False,
    progress: Callable[[int], None] | None = None,
    counted: Callable[[int], None] | None = None,
) -> Profiled:
    """Write the folder ``target``, which must not exist, and return its description; nothing is left of a failure.

    ``tables`` say which columns are looked up where; hashed ones without rows get the rows that fit their values.
    With ``count_values`` the folder also says what was seen (``SeenTables``). ``progress`` is called with the rows read
    so far, and then ``counted`` with the tables counted so far. Raises BadInput that names file and column.
    """
    with whole_folder(target) as folder:
        writer = _Writer(folder, tables, cells, split=cut.time is not None, count=count_values)
        split_at = _split_time(log, cut.time, cut.train_share) if cut.time is not None else None
        read_rows = _read(log, writer, cut, split_at, progress)
        train = writer.finish(cut)
        checksums = writer.checksums
        logged = writer.tables()
        profiles, seen_tables = {}, {}
        for number, table in enumerate(logged):
            profile, order = _count(folder, number, table, train)
            profiles[table.name] = profile
            if count_values:
                seen_tables[table.name] = _seen_table(table, profile, writer.rows[number], cells)
            if counted is not None:
                counted(number + 1)
            file = ArrayFile(folder / order_file(number), np.int64)
            file.append(order)
            checksums[file.path.name] = file.close()
        write_model(folder / PROFILES, TableProfiles(tables=profiles))
        if count_values:
            write_model(folder / SEEN, SeenTables(tables=seen_tables))
        profiled = Profiled(
            samples=writer.samples, train_samples=train, read_rows=read_rows, mode=cells.mode, missing=cells.missing,
            rate=cut.rate, seed=cells.seed, time=cut.time, split_at=split_at, tables=tuple(logged), checksums=checksums,
        )  # fmt: skip
        write_model(folder / NOTE, profiled)
    return profiled


class TableProfiles(StrictModel):
    """What ``profiles.json`` says: the train split's profile of every table, by its name."""

    tables: dict[str, AccessProfile]


class SeenTable(StrictModel):
    """What a log showed of one table; shares are 0..1."""

    rows: Rows
    dim: Width
    values: NonNegativeInt
    """Different values in the whole log: exactly up to 2^16, else estimated within about 1 %."""
    suggested_rows: Rows
    """Rows that would fit the values: as many in a vocabulary, else enough to hash them into."""
    sharing: float
    """Expected share of the values that share their row with another one."""
    pooling: float
    """Mean lookups of a train sample, absent features counted as zero."""
    coverage: float
    """Share of the train samples that have a lookup."""
    hot: float
    """Share of the train lookups that go to the hottest 1 % of the rows seen."""
    new: float
    """Expected share of further lookups that go to rows not seen yet: rows seen once over lookups (Good, 1953)."""


class SeenTables(StrictModel):
    """What ``seen.json`` says, by the table's name."""

    tables: dict[str, SeenTable]


def _read(
    log: Source, writer: "_Writer", cut: SampleSplit, split_at: int | None, progress: Callable[[int], None] | None
) -> int:
    """Write all kept rows; return the number of rows of the log."""
    rows = 0
    columns = [*writer.columns, *([cut.time] if cut.time is not None else [])]
    for name, batch in log.batches(list(dict.fromkeys(columns)), [cut.time] if cut.time is not None else []):
        is_kept = cut.kept(rows, batch.num_rows)
        rows += batch.num_rows
        part = batch if is_kept.all() else batch.filter(pa.array(is_kept))
        before = times(part[cut.time], f"{name} column {cut.time}") < split_at if split_at is not None else None
        writer.add(part, before, name)
        if progress is not None:
            progress(rows)
    return rows


def _split_time(log: Source, column: str, train_share: float) -> int:
    """Return the time before which about ``train_share`` of the rows lie, by at most 2^21 evenly spread ones."""
    parts: list[Ints] = []
    step, rows = 1, 0
    for name, batch in log.batches([column], [column]):
        row_times = times(batch[column], f"{name} column {column}")
        parts.append(row_times[-rows % step :: step])
        rows += len(row_times)
        if sum(map(len, parts)) > 2 * _SAMPLED_TIMES:
            parts, step = [np.concatenate(parts)[::2]], step * 2
    if rows == 0:
        raise BadInput("the log has no row")
    return int(np.quantile(np.concatenate(parts), train_share, method="higher"))


class _Feature:
    """The files of one column's bags of one split."""

    def __init__(self, values: Path, offsets: Path, wide: bool) -> None:
        self.values = ArrayFile(values, np.int64 if wide else np.int32)
        self.offsets = ArrayFile(offsets, np.int64)
        self.offsets.append(np.zeros(1, dtype=np.int64))

    def add(self, rows: Ints, lengths: Ints) -> None:
        self.offsets.append(self.values.length + np.cumsum(lengths))
        self.values.append(rows)

    @property
    def samples(self) -> int:
        return self.offsets.length - 1


class _Writer:
    """Bags of all features; those that test wait in files of their own until all that train are written."""

    def __init__(self, folder: Path, tables: Sequence[ListedTable], cells: Cells, *, split: bool, count: bool) -> None:
        self._folder = folder
        self._listed = tables
        self.rows = [RowsOfTable(t.name, cells, t.rows, count=count) for t in tables]
        # Row numbers and hashes may be any; a vocabulary has no more values than fit.
        self._wide = cells.mode != "vocabulary"
        self._places = [(t, f, column) for t, table in enumerate(tables) for f, column in enumerate(table.inputs)]
        self.columns = [column for _, _, column in self._places]
        listed = [table.rows for table in tables]
        self._train = [
            self._files(t, f, "open_" if self.rows[t].is_open else "", listed[t]) for t, f, _ in self._places
        ]
        self._test = [self._files(t, f, "test_", listed[t]) for t, f, _ in self._places] if split else []
        self.checksums: dict[str, str] = {}

    def _files(self, table: int, feature: int, prefix: str, rows: int | None) -> _Feature:
        wide = self._wide if rows is None else rows > _MAX_ROWS32
        values, offsets = prefix + values_file(table, feature), prefix + offsets_file(table, feature)
        return _Feature(self._folder / values, self._folder / offsets, wide)

    def add(self, part: pa.RecordBatch, before: Bools | None, name: str) -> None:
        """Add some samples; those that are not ``before`` the cut test."""
        for place, (table, _, column) in enumerate(self._places):
            rows, lengths = self.rows[table](part.column(column), f"{name} column {column}")
            if before is None:
                self._train[place].add(rows, lengths)
                continue
            of_train = np.repeat(before, lengths)
            self._train[place].add(rows[of_train], lengths[before])
            self._test[place].add(rows[~of_train], lengths[~before])

    @property
    def samples(self) -> int:
        """Return the number of samples written, of both splits once they are put together."""
        return self._train[0].samples

    def finish(self, cut: SampleSplit) -> int:
        """Put the splits together and close all files; return the number of train samples, both splits having some."""
        train = self.samples
        for place, (t, f, _) in enumerate(self._places):
            table, parts = self.rows[t], [self._test[place]] if self._test else []
            if table.is_open:
                parts.insert(0, self._train[place])
                self._train[place] = self._files(t, f, "", table.rows)
            for last in parts:
                _join(self._train[place], last, table.settled if table.is_open else None)
        for feature in self._train:
            for file in (feature.values, feature.offsets):
                self.checksums[file.path.name] = file.close()
        if not self._test:
            train = int(self.samples * cut.train_share)
        if not 0 < train < self.samples:
            raise BadInput(f"{train} of {self.samples} samples train: give more rows, or another train share or rate")
        return train

    def tables(self) -> list[LoggedTable]:
        """Return the tables with their rows as stated or counted."""
        lookups = {(t, f): self._train[place].values.length for place, (t, f, _) in enumerate(self._places)}
        return [
            LoggedTable(
                name=table.name,
                rows=self.rows[number].rows,
                dim=table.dim,
                pooled=table.pooled,
                features=table.inputs,
                lookups=tuple(lookups[number, f] for f in range(len(table.inputs))),
            )
            for number, table in enumerate(self._listed)
        ]


def _join(first: _Feature, last: _Feature, settled: Callable[[Ints, Ints], tuple[Ints, Ints]] | None) -> None:
    """Put the bags of ``last``, whose files go, behind those of ``first``; ``settled`` makes rows of them."""
    last.values.close()
    last.offsets.close()
    step = _samples_at_once(last.samples, last.values.length)
    for start in range(0, last.samples, step):
        ends = part(last.offsets.path, start, min(start + step, last.samples) + 1)
        values, lengths = part(last.values.path, ends[0], ends[-1]), np.diff(ends)
        first.add(*(settled(values, lengths) if settled is not None else (values, lengths)))
    last.values.path.unlink()
    last.offsets.path.unlink()


def _seen_table(table: LoggedTable, profile: AccessProfile, rows: RowsOfTable, cells: Cells) -> SeenTable:
    """Tell what was seen of a table, of which ``profile`` counts the train split."""
    lookups, seen_rows = profile.lookups, sum(profile.row_counts)
    once = profile.row_counts[-1] if profile.counts and profile.counts[-1] == 1 else 0
    return SeenTable(
        rows=table.rows,
        dim=table.dim,
        values=rows.values,
        suggested_rows=rows.suggested_rows,
        sharing=sharing(rows.values, table.rows - own_rows(cells.missing)) if cells.mode == "hash" else 0.0,
        pooling=profile.mean_pooling,
        coverage=profile.coverage,
        hot=float(profile.cdf(np.ceil(HOT_SHARE * seen_rows))) if lookups else 0.0,
        new=once / lookups if lookups else 0.0,
    )


def _count(folder: Path, number: int, table: LoggedTable, train: int) -> tuple[AccessProfile, Ints]:
    """Count a table's train split chunk by chunk: its profile, and its seen rows in frequency order."""
    counter = RowCounter(table.rows)
    files = [(folder / values_file(number, f), folder / offsets_file(number, f)) for f in range(len(table.features))]
    step = _samples_at_once(train, sum(table.lookups))
    for start in range(0, train, step):
        ends = [part(offsets, start, min(start + step, train) + 1) for _, offsets in files]
        rows = [part(values, of[0], of[-1]) for (values, _), of in zip(files, ends)]
        counter.add(np.concatenate(rows), np.sum([np.diff(of) for of in ends], axis=0))
    counts = counter.counts()
    return counts.profile, counts.ids[np.argsort(-counts.counts, kind="stable")]


def _samples_at_once(samples: int, lookups: int) -> int:
    """Return how many samples have about CHUNK lookups, and are no more than that themselves."""
    return max(1, CHUNK * samples // max(samples, lookups, 1))
