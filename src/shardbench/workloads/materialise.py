"""Test batches that are drawn once: on disk, where ranks and counters map them, or in memory."""

import json
import secrets
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from shardbench.base.arrays import Ints, Ints32, mapped
from shardbench.base.errors import BadInput
from shardbench.base.reading import file_text
from shardbench.base.serialise import StrictModel, content_hash, from_json
from shardbench.workloads.hotness import join, take
from shardbench.workloads.trace import Bags, Split, assert_readable
from shardbench.workloads.workload import Workload

_HEADER = "batches.json"


class BatchSource(ABC):
    """Test batches that a plan is judged on."""

    numbers: Sequence[int]
    """The distinct batches; iteration i uses number i modulo how many there are."""

    @abstractmethod
    def bags(self, iteration: int, table: int) -> Bags:
        """Return the lookups of one table in the batch that ``iteration`` uses."""

    def joined(self, batches: int, table: int) -> Bags:
        """Return the lookups of one table in the first ``batches`` batches, one after the other."""
        return join([self.bags(number, table) for number in range(batches)])


class KeptBatches(BatchSource):
    """Test batches that are made when first asked for and kept in memory: all plans are judged on the same lookups."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self._by_batch: dict[tuple[int, int], Bags] = {}
        self._by_count: dict[tuple[int, int], Bags] = {}

    @abstractmethod
    def _make(self, number: int, table: int) -> Bags:
        """Make the lookups of one table in a batch."""

    def bags(self, iteration: int, table: int) -> Bags:
        """Return the lookups of one table in the batch that ``iteration`` uses."""
        assert_readable(Split.TEST)
        key = self.numbers[iteration % len(self.numbers)], table
        if key not in self._by_batch:
            self._by_batch[key] = self._make(*key)
        return self._by_batch[key]

    def joined(self, batches: int, table: int) -> Bags:
        """Return the lookups of one table in the first ``batches`` batches, joined once."""
        if (batches, table) not in self._by_count:
            self._by_count[batches, table] = super().joined(batches, table)
        return self._by_count[batches, table]


class DrawnBatches(KeptBatches):
    """Test batches of a workload; ``first`` is the number of the first one: 0 for those that everyone can draw."""

    def __init__(self, workload: Workload, batches: int = 1, *, first: int = 0) -> None:
        if batches > workload.test_batches:
            raise BadInput(f"{workload.name} has {workload.test_batches} test batches, not {batches}: set test_batches")
        super().__init__(range(batches))
        self._workload, self._first = workload, first

    def draw(self) -> None:
        """Draw all of them now: before the profiles, where one pass makes a table's ranking and its profile."""
        for table in range(len(self._workload.tables)):
            for number in self.numbers:
                self.bags(number, table)

    def held_out(self) -> "DrawnBatches | None":
        """Name as many batches by a number of chance, which nobody knew before; None where lookups are on record."""
        if not self._workload.drawn:
            return None
        return DrawnBatches(self._workload, len(self.numbers), first=1 + secrets.randbits(62))

    def _make(self, number: int, table: int) -> Bags:
        return self._workload.bags(Split.TEST, number, table, first=self._first)


