"""Tables as their owner describes them: rows, width, bag lengths and skew, no data needed.

A suite states them so; only ``name`` and ``rows`` must be given (or ``table_list = "tables.csv"``, a .csv, .tsv or
.parquet file of the same columns, in the data folder)::

    [[workloads]]
    name = "ours"
    dataset = "described"
    batch_size = 8192

    [[workloads.tables]]
    name = "user_id"
    rows = 80_000_000
    dim = 64
    alpha = 0.8

    [[workloads.tables]]
    name = "items_watched"
    rows = 2_000_000
    dim = 128
    pooling = 34.5
    coverage = 0.7
    alpha = 1.05
    seen_rows = 600_000
    features = 3          # items liked, shared and bought, say, share the table
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import Field, PositiveInt

from shardbench.base.serialise import FiniteModel, from_data
from shardbench.datasets.laws.power_law import PowerLaw
from shardbench.model.table import BatchSize, Distinct, Name, Pooling, Rows, SharedBy, Table, TableName, Width
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, bag_lengths
from shardbench.workloads.table_list import ListedTable, read_table_list
from shardbench.workloads.trace import Bags, Split, bag_offsets


class DescribedTable(FiniteModel):
    """One table and how it is looked up: rank r with density (r + shift)^-alpha."""

    name: TableName
    rows: Rows
    dim: Width = 64
    pooling: float = Field(default=1.0, ge=1.0, le=10_000.0)
    """Mean length of a bag that is there; lengths spread evenly over 1..2 pooling."""
    coverage: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of samples that have a bag."""
    alpha: float = Field(default=1.0, ge=0.0, le=4.0)
    """Exponent of the power law over ranks; 0: every row alike."""
    shift: float = Field(default=1.0, ge=0.01, le=1e9)
    """Zipf-Mandelbrot's shift: the larger, the flatter the head."""
    seen_rows: PositiveInt | None = None
    """Rows that are ever looked up; None: all."""
    pooled: bool = True
    """Whether the vectors of a bag are summed, or kept one by one."""
    distinct: Distinct = False
    """Whether each rank asks for a row once, however often its samples do; not of pooled tables."""
    features: SharedBy = 1
    """How many features share the table, each with bags of its own, all looked up and long alike."""

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> "DescribedTable":
        if self.seen_rows is not None and self.seen_rows > self.rows:
            raise ValueError(f"table {self.name}: seen_rows {self.seen_rows} exceeds rows {self.rows}")
        if self.distinct and self.pooled:
            raise ValueError(f"table {self.name}: only ids of tables that are not pooled are made distinct")
        return self

    @property
    def law(self) -> PowerLaw:
        """Return the law of the rows that are looked up."""
        return PowerLaw(rows=self.seen_rows or self.rows, exponent=self.alpha, shift=self.shift)


class DescribedConfig(DrawnConfig):
    """Any tables, drawn from their description."""

    dataset: Literal["described"] = "described"
    name: Name = "described"
    batch_size: BatchSize = 4096
    tables: tuple[DescribedTable, ...] = ()
    table_list: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """A file that lists the tables instead (``shardbench.workloads.table_list``), relative to the data folder."""

    @pydantic.model_validator(mode="after")
    def _names_differ(self) -> "DescribedConfig":
        if bool(self.tables) == (self.table_list is not None):
            raise ValueError("tables: state at least one, or table_list, a file of them")
        names = Counter(table.name for table in self.tables)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"tables: two are called {twice[0]}")
        return self

    def build(self, data: Path) -> "Described":
        """Return the workload, after reading the list of tables where the configuration names one."""
        if self.table_list is None:
            return Described(self)
        tables = described(read_table_list(data / self.table_list), self.table_list)
        return Described(self.model_copy(update={"tables": tables, "table_list": None}))


def described(listed: Sequence[ListedTable], what: str) -> tuple[DescribedTable, ...]:
    """Return listed tables with what a list leaves out; raises BadInput that names ``what`` and the table."""
    tables = []
    for number, one in enumerate(listed, 1):
        fields = one.model_dump(exclude={"features"}, exclude_none=True)
        tables.append(from_data(DescribedTable, {**fields, "features": len(one.inputs)}, f"{what} table {number}"))
    return tuple(tables)


class Described(DrawnWorkload):
    """Lookups drawn on demand; lengths and lookups of different tables are independent."""

    _config: DescribedConfig

    def __init__(self, config: DescribedConfig) -> None:
        super().__init__(config)
        self.tables = tuple(
            Table(
                name=t.name,
                rows=t.rows,
                dim=t.dim,
                pooling=Pooling.SUM if t.pooled else Pooling.NONE,
                features=t.features,
                distinct=t.distinct,
            )
            for t in config.tables
        )

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        described = self._config.tables[table]
        generator = self._generator(split, batch, table)
        bags = self.batch_size * described.features
        offsets = bag_offsets(bag_lengths(generator, bags, described.pooling, described.coverage))
        values = described.law.sample(generator, int(offsets[-1]))
        return Bags(values=values, offsets=offsets, features=described.features)


CONFIG = DescribedConfig
