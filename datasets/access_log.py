"""Access logs that users bring, from the folder that ``shardbench profile`` writes."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.log_profile import (
    PROFILES,
    SEEN,
    Profiled,
    SeenTable,
    SeenTables,
    TableProfiles,
    offsets_file,
    values_file,
)
from shardbench.datasets.preparation.prepared import NOTE, read_array, read_model
from shardbench.model.table import BatchSize, Name, Pooling, Table, Width
from shardbench.workloads.drawn import DrawnWorkload, bag_lengths
from shardbench.workloads.ranking_cache import Survey
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.trace import Bags, Ranking, Split, bag_offsets

_HOW = "write it with: shardbench profile (logs of your own), or prepare (public ones)"


class ProfiledConfig(RecordedConfig):
    """Parameters of a workload that lies in a folder of bags, profiles and row orders, whatever log it was made of."""

    batch_size: BatchSize = 4096
    prepared: str
    """Folder that ``shardbench profile`` or ``prepare`` wrote, relative to the data folder."""
    dims: dict[str, Width] = Field(default_factory=dict)
    """Widths of tables by name, in place of those that the folder states."""

    def build(self, data: Path) -> "AccessLog | CountedLog":
        """Map the folder; raises BadInput that says how to make it."""
        return CountedLog(self, data) if read_note(data / self.prepared).counted else AccessLog(self, data)


class AccessLogConfig(ProfiledConfig):
    """A profiled log that users bring: its tables, the samples that train, and those that test."""

    dataset: Literal["access_log"] = "access_log"
    name: Name = "access_log"


class AccessLog(RecordedWorkload):
    """Bags of every feature are read from memory-mapped files."""

    def __init__(self, config: ProfiledConfig, data: Path) -> None:
        folder = data / config.prepared
        self.profiled = read_note(folder)
        super().__init__(config)
        self.tables = _tables(self.profiled, config)
        self._files = [
            [_read(folder, number, f, table.lookups[f], self.profiled.samples) for f in range(len(table.features))]
            for number, table in enumerate(self.profiled.tables)
        ]
        self._split_samples(self.profiled.samples, self.profiled.train_samples)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        of_features = []
        for values, offsets in self._files[table]:
            ends = offsets[start : stop + 1].astype(np.int64)
            of_features.append(Bags(values=values[ends[0] : ends[-1]].astype(np.int64), offsets=ends - ends[0]))
        return Bags.shared(of_features)

    def recipe(self) -> object:
        """Return the configuration and the folder's description, checksums included."""
        return {"config": self._config.model_dump(mode="json"), "prepared": self.profiled.model_dump(mode="json")}


class CountedLog(DrawnWorkload):
    """Lookups drawn as often as others counted them in a log; lengths and lookups of tables are independent.

    Rows are ranks already, and the profiles are those of the log itself.
    """

    def __init__(self, config: ProfiledConfig, data: Path) -> None:
        folder = data / config.prepared
        self.profiled = read_note(folder)
        self._configure(config)
        self.tables = _tables(self.profiled, config)
        self.seed, self.profile_samples = self.profiled.seed, self.profiled.samples
        told = read_model(TableProfiles, folder / PROFILES, _HOW).tables
        self._told = [told[table.name] for table in self.tables]

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        generator, profile = self._generator(split, batch, table), self._told[table]
        features = self.tables[table].features
        share = 1 - (1 - profile.coverage) ** (1 / features)
        pooling = max(1.0, profile.mean_pooling / features / share) if share else 1.0
        offsets = bag_offsets(bag_lengths(generator, self.batch_size * features, pooling, share))
        # A draw of 1 - u, which is never 0: so many of the hottest rows take that share, and the last of them is met.
        values = profile.inverse_cdf(1 - generator.random(int(offsets[-1]))) - 1
        return Bags(values=values, offsets=offsets, features=features)

    def quicker(self, samples: int) -> Self:
        """Return the workload itself, as its profiles are there already."""
        return self

    def _survey(self, table: int) -> Survey:
        # Of no lookups: rows keep their numbers, which are their ranks.
        return Ranking(np.empty(0, dtype=np.int64), self.tables[table].rows), self._told[table]

    def recipe(self) -> object:
        """Return the configuration and the folder's description, checksums included."""
        return {"config": self._config.model_dump(mode="json"), "prepared": self.profiled.model_dump(mode="json")}


def _tables(noted: Profiled, config: ProfiledConfig) -> tuple[Table, ...]:
    """Return the tables of a folder, as wide as the configuration has them; raises BadInput where it has others."""
    unknown = sorted(config.dims.keys() - {table.name for table in noted.tables})
    if unknown:
        raise BadInput(f"{config.name}: dims of '{unknown[0]}', which is no table of {config.prepared}")
    return tuple(
        Table(
            name=table.name,
            rows=table.rows,
            dim=config.dims.get(table.name, table.dim),
            pooling=Pooling.SUM if table.pooled else Pooling.NONE,
            features=len(table.features),
        )
        for table in noted.tables
    )


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
    train = noted.train_samples
    for number, table in enumerate(noted.tables):
        lookups = table.lookups
        if not noted.counted:
            files = [_read(folder, number, f, lookups[f], noted.samples) for f in range(len(table.features))]
            lookups = tuple(int(offsets[train]) for _, offsets in files)
        fields_by_table[table.name] = {
            "pooling_factors": [of_feature / train for of_feature in lookups],
            "num_poolings": [1.0] * len(lookups),
            "feature_names": list(table.features),
        }
    return fields_by_table


def _read(folder: Path, table: int, feature: int, lookups: int, samples: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the row ids and offsets of a feature; raises BadInput where a file is not as noted."""
    values = read_array(folder / values_file(table, feature), np.signedinteger, (lookups,), _HOW)
    return values, read_array(folder / offsets_file(table, feature), np.signedinteger, (samples + 1,), _HOW)


CONFIG = AccessLogConfig
