"""Criteo Kaggle (Display Advertising Challenge) from the form ``criteo_prepare`` writes."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shardbench.base.errors import BadInput
from shardbench.datasets.preparation import prepared
from shardbench.datasets.preparation.criteo_prepare import CATEGORIES, Mode, Prepared, category_file
from shardbench.model.table import BatchSize, Name, Table, Width
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.trace import Bags, bag_offsets

NOTE = prepared.NOTE
TRAIN_SHARE = 6 / 7
"""The file is seven days; six of them train."""
_HOW = (
    "get train.txt of Criteo's Display Advertising Challenge (its terms forbid passing it on) "
    "and prepare it into that folder: shardbench prepare"
)


class CriteoKaggleConfig(RecordedConfig):
    """26 one-hot tables; the first share of the samples (time order) trains, the rest tests."""

    dataset: Literal["criteo_kaggle"] = "criteo_kaggle"
    name: Name = "criteo_kaggle"
    batch_size: BatchSize = 4096
    prepared: str = "criteo_kaggle"
    """Prepared folder, relative to the data folder."""
    mode: Mode = "hash"
    """How the folder was prepared: rows by stable hash, or by vocabulary."""
    dim: Width = 16
    train_share: float = Field(default=TRAIN_SHARE, gt=0, lt=1)

    def build(self, data: Path) -> "CriteoKaggle":
        """Map the prepared folder; raises BadInput that says how to prepare it."""
        return CriteoKaggle(self, data)


class CriteoKaggle(RecordedWorkload):
    """An empty category cell is an empty bag; columns are read from memory-mapped files."""

    def __init__(self, config: CriteoKaggleConfig, data: Path) -> None:
        super().__init__(config)
        folder = data / config.prepared
        self.prepared = read_note(folder)
        if self.prepared.mode != config.mode:
            raise BadInput(f"{folder} was prepared by '{self.prepared.mode}', not '{config.mode}': {_HOW}")
        self._columns = [read_column(folder, c, self.prepared) for c in range(CATEGORIES)]
        self.tables = tuple(
            Table(name=f"C{c + 1}", rows=self.prepared.rows[c], dim=config.dim) for c in range(CATEGORIES)
        )
        samples = self.prepared.samples
        self._split_samples(samples, int(samples * config.train_share))

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        return bags_of(self._columns[table][start:stop])

    def recipe(self) -> object:
        """Return the configuration and the prepared folder's description, checksums included."""
        return {"config": self._config.model_dump(mode="json"), "prepared": self.prepared.model_dump(mode="json")}


def read_note(folder: Path) -> Prepared:
    """Return what ``shardbench prepare`` noted in a folder; raises BadInput where the folder is not prepared."""
    return prepared.read_model(Prepared, folder / NOTE, _HOW)


def read_column(folder: Path, category: int, note: Prepared) -> NDArray[Any]:
    """Map the rows that a category asks for, int32 [samples]; -1 stands for an empty cell."""
    return read_array(folder / category_file(category), np.int32, (note.samples,))


def read_array(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a prepared array; raises BadInput where the file holds no array of this kind and shape."""
    return prepared.read_array(path, kind, shape, _HOW)


def bags_of(column: NDArray[Any]) -> Bags:
    """Return the one-hot bags of a part of a column; an empty cell is an empty bag."""
    there = np.asarray(column) >= 0
    return Bags(values=column[there].astype(np.int64), offsets=bag_offsets(there.astype(np.int64)))


CONFIG = CriteoKaggleConfig
