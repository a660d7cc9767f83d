"""Lists of tables, from files and from TorchRec's modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.datasets.described import DescribedConfig
from shardbench.model.plan import Plan
from shardbench.workloads import from_torchrec, read_table_list, write_table_list
from shardbench.workloads.table_list import ListedTable

TABLES = st.lists(
    st.builds(
        ListedTable,
        name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|\0"), min_size=1),
        rows=st.integers(1, 2**40),
        dim=st.integers(1, 64).map(lambda n: 4 * n),
        pooled=st.booleans(),
        pooling=st.none() | st.floats(1, 100),
        alpha=st.none() | st.floats(0, 4),
    ),
    min_size=1, max_size=8, unique_by=lambda table: table.name,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(listed=TABLES)
def test_a_list_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, listed: list[ListedTable]) -> None:
    folder = tmp_path_factory.mktemp("lists")
    lines = [{**table.model_dump(), "features": "|".join((table.name, f"{table.name}.2"))} for table in listed]
    found = pa.Table.from_pylist(lines)
    pyarrow.parquet.write_table(found, folder / "tables.parquet")
    empty = [name for name in found.column_names if pa.types.is_null(found.schema.field(name).type)]
    pyarrow.csv.write_csv(found.drop_columns(empty), folder / "tables.csv")
    wanted = tuple(t.model_copy(update={"features": (t.name, f"{t.name}.2")}) for t in listed)
    options = pyarrow.csv.WriteOptions(delimiter="\t")
    spaced = found.drop_columns(empty)
    spaced = spaced.rename_columns([f" {name}" for name in spaced.column_names])
    pyarrow.csv.write_csv(spaced, folder / "tables.tsv", options)
    for name in ("tables.parquet", "tables.csv", "tables.tsv"):
        assert read_table_list(folder / name) == wanted
    for tables in (wanted, tuple(listed)):
        write_table_list(tables, folder / "written.csv")
        assert read_table_list(folder / "written.csv") == tables


def test_ids_of_a_listed_sequence_are_made_distinct(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name,rows,pooled,distinct\na,8,false,true\nb,8,false,\n")
    assert [one.table.distinct for one in read_table_list(tmp_path / "t.csv")] == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,rows\n", r"t\.csv lists no table"),
        ("name,rows\na,1\na,2\n", r"t\.csv: two tables are called a"),
        ("name,features\na,x|y|x\nb,y\n", r"t\.csv: two inputs of table a are called x"),
        (
            "name,rows,distinct\na,1,true\n",
            r"t\.csv table 1: .*only ids of tables that are not pooled are made distinct",
        ),
        ("name,rows,dim\na,1,64\nb,2,0\n", r"t\.csv table 2: dim: Input should be greater than or equal to 4"),
        ("name,rows\na,1099511627777\n", r"t\.csv table 1: rows: Input should be less than or equal to 1099511627776"),
        (
            "name,lines\na,1\n",
            r"t\.csv has columns name, lines: a list of tables needs name and rows, and may have dim",
        ),
        ("name,rows,rows\na,1,2\n", r"t\.csv has two columns 'rows'"),
        ("name,rows\na,nan\n", r"t\.csv table 1: rows: Input should be a finite number"),
        ("name,rows,pooling\na,1,\nb,2,inf\n", r"t\.csv table 2: pooling: Input should be a finite number"),
        ("name,rows,alpha\na,1,NaN\n", r"t\.csv table 1: alpha: Input should be a finite number"),
        ("rows\n1\n", r"t\.csv has columns rows: a list of tables needs name and rows"),
        ("name,rows\na\n", r"t\.csv cannot be read: .*Expected 2 columns"),
    ],
)
def test_a_wrong_list_is_refused_by_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(BadInput, match=message):
        read_table_list(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["_user", "user:id", "user@v1", "emb/user", "user id", "用户"])
def test_any_name_is_listed_and_planned(tmp_path: Path, command, name: str) -> None:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig  # noqa: PLC0415

    config = EmbeddingBagConfig(name=name, num_embeddings=100, embedding_dim=16, feature_names=[f"{name}.in"])
    write_table_list(from_torchrec([config]), tmp_path / "t.csv")
    assert [(one.name, one.inputs) for one in read_table_list(tmp_path / "t.csv")] == [(name, (f"{name}.in",))]
    out = tmp_path / "plan.json"
    command("plan", tmp_path / "t.csv", "h100-1x8", "--strategy", "greedy-size", "--batch-size", 64, "--out", out)
    assert Plan.from_json(out.read_text()).segments[0].table == name


def test_files_that_are_no_list_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        read_table_list(tmp_path / "none.csv")
    (tmp_path / "t.xls").touch()
    with pytest.raises(BadInput, match=r"a list of tables is a \.csv, \.tsv or \.parquet file"):
        read_table_list(tmp_path / "t.xls")


def test_described_tables_may_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name,rows,dim,pooling,features\na,100,16,3.5,\nb,50,32,,x|y\n")
    stated = [
        {"name": "a", "rows": 100, "dim": 16, "pooling": 3.5},
        {"name": "b", "rows": 50, "dim": 32, "features": 2},
    ]
    one = DescribedConfig(table_list="t.csv", batch_size=32, profile_samples=256).build(tmp_path)
    other = DescribedConfig.model_validate({"tables": stated, "batch_size": 32, "profile_samples": 256}).build(tmp_path)
    assert one.fingerprint == other.fingerprint
    for wrong in ({}, {"tables": stated, "table_list": "t.csv"}):
        with pytest.raises(ValueError, match="state at least one, or table_list"):
            DescribedConfig.model_validate(wrong)
    (tmp_path / "t.csv").write_text("name,rows\na,100\nb,\n")
    with pytest.raises(BadInput, match=r"t\.csv table 2: rows: Field required"):
        DescribedConfig(table_list="t.csv").build(tmp_path)


def test_tables_of_torchrec(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType  # noqa: PLC0415
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection  # noqa: PLC0415

    def bag(name: str, **rest: Any) -> EmbeddingBagConfig:
        given = {"num_embeddings": 100, "embedding_dim": 16, "feature_names": [f"{name}_in"], **rest}
        return EmbeddingBagConfig(name=name, **given)

    bagged = EmbeddingBagCollection(tables=[bag("a"), bag("b", feature_names=["x", "y"])], device=torch.device("meta"))
    kept = EmbeddingConfig(name="c", num_embeddings=7, embedding_dim=8, feature_names=["z"])
    model = torch.nn.ModuleDict({"bags": bagged, "rows": EmbeddingCollection(tables=[kept])})
    assert from_torchrec(bagged) == from_torchrec(bagged.embedding_bag_configs())
    found = from_torchrec(model)
    assert [(t.name, t.rows, t.dim, t.pooled, t.features) for t in found] == [
        ("a", 100, 16, True, ("a_in",)), ("b", 100, 16, True, ("x", "y")), ("c", 7, 8, False, ("z",)),
    ]  # fmt: skip
    assert found[1].table.features == 2
    for wrong in (torch.nn.Linear(1, 1), [], [3], "ab", 3):
        with pytest.raises(BadInput, match="is no TorchRec collection"):
            from_torchrec(wrong)
    # Means cost what sums do; two tables may look up one input, and two modules have a table of one name.
    means = from_torchrec([bag("m", pooling=PoolingType.MEAN), bag("用户 1", feature_names=["m_in"])])
    assert [(t.name, t.pooled, t.features) for t in means] == [("m", True, ("m_in",)), ("用户 1", True, ("m_in",))]
    twins = torch.nn.ModuleDict({"left": bagged, "right": EmbeddingCollection(tables=[replace(kept, name="a")])})
    assert [t.name for t in from_torchrec(twins)] == ["left.a", "b", "right.a"]
    with pytest.raises(BadInput, match=r"table a: a cell has features between \|"):
        write_table_list(from_torchrec([bag("a", feature_names=["x|y"])]), tmp_path / "t.csv")
    with pytest.raises(BadInput, match="table d: dim: Input should be a multiple of 4"):
        from_torchrec([bag("d", embedding_dim=10)])
