"""A data set in a package of its own: tables of one shape whose lookups crowd at their first rows."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from shardbench.model.table import Table
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import WorkloadConfig


class CrowdedConfig(WorkloadConfig):
    """What a suite may state; ``dataset`` is the kind's name."""

    dataset: Literal["crowded"] = "crowded"
    batch_size: PositiveInt = 256
    tables: PositiveInt = 4
    rows: PositiveInt = 1000
    seed: int = 0

    def build(self, data: Path) -> "Crowded":
        """The workload; needs no files."""
        return Crowded(self)


class Crowded(DrawnWorkload):
    """One lookup a sample and table: row floor(rows u^3) of a uniform draw u."""

    profile_samples = 4096

    def __init__(self, config: CrowdedConfig) -> None:
        self._config = config
        self.name, self.dense, self.seed = config.name, config.dense, config.seed
        self.batch_size, self.test_batches = config.batch_size, config.test_batches
        self.tables = tuple(Table(name=f"t{i}", rows=config.rows, dim=16) for i in range(config.tables))

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        places = self._generator(split, batch, table).random(self.batch_size) ** 3
        rows = np.floor(self._config.rows * places).astype(np.int64)
        return Bags(values=rows, offsets=np.arange(self.batch_size + 1, dtype=np.int64))

    def recipe(self) -> object:
        """The configuration, which says all."""
        return self._config.model_dump(mode="json")