def materialise(workload: Workload, folder: Path, batches: Iterable[int]) -> "Batches":
    """Write the given test batches of every table under ``folder``.

    Values are stored as int32 where every row id fits, table after table; bag lengths as int32
    [features of all tables, batch], those of a shared table sample by sample within its rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wide = max(table.rows for table in workload.tables) > np.iinfo(np.int32).max
    dtype = np.dtype(np.int64 if wide else np.int32)
    numbers = sorted(set(batches))
    ends = np.cumsum([0, *(table.features for table in workload.tables)])
    for batch in numbers:
        lengths = np.empty((ends[-1], workload.batch_size), dtype=np.int32)
        with (folder / f"{batch}.values").open("wb") as file:
            for i in range(len(workload.tables)):
                bags = workload.bags(Split.TEST, batch, i)
                file.write(bags.values.astype(dtype, copy=False).tobytes())
                lengths[ends[i] : ends[i + 1]] = bags.lengths.reshape(-1, workload.batch_size)
        np.save(folder / f"{batch}.lengths.npy", lengths)
    header = {
        "batches": numbers,
        "dtype": dtype.str,
        "features": [table.features for table in workload.tables],
        "batch_size": workload.batch_size,
        "crc32": _crc32(folder, numbers),
    }
    (folder / _HEADER).write_text(json.dumps(header))
    return Batches(folder)


def materialise_beside(workload: Workload, folder: Path, batches: Iterable[int]) -> "Batches":
    """Write the batches to ``folder``, or where others lie there, to a folder with a hash behind its name."""
    if not folder.exists():
        return materialise(workload, folder, batches)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as fresh:
        fresh_batches = materialise(workload, Path(fresh) / "made", batches)
        for target in (folder, folder.with_name(f"{folder.name}-{fresh_batches.hash}")):
            there = Batches(target) if (target / _HEADER).is_file() else None
            if there is not None and there.hash == fresh_batches.hash and there.intact():
                return there
            if there is None or there.hash == fresh_batches.hash:
                shutil.rmtree(target, ignore_errors=True)
                (Path(fresh) / "made").replace(target)
                return Batches(target)
    raise BadInput(f"{target} does not hold the batches that its name says: remove it")


def _crc32(folder: Path, numbers: Iterable[int]) -> int:
    crc = 0
    for batch in numbers:
        for name in (f"{batch}.values", f"{batch}.lengths.npy"):
            with (folder / name).open("rb") as file:
                while chunk := file.read(1 << 22):
                    crc = zlib.crc32(chunk, crc)
    return crc


class _Header(StrictModel):
    batches: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    dtype: Literal["<i4", "<i8"]
    features: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    batch_size: Annotated[int, Field(ge=1, le=1 << 40)]
    crc32: NonNegativeInt


class Batches(BatchSource):
    """Materialised test batches, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        if not (folder / _HEADER).is_file():
            raise BadInput(f"{folder} holds no materialised batches")
        self._header = file_text(folder / _HEADER)
        self.hash = content_hash(self._header)
        """16 hex digits of the header, which has a sum over all values."""
        header = from_json(_Header, self._header, str(folder / _HEADER))
        self.numbers = list(header.batches)
        self.batch_size = header.batch_size
        self._crc32 = header.crc32
        self._dtype = np.dtype(header.dtype)
        self._ends = np.cumsum([0, *header.features])
        self.folder = folder
        self._open: dict[int, tuple[Ints, Ints32, Ints]] = {}

    def __reduce__(self) -> tuple[type["Batches"], tuple[Path]]:
        # Crossing a process boundary must not copy what is mapped.
        return Batches, (self.folder,)

    def intact(self) -> bool:
        """Say whether the files still are what was written."""
        try:
            same = file_text(self.folder / _HEADER) == self._header
            return same and _crc32(self.folder, self.numbers) == self._crc32
        except (OSError, BadInput):
            return False

    def _batch(self, batch: int) -> tuple[Ints, Ints32, Ints]:
        if batch not in self._open:
            lengths = mapped(self.folder / f"{batch}.lengths.npy")
            path, shape = self.folder / f"{batch}.values", (int(self._ends[-1]), self.batch_size)
            if lengths.dtype != np.int32 or lengths.shape != shape or lengths.min() < 0:
                raise BadInput(f"{self.folder}: lengths of batch {batch} are not int32 {shape}, 0 or more")
            starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=1, dtype=np.int64))])[self._ends]
            there = path.stat().st_size if path.is_file() else 0
            if there != starts[-1] * self._dtype.itemsize:
                raise BadInput(f"{path} has {there} bytes, its lengths add up to {starts[-1]} values")
            # An empty file cannot be mapped.
            values = np.memmap(path, dtype=self._dtype, mode="r") if starts[-1] else np.empty(0, dtype=self._dtype)
            self._open[batch] = (values, lengths, starts)
        return self._open[batch]

    def bags_of(self, table: int, samples: Ints) -> Bags:
        """Return the bags of one table of ``samples`` int64 [n], numbered through all batches, in that order."""
        distinct, places = np.unique(samples, return_inverse=True)
        edges = np.searchsorted(distinct, self.batch_size * np.arange(len(self.numbers) + 1))
        parts = [
            take(self.bags(n, table), distinct[low:high] - n * self.batch_size)
            for n, (low, high) in enumerate(zip(edges, edges[1:]))
            if low < high
        ]
        return take(join(parts), places)

    def bags(self, iteration: int, table: int, start: int = 0, stop: int | None = None) -> Bags:
        """Return the lookups of one table for samples [start, stop) of the batch that ``iteration`` uses."""
        assert_readable(Split.TEST)
        values, lengths, starts = self._batch(self.numbers[iteration % len(self.numbers)])
        first, end = self._ends[table : table + 2].tolist()
        offsets = np.concatenate([[0], np.cumsum(lengths[first:end].ravel(), dtype=np.int64)])
        whole = Bags(values=values[starts[table] : starts[table + 1]], offsets=offsets, features=end - first)
        return whole.samples(start, self.batch_size if stop is None else stop)
