"""MLPerf DLRM-DCNv2's multi-hot samples, any subset of the days, from the folder that ``shardbench prepare`` writes.

A day as it is downloaded (.npz) has an array a feature: all are read side by side, part by part, as a log.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa

from shardbench.base.errors import BadInput
from shardbench.datasets.access_log import ProfiledConfig
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.preparation.criteo_prepare import CATEGORY_NAMES
from shardbench.datasets.preparation.downloads import Download, days_in_order
from shardbench.datasets.preparation.log_reader import Heard, one_line
from shardbench.model.table import Name
from shardbench.workloads.table_list import ListedTable

BATCH_ROWS = 1 << 14
_PUBLISHED = cardinalities()["terabyte_dcnv2"]
_ONE_DAYS_SHARE = 6 / 7


@dataclass(frozen=True, kw_only=True)
class MultiHotDays:
    """Files that each have the arrays '0', '1', ...: whole numbers [samples, hotness of the feature]."""

    files: tuple[Path, ...]
    features: tuple[tuple[str, int], ...]
    """Name and hotness of each array's feature, in the arrays' order."""

    def __post_init__(self) -> None:
        for path in self.files:
            if not path.is_file():
                raise BadInput(f"no file {path}: bring it, or correct the name")

    def samples(self) -> tuple[int, ...]:
        """Return the samples of each file, by its arrays' headers; raises BadInput where one is not as stated."""
        counts = []
        for path in self.files:
            with self._arrays(path) as arrays:
                counts.append(arrays[0].samples)
        return tuple(counts)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def state(self) -> str:
        """Return what says whether the files are still the same ones."""
        return repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in self.files])

    def parts(self) -> "tuple[MultiHotDays, ...]":
        """Return the days as logs of their own."""
        return tuple(replace(self, files=(path,)) for path in self.files)

    def batches(
        self, columns: Sequence[str], typed: Sequence[str] = (), heard: Heard = lambda more: None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a file's name and a part of its samples, the features ``columns`` as lists of one length.

        Nothing changes with ``typed``: all are numbers. Raises BadInput naming the file that is damaged, or not as
        stated.
        """
        for path in self.files:
            with self._arrays(path) as arrays:
                for first in range(0, arrays[0].samples, BATCH_ROWS):
                    rows = min(BATCH_ROWS, arrays[0].samples - first)
                    parts = {name: array.read(rows) for (name, _), array in zip(self.features, arrays)}
                    yield path.name, pa.RecordBatch.from_pydict({name: parts[name] for name in columns})
                for array in arrays:
                    array.finish()
            heard(path.stat().st_size)

    @contextmanager
    def _arrays(self, path: Path) -> Iterator[list["_Array"]]:
        """Open a file's arrays, which must all have as many samples."""
        with one_line(path), ExitStack() as opened:
            archive = opened.enter_context(zipfile.ZipFile(path))
            names = [f"{number}.npy" for number in range(len(self.features))]
            if sorted(archive.namelist()) != sorted(names):
                raise BadInput(f"{path.name} has other arrays than '0' to '{len(names) - 1}'")
            arrays = [
                _Array(opened.enter_context(archive.open(name)), f"{path.name} array '{number}'", hotness)
                for number, (name, (_, hotness)) in enumerate(zip(names, self.features))
            ]
            for array in arrays:
                if array.samples != arrays[0].samples:
                    raise BadInput(f"{array.name} has {array.samples} samples, '0' has {arrays[0].samples}")
            yield arrays


class _Array:
    """One member of an archive, read from its beginning to its end; faults begin with ``name``."""

    def __init__(self, stream: IO[bytes], name: str, hotness: int) -> None:
        self._stream, self.name, self._hotness = stream, name, hotness
        try:
            version = np.lib.format.read_magic(stream)
            shape, by_column, self._dtype = np.lib.format.read_array_header_1_0(stream)
        except Exception as error:
            # As of every header of numpy's: it is read as Python.
            raise BadInput(f"{name} cannot be read as an array of numpy's: {error}") from error
        if version != (1, 0):
            raise BadInput(f"{name} is in version {version} of numpy's format, expected (1, 0)")
        if not np.issubdtype(self._dtype, np.integer) or len(shape) != 2 or shape[1] != hotness or by_column:
            order = ", by column" if by_column else ""
            raise BadInput(f"{name} is {self._dtype} {list(shape)}{order}, expected int32 [samples, {hotness}]")
        self.samples = int(shape[0])

    def read(self, samples: int) -> pa.FixedSizeListArray:
        """Read the next ``samples`` samples; raises BadInput where the array ends before."""
        nbytes = samples * self._hotness * self._dtype.itemsize
        data = self._stream.read(nbytes)
        if len(data) < nbytes:
            raise BadInput(f"{self.name} ends before its {self.samples} samples do")
        values: Any = np.frombuffer(data, dtype=self._dtype)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(self._dtype.newbyteorder("="))), self._hotness)

    def finish(self) -> None:
        """Raise BadInput where there is more than was stated; what was read is held against its checksum."""
        if self._stream.read(1):
            raise BadInput(f"{self.name} has more than its {self.samples} samples")


class CriteoMultiHotConfig(ProfiledConfig):
    """26 tables of 1 to 100 lookups a sample each; the last of several days tests."""

    dataset: Literal["criteo_multi_hot"] = "criteo_multi_hot"
    name: Name = "criteo_multi_hot"
    prepared: str = "criteo_multi_hot"


def _read(files: tuple[Path, ...]) -> MultiHotDays:
    return MultiHotDays(files=files, features=tuple(zip(CATEGORY_NAMES, _PUBLISHED["multi_hot"])))


def _train_share(files: tuple[Path, ...]) -> float:
    """Return the share of samples on all days but the last."""
    samples = _read(files).samples()
    if len(samples) == 1:
        return _ONE_DAYS_SHARE
    if samples[-1] == 0:
        raise BadInput(f"{files[-1].name} has no sample, but its samples are to test: give a day that has some")
    # In the middle of two shares, so that rounding takes no sample away.
    return (sum(samples[:-1]) + 0.5) / sum(samples)


DOWNLOAD = Download(
    read=_read,
    tables=tuple(
        ListedTable(name=name, rows=rows, dim=_PUBLISHED["dim"])
        for name, rows in zip(CATEGORY_NAMES, _PUBLISHED["rows"])
    ),
    mode="ids",
    expected=(
        "any of day_0_sparse_multi_hot.npz to day_23_sparse_multi_hot.npz of MLPerf DLRM-DCNv2, in order (arrays '0' "
        "to '25', int32 [samples, hotness of the feature]; dense and labels are not needed)"
    ),
    train_share=_train_share,
    check=days_in_order,
)

CONFIG = CriteoMultiHotConfig
