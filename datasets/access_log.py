"""Access logs that users bring, from the folder that ``shardbench profile`` writes."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.log_profile import SEEN, Profiled, SeenTable, SeenTables, offsets_file, values_file
from shardbench.datasets.preparation.prepared import NOTE, read_array, read_model
from shardbench.model.table import BatchSize, Name, Pooling, Table, Width
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.trace import Bags

_HOW = "write it with: shardbench profile (logs of your own), or prepare (public ones)"


class ProfiledConfig(RecordedConfig):
    """Parameters of a workload that lies in a folder of bags, profiles and row orders, whatever log it was made of."""

    batch_size: BatchSize = 4096
    prepared: str
    """Folder that ``shardbench profile`` or ``prepare`` wrote, relative to the data folder."""
    dims: dict[str, Width] = Field(default_factory=dict)
    """Widths of tables by name, in place of those that the folder states."""

    def build(self, data: Path) -> "AccessLog":
        """Map the folder; raises BadInput that says how to make it."""
        return AccessLog(self, data)


class AccessLogConfig(ProfiledConfig):
    """A profiled log that users bring: its tables, the samples that train, and those that test."""

    dataset: Literal["access_log"] = "access_log"
    name: Name = "access_log"


class AccessLog(RecordedWorkload):
    """Bags of every feature are read from memory-mapped files."""

    def __init__(self, config: ProfiledConfig, data: Path) -> None:
        folder = data / config.prepared
        self.profiled = read_note(folder)
        unknown = sorted(config.dims.keys() - {table.name for table in self.profiled.tables})
        if unknown:
            raise BadInput(f"{config.name}: dims of '{unknown[0]}', which is no table of {folder}")
        super().__init__(config)
        self.tables = tuple(
            Table(
                name=table.name,
                rows=table.rows,
                dim=config.dims.get(table.name, table.dim),
                pooling=Pooling.SUM if table.pooled else Pooling.NONE,
                features=len(table.features),
            )
            for table in self.profiled.tables
        )
        self._files = [
            [_read(folder, number, f, table.lookups[f], self.profiled.samples) for f in range(len(table.features))]
            for number, table in enumerate(self.profiled.tables)
        ]
        self._split_samples(self.profiled.samples, self.profiled.train_samples)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        of_features = []
        for values, offsets in self._files[table]:
            ends = np.array(offsets[start : stop + 1])
            of_features.append(Bags(values=values[ends[0] : ends[-1]].astype(np.int64), offsets=ends - ends[0]))
        return Bags.shared(of_features)

    def recipe(self) -> object:
        """Return the configuration and the folder's description, checksums included."""
        return {"config": self._config.model_dump(mode="json"), "prepared": self.profiled.model_dump(mode="json")}


def read_note(folder: Path) -> Profiled:
    """Return what ``shardbench profile`` noted in a folder; raises BadInput where it wrote nothing there."""
    return read_model(Profiled, folder / NOTE, _HOW)


def read_seen(folder: Path) -> dict[str, SeenTable]:
    """Return what a log showed of each table; nothing where the folder was written without counting values."""
    path = folder / SEEN
    return read_model(SeenTables, path, _HOW).tables if path.is_file() else {}


def constraints(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of TorchRec's ``ParameterConstraints`` by table, as the train split of a profiled log has them.

    ``pooling_factors`` are the mean lookups of a sample by each feature, absent ones counted as zero;
    ``ParameterConstraints(**fields)`` takes them.
    """
    noted = read_note(folder)
    fields_by_table: dict[str, dict[str, Any]] = {}
    for number, table in enumerate(noted.tables):
        files = [_read(folder, number, f, table.lookups[f], noted.samples) for f in range(len(table.features))]
        train = noted.train_samples
        fields_by_table[table.name] = {
            "pooling_factors": [float(offsets[train]) / train for _, offsets in files],
            "num_poolings": [1.0] * len(files),
            "feature_names": list(table.features),
        }
    return fields_by_table


def _read(folder: Path, table: int, feature: int, lookups: int, samples: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the row ids and offsets of a feature; raises BadInput where a file is not as noted."""
    values = read_array(folder / values_file(table, feature), np.signedinteger, (lookups,), _HOW)
    return values, read_array(folder / offsets_file(table, feature), np.int64, (samples + 1,), _HOW)


CONFIG = AccessLogConfig
