"""Lists of tables: a CSV, TSV or parquet file with a line a table, or a TorchRec collection."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pydantic
from pydantic import PositiveInt

from shardbench.base.errors import BadInput
from shardbench.base.reading import TEXT_BYTES
from shardbench.base.serialise import from_data
from shardbench.model.table import Pooling, Rows, Table, TableName, Width

KINDS = (".csv", ".tsv", ".parquet")
"""Suffixes of lists of tables."""
SEPARATOR = "|"
"""Text between the features that share a table, in a cell of a list."""
MAX_LINES = 100_000


class ListedTable(pydantic.BaseModel):
    """One table of a list; whatever the list does not say is None."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: TableName
    rows: Rows | None = None
    """Rows of the table; None where they are to be counted."""
    dim: Width = 64
    pooled: bool = True
    """Whether the vectors of a bag are summed, or kept one by one."""
    distinct: bool = False
    """Whether each rank asks for a row once (TorchRec's ``use_index_dedup``); of tables that are not pooled."""
    features: tuple[str, ...] = ()
    """Inputs that look the table up, such as columns of a log; its name where left out."""
    pooling: float | None = None
    """Mean length of a bag that is there."""
    coverage: float | None = None
    """Share of samples that have a bag."""
    alpha: float | None = None
    """Exponent of the power law of its lookups."""
    shift: float | None = None
    seen_rows: PositiveInt | None = None

    @pydantic.model_validator(mode="after")
    def _distinct_in_sequences(self) -> "ListedTable":
        if self.distinct and self.pooled:
            raise ValueError("only ids of tables that are not pooled are made distinct: state pooled = false")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the inputs that look the table up, at least one."""
        return self.features or (self.name,)

    @property
    def table(self) -> Table:
        """Return the table as a problem has it; raises BadInput where its rows are not stated."""
        if self.rows is None:
            raise BadInput(f"table {self.name}: state its rows")
        pooling = Pooling.SUM if self.pooled else Pooling.NONE
        return Table(
            name=self.name, rows=self.rows, dim=self.dim, pooling=pooling, features=len(self.inputs),
            distinct=self.distinct,
        )  # fmt: skip


def read_table_list(path: Path) -> tuple[ListedTable, ...]:
    """Read the tables of a .csv, .tsv or .parquet file whose columns are fields of ``ListedTable``, ``name`` at least.

    An empty cell says nothing; several features are separated by ``|``. Raises BadInput that names file and line.
    """
    if not path.is_file():
        raise BadInput(f"no file {path}: a list of tables, .csv, .tsv or .parquet, with columns name, rows, dim")
    if path.suffix not in KINDS:
        raise BadInput(f"{path.name}: a list of tables is a .csv, .tsv or .parquet file")
    try:
        if path.suffix == ".parquet" and pyarrow.parquet.read_metadata(path).num_rows > MAX_LINES:
            raise BadInput(f"{path.name}: more than {MAX_LINES} tables")
        if path.stat().st_size > TEXT_BYTES:
            raise BadInput(f"{path.name}: longer than {TEXT_BYTES} bytes, which no list of tables is")
        table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else _read_text(path)
        table = table.rename_columns([name.strip() for name in table.column_names])
        twice = [name for name, times in Counter(table.column_names).items() if times > 1]
        if twice:
            raise BadInput(f"{path.name} has two columns '{twice[0]}': a list of tables has one of each")
        if "name" not in table.column_names or not ListedTable.model_fields.keys() >= set(table.column_names):
            others = [field for field in ListedTable.model_fields if field not in ("name", "rows")]
            raise BadInput(
                f"{path.name} has columns {', '.join(table.column_names)}: a list of tables needs name and rows, "
                f"and may have {', '.join(others)}"
            )
        rows = table.to_pylist()
    except MemoryError:
        # Of Arrow as well: the file is not to blame.
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from error
    return checked((_parse(cells, f"{path.name} table {number}") for number, cells in enumerate(rows, 1)), path.name)


def _read_text(path: Path) -> pa.Table:
    # A word such as NA or nan is what it says: only an empty cell says nothing.
    kinds = {f"{space}{name}": pa.string() for name in ("name", "features") for space in ("", " ")}
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True)
    delimiter = "\t" if path.suffix == ".tsv" else ","
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


def _parse(cells: dict[str, Any], what: str) -> ListedTable:
    filled = {name: value for name, value in cells.items() if value is not None and value != ""}
    if isinstance(filled.get("features"), str):
        filled["features"] = tuple(filled["features"].split(SEPARATOR))
    if "name" in filled:
        filled["name"] = str(filled["name"])
    return from_data(ListedTable, filled, what)


def checked(listed: Iterable[ListedTable], what: str) -> tuple[ListedTable, ...]:
    """Return the tables; raises BadInput where there is none, two have one name, or one looks up an input twice."""
    tables = tuple(listed)
    if not tables:
        raise BadInput(f"{what} lists no table: it needs at least one")
    _refuse_twice([table.name for table in tables], f"{what}: two tables are called")
    for table in tables:
        _refuse_twice(table.inputs, f"{what}: two inputs of table {table.name} are called")
    return tables


def _refuse_twice(names: Sequence[str], what: str) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise BadInput(f"{what} {twice[0]}")


def write_table_list(tables: Iterable[ListedTable], path: Path) -> None:
    """Write tables to a .csv file that ``read_table_list`` and ``shardbench plan`` take; what none states is left out.

    Raises BadInput where a cell cannot hold a table's features, as one has a ``|`` in its name.
    """
    cells = [table.model_dump(exclude_defaults=True) | {"dim": table.dim} for table in tables]
    for one in cells:
        features = one.get("features", ())
        if any(SEPARATOR in feature for feature in features):
            raise BadInput(f"table {one['name']}: a cell has features between {SEPARATOR}, and one has it in its name")
        one["features"] = SEPARATOR.join(features) or None
    columns = [name for name in ListedTable.model_fields if any(one.get(name) is not None for one in cells)]
    pyarrow.csv.write_csv(pa.table({name: [one.get(name) for one in cells] for name in columns}), path)


def from_torchrec(collection: object) -> tuple[ListedTable, ...]:
    """List the tables of an EmbeddingBagCollection, an EmbeddingCollection, a module that has some, or their configs.

    ``collection`` is a module, or a list of EmbeddingBagConfig or EmbeddingConfig. Means are listed as sums, which cost
    the same. Where several modules have a table of one name, the module's path stands in front of it. Raises BadInput
    where nothing of the kind is in it, or a table is none that the kernels take.
    """
    from torch import nn  # noqa: PLC0415
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingBagConfig  # noqa: PLC0415
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection  # noqa: PLC0415

    configs: list[tuple[str, Any]] = []
    if isinstance(collection, nn.Module):
        for path, module in collection.named_modules():
            if isinstance(module, EmbeddingBagCollection):
                configs += [(path, config) for config in module.embedding_bag_configs()]
            elif isinstance(module, EmbeddingCollection):
                configs += [(path, config) for config in module.embedding_configs()]
    elif isinstance(collection, Iterable):
        configs = [("", config) for config in collection]
    wrong = [config for _, config in configs if not isinstance(config, BaseEmbeddingConfig)]
    if not configs or wrong:
        raise BadInput(f"{type(wrong[0] if wrong else collection).__name__} is no TorchRec collection, nor configs")
    times = Counter(config.name for _, config in configs)
    cells = [
        {
            "name": config.name if times[config.name] == 1 or not path else f"{path}.{config.name}",
            "rows": config.num_embeddings,
            "dim": config.embedding_dim,
            "pooled": isinstance(config, EmbeddingBagConfig),
            "features": tuple(config.feature_names),
        }
        for path, config in configs
    ]
    what = type(collection).__name__
    return checked((_parse(one, f"{what} table {one['name']}") for one in cells), what)
