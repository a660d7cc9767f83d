"""Meta-like tables: 856 drawn tables whose lookups have the published reuse statistics.

The published figures are those of facebookresearch/dlrm_datasets' base file of 2021; the
tables' parameters are fitted by tools/fits/synthetic.py and kept in data/synthetic_parameters.json.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardbench.datasets.laws.power_law import BrokenPowerLaw
from shardbench.model.table import BatchSize, Name, SharedBy, Table
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, bag_lengths
from shardbench.workloads.selection import SelectedTablesConfig
from shardbench.workloads.trace import Bags, Split, bag_offsets

PARAMETERS = Path(__file__).parent / "data" / "synthetic_parameters.json"


@dataclass(frozen=True, kw_only=True)
class SyntheticTable:
    """How one table is looked up: a law over its ranks, and how long its bags are."""

    law: BrokenPowerLaw
    pooling: float
    """Mean length of a bag that is there."""
    coverage: float
    """Share of samples that have a bag."""


@lru_cache(maxsize=1)
def synthetic_tables() -> tuple[SyntheticTable, ...]:
    """Return the 856 fitted tables."""
    data = json.loads(PARAMETERS.read_text())
    tables = []
    for line in data["tables"]:
        row = dict(zip(data["columns"], line))
        pooling, coverage = row.pop("pooling"), row.pop("coverage")
        tables.append(SyntheticTable(law=BrokenPowerLaw(**row), pooling=pooling, coverage=coverage))
    return tuple(tables)


class SyntheticConfig(SelectedTablesConfig, DrawnConfig):
    """Meta-like synthetic tables; any subset of 856, a table has the same lookups in every task."""

    dataset: Literal["synthetic"] = "synthetic"
    name: Name = "synthetic"
    batch_size: BatchSize = 65_536
    features: SharedBy = 1
    """How many features share each table, each with bags of its own, all drawn alike."""

    def build(self, data: Path) -> "Synthetic":
        """Return the workload, which needs no files."""
        return Synthetic(self)


class Synthetic(DrawnWorkload):
    """Lookups drawn on demand; memory is that of one table's batch."""

    _config: SyntheticConfig

    def __init__(self, config: SyntheticConfig) -> None:
        super().__init__(config)
        everything = synthetic_tables()
        self._ids = config.table_ids(len(everything))
        self._own_tables = [everything[i] for i in self._ids]
        dims = config.table_dims(len(everything))
        self.tables = tuple(
            Table(name=f"t{i:03d}", rows=everything[i].law.rows, dim=dims[i], features=config.features)
            for i in self._ids
        )

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        own_table = self._own_tables[table]
        generator = self._generator(split, batch, self._ids[table])
        features = self._config.features
        # An assumption: no bag lengths are published.
        lengths = bag_lengths(generator, self.batch_size * features, own_table.pooling, own_table.coverage)
        offsets = bag_offsets(lengths)
        return Bags(values=own_table.law.sample(generator, int(offsets[-1])), offsets=offsets, features=features)


CONFIG = SyntheticConfig
