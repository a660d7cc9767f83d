"""Logs of one's own: what is written is what the log says, however it is packed, cut or kept; faults leave nothing."""

import datetime
import gzip
import json
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from object_store import object_store

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json
from shardbench.cli import drift
from shardbench.datasets.access_log import AccessLogConfig, constraints, read_note, read_seen
from shardbench.datasets.preparation import distinct, log_profile, log_reader, log_words, side_by_side
from shardbench.datasets.preparation.distinct import WordCounts, sharing, suggested_rows
from shardbench.datasets.preparation.log_encode import Cells, Mode, RowsOfTable
from shardbench.datasets.preparation.log_profile import PROFILES, Profiled, TableProfiles, profile_log
from shardbench.datasets.preparation.log_reader import LogFiles, find_logs
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.engine.described import topology_fields
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.model.machine_file import load_machine
from shardbench.workloads.kinds import workload_kinds
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.trace import Split
from shardbench.workloads.value_hash import Missing, hash_ids

WORDS = st.text("ab1 .\u00e9", min_size=1, max_size=3)
CELLS = st.lists(st.none() | st.lists(WORDS, max_size=3), min_size=2, max_size=30)


def tables(*names: str, rows: int | None = 50) -> tuple[ListedTable, ...]:
    return tuple(ListedTable(name=name, rows=rows, dim=8) for name in names)


def write(path: Path, columns: dict[str, Any]) -> Path:
    """A file of the kind that its name says."""
    table, plain = pa.table(columns), path.name.removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".parquet"):
        pyarrow.parquet.write_table(table, path)
        return path
    raw = path.with_name(plain)
    if plain.endswith(".csv"):
        pyarrow.csv.write_csv(table, raw)
    else:
        lines = [table.column_names, *zip(*table.to_pydict().values())]
        raw.write_text("".join("\t".join("" if cell is None else str(cell) for cell in line) + "\n" for line in lines))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(raw.read_bytes()))
    if path.suffix == ".zst":
        path.write_bytes(zstandard.compress(raw.read_bytes()))
    return path


def profiled(
    folder: Path,
    files: list[Path],
    listed: tuple[ListedTable, ...],
    cells: Cells | None = None,
    cut: SampleSplit | None = None,
) -> Profiled:
    return profile_log(
        LogFiles(files=tuple(files)), folder, listed, cells=cells or Cells(), cut=cut or SampleSplit(train_share=0.5)
    )


def bags(folder: Path, feature: int = 0, table: int = 0) -> list[list[int]]:
    """Row ids of every sample, as written."""
    values = np.load(folder / log_profile.values_file(table, feature))
    offsets = np.load(folder / log_profile.offsets_file(table, feature))
    return [values[a:b].tolist() for a, b in zip(offsets, offsets[1:])]


def encoded(table: RowsOfTable, *columns: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row ids and bag lengths of columns, one after the other."""
    parts = [table.coded(column, "x") for column in columns]
    table.values = len(np.unique(np.concatenate([part.each(part.words) for part in parts])))
    rows, lengths = zip(*(table.bags(part) for part in parts))
    return np.concatenate(rows), np.concatenate(lengths)


@settings(deadline=None, max_examples=40)
@given(CELLS)
def test_a_vocabulary_numbers_values_by_first_appearance(cells: list[list[str] | None]) -> None:
    numbers: dict[str, int] = {}
    wanted = [[numbers.setdefault(word, len(numbers)) for word in cell or []] for cell in cells]
    for column in (
        pa.array(cells, pa.list_(pa.string())),
        pa.array(cells, pa.large_list(pa.large_string())),
        pa.array([None if cell is None else "|".join(cell) for cell in cells], pa.string()),
        pa.array([None if cell is None else "|".join(cell) for cell in cells], pa.string()).dictionary_encode(),
    ):
        coder = RowsOfTable("t", Cells(mode="vocabulary", delimiter="|"), None)
        half = len(cells) // 2
        rows, lengths = encoded(coder, column[:half], column[half:])
        assert [part.tolist() for part in np.split(rows, np.cumsum(lengths)[:-1])] == wanted
        assert coder.rows == max(1, len(numbers))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30), st.integers(2, 1000))
def test_a_hash_is_of_the_text_and_a_missing_value_may_have_a_row(cells: list[int | None], rows: int) -> None:
    numbers, texts = pa.array(cells, pa.int64()), pa.array([None if c is None else str(c) for c in cells])
    for missing in ("empty", "row"):
        made = Cells(missing=missing)
        got, lengths = encoded(RowsOfTable("t", made, rows), numbers)
        again, others = encoded(RowsOfTable("t", made, rows), texts)
        assert (got.tolist(), lengths.tolist()) == (again.tolist(), others.tolist())
        assert np.all((got >= 0) & (got < rows))
        # A table whose rows nobody stated gives those of one with the rows that it settles on.
        settling = RowsOfTable("t", made, None)
        settled, _ = encoded(settling, numbers[:3], texts[3:])
        assert settled.tolist() == encoded(RowsOfTable("t", made, settling.rows), numbers)[0].tolist()
        assert settling.values == len({cell for cell in cells if cell is not None})
        asked = cells if missing == "row" else [cell for cell in cells if cell is not None]
        assert hash_ids(asked, table="t", rows=rows, missing=missing).tolist() == got.tolist()
        if missing == "empty":
            assert lengths.tolist() == [int(cell is not None) for cell in cells]
            if None in cells:
                with pytest.raises(BadInput, match=f"value {cells.index(None)} is missing, which is no lookup"):
                    hash_ids(cells, table="t", rows=rows)
        else:
            assert (got == 0).tolist() == [cell is None for cell in cells]


def test_tables_and_seeds_have_hashes_of_their_own_that_spread_evenly() -> None:
    column = pa.array(np.arange(20_000))
    found = [
        encoded(RowsOfTable(name, Cells(seed=seed), 100), column)[0] for name, seed in (("a", 0), ("b", 0), ("a", 1))
    ]
    for first, second in ((0, 1), (0, 2)):
        assert np.mean(found[first] == found[second]) < 0.03
    for rows in found:
        counts = np.bincount(rows, minlength=100)
        assert np.abs(counts - 200).max() < 80  # 5.6 standard deviations


VOCABULARY = Cells(mode="vocabulary")
SUITE = """
name = "own"
description = "a log of one's own"
WORKLOAD
batch_size = 16
test_batches = 1
[[grids]]
machines = ["a100-40gb-2x8"]
backends = ["simulated"]
iterations = 1
"""
ROWS = {
    "day": [1, 2, 3, 4, 5, 6, 7, 8],
    "user": ["a", "b", None, "a", "c", "a", "b", "d"],
    "item": [10, None, 12, 10, 12, 11, 10, 13],
}


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.tsv", "log.csv.gz", "log.tsv.zst"])
def test_every_kind_of_file_gives_the_same(tmp_path: Path, name: str) -> None:
    done = profiled(tmp_path / "out", [write(tmp_path / name, ROWS)], tables("user", "item", rows=None), VOCABULARY)
    assert bags(tmp_path / "out") == [[0], [1], [], [0], [2], [0], [1], [3]]
    assert bags(tmp_path / "out", table=1) == [[0], [], [1], [0], [1], [2], [0], [3]]
    assert (done.samples, done.train_samples, [t.rows for t in done.tables]) == (8, 4, [4, 4])
    heard: list[int] = []
    for _ in LogFiles(files=(tmp_path / name,)).batches(["user"], heard=heard.append):
        assert sum(heard) <= (tmp_path / name).stat().st_size
    assert sum(heard) == LogFiles(files=(tmp_path / name,)).bytes


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_the_split_is_by_time_whatever_the_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    moments = data.draw(st.lists(st.integers(-100, 100), min_size=4, max_size=40))
    if len(set(moments)) < 2:
        moments[0] = 200
    folder, share = tmp_path_factory.mktemp("log"), data.draw(st.floats(0.3, 0.7))
    file = write(folder / "log.parquet", {"at": moments, "id": list(range(len(moments)))})
    cut = SampleSplit(time="at", train_share=share)
    try:
        done = profiled(folder / "out", [file], tables("id"), Cells(mode="ids"), cut)
    except BadInput as error:
        assert "samples train" in str(error)
        assert not (folder / "out").exists()
        return
    written = [row for bag in bags(folder / "out") for row in bag]
    assert sorted(written) == list(range(len(moments)))
    train, test = written[: done.train_samples], written[done.train_samples :]
    assert done.split_at is not None
    assert all(moments[i] < done.split_at for i in train)
    assert all(moments[i] >= done.split_at for i in test)
    assert train == sorted(train)
    assert test == sorted(test)


def test_dates_are_times(tmp_path: Path) -> None:
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    days = [start + datetime.timedelta(days=day) for day in (3, 0, 2, 1)]
    for number, file in enumerate(("log.parquet", "log.csv")):
        stated = pa.array(days, pa.timestamp("s", tz="UTC") if number == 0 else pa.timestamp("s"))
        path = write(tmp_path / file, {"at": stated, "id": [3, 0, 2, 1]})
        profiled(
            tmp_path / f"out{number}", [path], tables("id"), Cells(mode="ids"), SampleSplit(time="at", train_share=0.5)
        )
        assert bags(tmp_path / f"out{number}") == [[0], [1], [3], [2]]


def test_how_a_log_is_cut_into_files_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 3000
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 50, rows)
    at = generator.permutation(rows)
    whole = write(tmp_path / "whole.csv", {"at": at, "id": ids})
    parts = [write(tmp_path / f"{i}.csv", {"at": at[i::1][:1000], "id": ids[i::1][:1000]}) for i in (0, 1000, 2000)]
    cut = SampleSplit(time="at", train_share=0.7, rate=0.5, seed=3)
    # Nobody states the rows, so that they are hashed again once all are read; who states the same ones sees no other.
    listed = tables("id", rows=None)
    first = profiled(tmp_path / "first", [whole], listed, cut=cut)
    assert first == profiled(tmp_path / "stated", [whole], tables("id", rows=first.tables[0].rows), cut=cut)
    monkeypatch.setattr(log_reader, "BLOCK_BYTES", 512)
    monkeypatch.setattr(log_reader, "BATCH_ROWS", 100)
    monkeypatch.setattr(distinct, "_PENDING", 100)
    again = profiled(tmp_path / "again", parts, listed, cut=cut)
    assert first == again
    assert 0.45 < first.samples / rows < 0.55
    assert abs(first.train_samples / first.samples - 0.7) < 0.05


@pytest.mark.parametrize("mode", ["hash", "vocabulary", "ids"])
def test_what_was_seen_is_what_the_log_has(tmp_path: Path, mode: Mode) -> None:
    generator = np.random.default_rng(2)
    cells = [generator.zipf(1.5, size=n).clip(max=500).tolist() for n in generator.integers(0, 4, 1000)]
    folder, file = tmp_path / "out", write(tmp_path / "log.parquet", {"id": cells})
    profile_log(
        LogFiles(files=(file,)),
        folder,
        tables("id", rows=None),
        cells=Cells(mode=mode),
        cut=SampleSplit(),
    )
    seen = read_seen(folder)["id"]
    train = np.concatenate(cells[:800]).astype(np.int64)
    if mode == "hash":
        train = hash_ids(train, table="id", rows=seen.rows)
    counts = np.sort(np.unique(train, return_counts=True)[1])[::-1]
    values = len({value for cell in cells for value in cell})
    assert seen.values == values
    rows = {"hash": 1 << (16 * values - 1).bit_length(), "vocabulary": values, "ids": 501}[mode]
    assert (seen.rows, seen.dim) == (rows, 8)
    assert seen.suggested_rows == (1 << (16 * values - 1).bit_length() if mode == "ids" else rows)
    assert seen.pooling == pytest.approx(sum(map(len, cells[:800])) / 800)
    assert seen.coverage == pytest.approx(sum(map(bool, cells[:800])) / 800)
    assert seen.hot == pytest.approx(counts[: -(-len(counts) // 100)].sum() / counts.sum())
    assert seen.new == pytest.approx((counts == 1).sum() / counts.sum())
    assert seen.sharing == pytest.approx(sharing(values, rows) if mode == "hash" else 0.0)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 3))), max_size=12),
    st.integers(0, 20),
)
def test_words_are_counted_however_they_come(parts: list[list[tuple[int, int, int]]], pending: int) -> None:
    counted = WordCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "_PENDING", pending)
        for part in parts:
            words, train, test = np.array(part, dtype=np.int64).reshape(-1, 3).T
            counted.add(words.astype(np.uint64), train, train + test)
        words, counts, values = counted.of_train()
    together: Counter[int] = Counter()
    for word, times, _ in (one for part in parts for one in part):
        together[word] += times
    assert dict(zip(words.tolist(), counts.tolist())) == {word: times for word, times in together.items() if times}
    assert len(words) == len(set(words.tolist()))
    assert values == len({word for part in parts for word, *times in part if any(times)})


def test_suggested_rows_leave_room_and_the_sharing_is_what_a_hash_gives() -> None:
    assert [suggested_rows(values) for values in (0, 1, 3, 97, 1024, 13_000, 13_200, 10**6)] == [
        1, 16, 64, 2048, 16_384, 16_384, 32_768, 1 << 21,
    ]  # fmt: skip
    assert (sharing(0, 1), sharing(1, 1), sharing(2, 1)) == (0.0, 0.0, 1.0)
    for values, rows in ((10_000, 16_384), (97, 2048)):
        hashed = [hash_ids(np.arange(values), table="t", rows=rows, seed=seed) for seed in range(30)]
        shared = [np.mean(np.bincount(found, minlength=rows)[found] > 1) for found in hashed]
        assert np.mean(shared) == pytest.approx(sharing(values, rows), rel=0.1)


def test_the_workload_has_the_folders_profiles_and_order(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    columns = {
        "liked": [generator.integers(0, 90, size=n).tolist() for n in generator.integers(0, 5, 400)],
        "shared": [generator.integers(0, 90, size=n).tolist() for n in generator.integers(0, 3, 400)],
        "user": generator.integers(0, 1000, 400),
    }
    listed = (
        ListedTable(name="items", rows=90, dim=16, features=("liked", "shared")),
        ListedTable(name="user", rows=100, pooled=False),
    )
    folder = tmp_path / "data" / "mine"
    file = write(tmp_path / "log.parquet", columns)
    cells = Cells(mode="hash", missing="empty")
    done = profiled(folder, [file], listed, cells, SampleSplit(train_share=0.6))
    workload = AccessLogConfig(prepared="mine", batch_size=32).build(tmp_path / "data")
    assert workload_kinds()["access_log"] is AccessLogConfig
    assert [(t.name, t.rows, t.dim, t.features) for t in workload.tables] == [
        ("items", 90, 16, 2),
        ("user", 100, 64, 1),
    ]
    assert workload.train_samples == done.train_samples == 240
    written = from_json(TableProfiles, (folder / PROFILES).read_bytes()).tables
    for number, table in enumerate(workload.tables):
        assert workload.profiles[number] == written[table.name]
        order = np.load(folder / log_profile.order_file(number))
        assert workload.ranking(number)(order).tolist() == list(range(len(order)))
    test = workload.bags(Split.TEST, 0, 0)
    liked, shared = bags(folder), bags(folder, feature=1)
    ranks = workload.ranking(0)
    for sample in range(32):
        for feature, raw in enumerate((liked, shared)):
            ids = np.asarray(raw[240 + sample], dtype=np.int64)
            part = test.feature(feature)
            assert part.values[part.offsets[sample] : part.offsets[sample + 1]].tolist() == ranks(ids).tolist()
    means = [np.mean([len(cell) for cell in columns[name][:240]]) for name in ("liked", "shared")]
    assert constraints(folder)["items"]["pooling_factors"] == pytest.approx(means)


@pytest.mark.parametrize(
    ("name", "content", "cells", "message"),
    [
        ("log.csv", "at,id\n1,2\n3\n", Cells(), r"log\.csv cannot be read: .*Row #3: Expected 2 columns, got 1"),
        ("log.csv", "at,id\n1,x\n", Cells(mode="ids"), r"log\.csv column id: .*x.*: ids are whole numbers, else hash"),
        ("log.csv", "at,id\n1,-1\n", Cells(mode="ids"), r"log\.csv column id: -1 is no row of 0\.\.49"),
        ("log.csv", "at,id\n1,50\n", Cells(mode="ids"), r"log\.csv column id: 50 is no row of 0\.\.49"),
        ("log.csv", "at,user\n1,50\n", Cells(), r"log\.csv has no column 'id': it has at, user; needed: id"),
        ("log.csv", "at,id\n1,7\n", Cells(), "0 of 1 samples train: give more rows"),
        ("log.csv", "", Cells(), r"log\.csv cannot be read: Empty CSV file"),
        ("log.csv.gz", "at,id\n", Cells(), r"log\.csv\.gz cannot be read"),
        ("log.parquet", "at,id\n", Cells(), r"log\.parquet cannot be read"),
        ("log.zip", "at,id\n", Cells(), r"log\.zip: unknown kind of log: unpack it first, and give \.parquet"),
        ("log.json", "{}", Cells(), r"log\.json: unknown kind of log: give \.parquet"),
        ("log.csv", "\n".join(["id", *map(str, range(60))]), Cells(mode="vocabulary"), "more than 50 different values"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_and_nothing_is_left(
    tmp_path: Path, name: str, content: str, cells: Cells, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message) as caught:
        profiled(tmp_path / "out", [tmp_path / name], tables("id"), cells)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.5, 2.0]), "values are double, and not all are whole numbers: leave the column out"),
        (
            pa.array([0], pa.timestamp("us")),
            "values are timestamp.*: name it with --time, or leave it out by --columns",
        ),
        (pa.array(["7:0.5", None, "8:1.0"]), "values such as '7:0.5' look like an id and its weight: --weights :"),
        (pa.array([[[1]], [[2]]]), "give lists of whole numbers or texts"),
        (pa.array([True, False]), "values are bool"),
    ],
)
def test_values_that_are_no_categories_are_refused(column: pa.Array, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RowsOfTable("t", Cells(), 10).coded(column, "x")


def test_a_whole_number_is_the_same_in_every_writing() -> None:
    """pandas keeps whole numbers with missing ones as floats, and writes them with a point."""
    writings: list[pa.Array] = [
        pa.array([12, None, -3]),
        pa.array([12.0, None, -3.0]),
        pa.array([12.0, float("nan"), -3.0]),
        pa.array(["12", None, "-3"]),
        pa.array(["12.0", None, "-3.0"]),
    ]
    for mode in ("hash", "vocabulary"):
        rows = [encoded(RowsOfTable("t", Cells(mode=mode), 10), column) for column in writings]
        assert len({(tuple(found), tuple(lengths)) for found, lengths in rows}) == 1
    expected = hash_ids(["12", "-3"], table="t", rows=1000)
    for values in (["12.0", "-3.0"], np.array([12.0, -3.0])):
        assert hash_ids(values, table="t", rows=1000).tolist() == expected.tolist()
    other = hash_ids(["1.0.0", "x.0"], table="t", rows=1000)
    assert other.tolist() != hash_ids(["1.0", "x"], table="t", rows=1000).tolist()
    with pytest.raises(BadInput, match="give whole numbers or texts"):
        hash_ids([0.5], table="t", rows=1000)


def test_weights_of_ids_are_left_out_where_one_says_so() -> None:
    cells = Cells(mode="vocabulary", delimiter=";", weights=":")
    column = pa.array(["7:0.5;8:1e-3", "8", "n:7:2"])
    assert [part.tolist() for part in encoded(RowsOfTable("t", cells, None), column)] == [[0, 1, 1, 2], [2, 1, 1]]
    whole = encoded(RowsOfTable("t", Cells(mode="vocabulary", weights=""), None), pa.array(["7:0.5", "7:0.6"]))
    assert whole[0].tolist() == [0, 1]


def test_the_folder_of_an_engine_and_escapes(tmp_path: Path, command: Callable[..., str]) -> None:
    folder = tmp_path / "spark"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    for part in (0, 1):
        write(folder / f"part-0000{part}.csv", {"id": [f"{part}\x1d2"] * 10})
    command("profile", folder, "--out", tmp_path / "out", "--delimiter", r"\x1d")
    note = read_note(tmp_path / "out")
    assert (note.samples, note.tables[0].lookups) == (20, (40,))
    (folder / "part-00000.csv").unlink()
    (folder / "part-00001.csv").unlink()
    assert "has no file of a log in it" in command("profile", folder, "--out", tmp_path / "no", code=2)


def hive(folder: Path) -> Path:
    """Four days of a log, as engines write them: the day is not in the files."""
    for number in range(4):
        day = folder / f"day={number}" / "of=a%20b"
        day.mkdir(parents=True)
        write(day / "part-0.parquet", {"id": [f"{number}{i}" for i in range(5)], "more": [0] * 5})
        (day / ".part-0.parquet.crc").write_text("x")
    (folder / "_SUCCESS").write_text("")
    return folder


def test_folders_and_patterns_have_the_columns_that_their_names_state(tmp_path: Path, command) -> None:
    log = hive(tmp_path / "log")
    for name in (log, f"{log}/day=*/**/*.parquet", f"{log}/day=[0-3]/of*/part-?.parquet"):
        found = find_logs([str(name)])
        assert found.columns() == ("id", "more", "day", "of")
        assert [str(file) for file in found.files] == [f"{log}/day={n}/of=a%20b/part-0.parquet" for n in range(4)]
    cells = [batch.to_pydict() for _, batch in found.batches(["of", "id", "day"], ["day"])]
    assert cells[1] == {"of": ["a b"] * 5, "id": [f"1{i}" for i in range(5)], "day": [1] * 5}
    said = command(
        "profile", log, "--out", tmp_path / "out", "--time", "day", "--columns", "id,of", "--train-share", 0.5
    )
    assert "20 of 20 rows, 10 train" in said
    (log / "day=0").rename(log / "day=__HIVE_DEFAULT_PARTITION__")
    _, batch = list(find_logs([str(log)]).batches(["day"]))[-1]
    assert batch.column("day").null_count == 5
    assert "no file is called" in command("profile", f"{log}/*.csv", "--out", tmp_path / "no", code=2)
    assert "cannot be reached" in command("profile", "odd://x/y.csv", "--out", tmp_path / "no", code=2)


def test_a_log_in_an_object_store_is_one_on_disk(tmp_path: Path, command) -> None:
    log = hive(tmp_path / "store" / "mine")
    (log / "day=3" / "of=a%20b" / "part-0.parquet").unlink()
    write(log / "day=3" / "of=a%20b" / "part-0.csv.gz", {"id": [f"3{i}" for i in range(5)], "more": [0] * 5})
    line = ("--columns", "id,of,day", "--mode", "vocabulary")
    command("profile", log, "--out", tmp_path / "disk", *line)
    with object_store(tmp_path / "store") as at:
        for name, key in (("folder", "mine"), ("pattern", "mine/day=*/**/part*")):
            command("profile", at.format(key), "--out", tmp_path / name, *line)
            assert read_note(tmp_path / name) == read_note(tmp_path / "disk")
        assert pickle.loads(pickle.dumps(find_logs([at.format("mine")]))).bytes == find_logs([str(log)]).bytes
        for key, says in (("none", "no file logs/none"), ("no*", "no file is called logs/no*: correct")):
            said = command("profile", at.format(key), "--out", tmp_path / "no", code=2)
            assert says in said
            assert "secret" not in said
    assert "secret" not in command("profile", "odd://key:secret@x/y.csv", "--out", tmp_path / "no", code=2)


def test_googles_and_hadoops_addresses_are_asked_of_their_drivers(
    tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is seen here: a log is found through Google's driver, and who is missing is said; none is read."""
    log = hive(tmp_path / "store" / "mine")
    with object_store(tmp_path / "store", "gs") as at:
        found = find_logs([at.format("mine")])
    assert found.storage.type_name == "gcs"
    on_disk = find_logs([str(log)])
    assert list(found.partitions.values()) == list(on_disk.partitions.values())
    assert [path.name for path in found.files] == [path.name for path in on_disk.files]
    monkeypatch.setattr("shardbench.datasets.preparation.log_reader._RETRIED_S", 1)
    assert "mine cannot be read: " in command("profile", at.format("mine"), "--out", tmp_path / "no", code=2)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = command("profile", "hdfs://namenode:8020/log/day=*", "--out", tmp_path / "no", code=2)
    assert "hdfs://namenode:8020/log/day=* cannot be reached: " in said
    assert ": install Java and Hadoop's client, and set JAVA_HOME and HADOOP_HOME" in said


def test_two_processes_do_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(4)
    names = ("a", "b", "c")
    files = [write(tmp_path / f"{n}.parquet", {name: generator.zipf(1.4, 500) for name in names}) for n in range(3)]
    cut = SampleSplit(rate=0.7)
    first = profiled(tmp_path / "one", files, tables(*names, rows=None), cut=cut)
    monkeypatch.setattr(side_by_side, "WORTH_BYTES", 1)
    monkeypatch.setattr(side_by_side, "cores", lambda: 2)
    # Spawned ones import for longer than they read.
    monkeypatch.setattr(side_by_side, "get_context", lambda spawn: FORK_SERVER.context())
    assert profiled(tmp_path / "two", files, tables(*names, rows=None), cut=cut) == first
    files[1].write_bytes(b"no parquet")
    with pytest.raises(BadInput, match=r"1\.parquet cannot be read"):
        profiled(tmp_path / "no", files, tables(*names), cut=cut)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.parquet", "1.parquet", "2.parquet", "one", "two"]


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path / f"{n}.csv", ROWS) for n in range(3)]
    whole = profiled(tmp_path / "whole", files, tables("user"))
    # In the midst of the last file, and once more after all were read.
    for module, name, left in ((log_words, "write_model", 2), (log_profile, "_count", 3)):
        with monkeypatch.context() as patch:
            real = getattr(module, name)
            calls = iter(range(10))

            def killed(*given: Any, real: Any = real, calls: Any = calls, after: int = left % 3) -> Any:
                if next(calls) == after:
                    raise KeyboardInterrupt
                return real(*given)

            patch.setattr(module, name, killed)
            with pytest.raises(KeyboardInterrupt):
                profiled(tmp_path / "out", files, tables("user"))
        parts = [path for path in (tmp_path / "out.unfinished").iterdir() if (path / "part.json").is_file()]
        assert len(parts) == left
    read: list[str] = []
    of_file = LogFiles._of_file
    monkeypatch.setattr(
        LogFiles, "_of_file", lambda self, path, *rest: read.append(path.name) or of_file(self, path, *rest)
    )
    files[1].touch()
    assert profiled(tmp_path / "out", files, tables("user")) == whole
    assert read == ["1.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.csv", "1.csv", "2.csv", "out", "whole"]


def test_long_lists_of_dictionaries_and_parts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own reader gives up on lists of dictionaries where a file has more of them than one page."""
    texts = pa.array([f"value {i}" for i in range(3000)])
    places = pa.array(np.random.default_rng(5).integers(0, 3000, 1_000_000), pa.int32())
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 1_000_001, 2), pa.int32()), pa.DictionaryArray.from_arrays(places, texts)
    )
    column = pa.ListArray.from_arrays(lists.offsets, texts.take(places))
    for name, ids in (("x", lists), ("y", column)):
        pyarrow.parquet.write_table(pa.table({"id": ids}), tmp_path / f"{name}.parquet", row_group_size=170_000)
    first = profiled(tmp_path / "out", [tmp_path / "x.parquet"], tables("id", rows=None))
    monkeypatch.setattr(log_reader, "PART_BYTES", 1)
    assert len(LogFiles(files=(tmp_path / "y.parquet",)).parts()) == 3
    assert profiled(tmp_path / "parts", [tmp_path / "y.parquet"], tables("id", rows=None)) == first


def test_counts_that_others_made_are_the_profile_of_the_log(tmp_path: Path, command) -> None:
    generator = np.random.default_rng(6)
    users = [None if value > 40 else f"u{value}" for value in generator.zipf(1.3, 4000)]
    items = [generator.zipf(1.6, 3).clip(max=300).tolist() for _ in range(4000)]
    log = write(tmp_path / "log.parquet", {"user": users, "item": items})
    counted = [("user", value, count) for value, count in Counter(users).items()]
    counted += [("item", str(value), count) for value, count in Counter(np.ravel(items).tolist()).items()]
    # A warehouse that counts its parts gives several counts of one value.
    counted += [("user", "u1", 0), ("other", "x", 5)]
    table, value, count = zip(*counted)
    counts = write(tmp_path / "counts.parquet", {"table": table, "value": value, "count": count})
    (tmp_path / "t.csv").write_text("name,rows,dim,pooling\nuser,64,8,\nitem,,8,3\n")
    line = ("--tables", tmp_path / "t.csv")
    command("profile", log, "--out", tmp_path / "log", *line, "--train-share", 0.9999)
    fields = tmp_path / "fields.json"
    said = command("profile", "--counts", counts, "--out", tmp_path / "made", *line, "--torchrec", fields)
    assert f"{tmp_path / 'made'}: counts of 4000 samples; 2 tables" in said
    assert json.loads(fields.read_text())["item"]["pooling_factors"] == [3.0]
    profiles = from_json(TableProfiles, (tmp_path / "made" / PROFILES).read_bytes()).tables
    hashed = hash_ids([user for user in users if user], table="user", rows=64)
    rows, wanted = np.unique(hashed, return_counts=True)
    user = profiles["user"]
    assert (user.samples, user.present, user.lookups) == (4000, len(hashed), len(hashed))
    assert np.repeat(user.counts, user.row_counts).tolist() == sorted(wanted.tolist(), reverse=True)
    order = np.load(tmp_path / "made" / log_profile.order_file(0))
    assert order.tolist() == rows[np.argsort(-wanted, kind="stable")].tolist()
    assert (profiles["item"].present, profiles["item"].lookups) == (4000, 12_000)
    assert read_seen(tmp_path / "made")["item"].values == read_seen(tmp_path / "log")["item"].values
    built = AccessLogConfig(prepared="made", batch_size=2048).build(tmp_path)
    assert built.profiles == (user, profiles["item"])
    bags = built.bags(Split.TEST, 0, 0)
    assert bags.sample_lengths.mean() == pytest.approx(user.coverage, abs=0.05)
    assert np.mean(bags.values == 0) == pytest.approx(user.cdf(1), abs=0.05)
    assert built.bags(Split.TEST, 0, 1).sample_lengths.mean() == pytest.approx(3, abs=0.2)
    ids = write(tmp_path / "rows.csv", {"table": ["a", "a", "b"], "row": [3, 1, 0], "count": [5, 6, 7]})
    assert "counts of 11 samples; 2 tables" in command("profile", "--counts", ids, "--out", tmp_path / "rows")
    assert [table.rows for table in read_note(tmp_path / "rows").tables] == [4, 1]
    for wrong, rest, says in (
        ({"table": ["a"], "row": [1], "count": [-1]}, [], "column count: counts are whole numbers from 0 on"),
        ({"table": ["a"], "row": [1]}, [], "has no column 'count'"),
        ({"table": ["a"], "row": [1], "count": [1]}, ["--columns", "b"], "has no counts of table b"),
        ({"table": ["a"], "row": [1], "count": [1]}, [log], "leave logs, --time and --rate out, or --counts"),
    ):
        made = write(tmp_path / "wrong.parquet", wrong)
        assert says in command("profile", *rest, "--counts", made, "--out", tmp_path / "no", code=2)
    with pytest.raises(BadInput, match="has counts but no samples"):
        drift._log(tmp_path / "made", 64)


@pytest.mark.parametrize("cut_at", [0.3, 0.7, 0.95])
def test_a_packed_log_that_was_cut_is_refused(tmp_path: Path, cut_at: float) -> None:
    file = write(tmp_path / "log.csv.gz", {"id": np.random.default_rng(0).integers(0, 50, 5000)})
    packed = file.read_bytes()
    file.write_bytes(packed[: int(len(packed) * cut_at)])
    with pytest.raises(BadInput, match=r"log\.csv\.gz cannot be read"):
        profiled(tmp_path / "out", [file], tables("id"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    profiled(folder, [write(tmp_path / "log.csv", ROWS)], tables("user"))
    (folder / log_profile.values_file(0, 0)).write_bytes(b"no array")
    with pytest.raises(BadInput, match="shardbench profile"):
        AccessLogConfig(prepared="out", batch_size=2, test_batches=1).build(tmp_path)
    with pytest.raises(BadInput, match=r"no file .*prepared\.json"):
        AccessLogConfig(prepared="none").build(tmp_path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    file, out, fields = write(tmp_path / "log.csv", ROWS), tmp_path / "out", tmp_path / "fields.json"
    line = ("profile", file, "--out", out, "--time", "day", "--train-share", 0.5, "--mode", "vocabulary")
    said = command(*line, "--torchrec", fields)
    assert f"{out}: 8 of 8 rows, 4 train; 2 tables" in said
    assert 'dataset = "access_log"' in said
    assert read_note(out).time == "day"
    assert re.search(r"^user +4 +4 +4 .* 75\.0 %", said, re.MULTILINE)
    assert json.loads(fields.read_text())["user"]["pooling_factors"] == [0.75]
    fields.unlink()
    told = json.loads(command("profile", "--out", out, "--torchrec", fields, "--json"))
    assert told["profiled"]["samples"] == 8
    assert [(name, table["values"]) for name, table in told["seen"].items()] == [("item", 4), ("user", 4)]
    assert fields.is_file()
    assert told["topology"] is None
    beside = ("--torchrec", fields, "--machine", "a100-40gb-2x8")
    assert f"arguments of its Topology: {tmp_path / 'fields.topology.json'}" in command(
        "profile", "--out", out, *beside
    )
    assert json.loads((tmp_path / "fields.topology.json").read_text())["local_world_size"] == 8
    assert json.loads((tmp_path / "fields.hardware.json").read_text())["fwd"]["embedding_output_multiplier"] == 1
    assert "give --torchrec FILE" in command("profile", "--out", out, *beside[2:], code=2)
    assert "is there already" in command(*line, code=2)
    assert "give logs to profile" in command("profile", "--out", out, code=2)
    # A later log with the tables of an earlier one, and lines as wide as the terminal.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    hashed, later = tmp_path / "hashed", tmp_path / "later"
    command("profile", file, "--out", hashed, "--columns", "user")
    shown = command("profile", file, "--out", later, "--tables", hashed).rpartition("\x1b")[2].splitlines()[1:-5]
    assert read_note(later) == read_note(hashed)
    (tmp_path / "open.csv").write_text("name,rows\nuser,\nitem,40\n")
    command("profile", file, "--out", tmp_path / "listed", "--tables", tmp_path / "open.csv", "--rows", 30, "--json")
    assert [table.rows for table in read_note(tmp_path / "listed").tables] == [30, 40]
    assert max(map(len, shown)) < 60
    assert "no room for" in " ".join(shown)
    for wrong, says in (
        (["--header", "a,b"], "log.csv has 3 columns, the header names 2: a, b"),
        (["--mode", "ids", "--rows", "9"], "--rows is of --mode hash"),
    ):
        assert says in command("profile", file, "--out", tmp_path / "no", *wrong, code=2)
    (tmp_path / "x.txt").write_text("x;y\n1;2\n")
    said = command("profile", tmp_path / "x.txt", "--out", tmp_path / "no", code=2)
    assert "'x;y' of x.txt looks like no column's name" in said
    assert not (tmp_path / "no").exists()


DOCUMENT = Path(__file__).parent.parent / "docs" / "bring_your_tables.md"


def test_the_documents_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    block = re.search(r"^```console\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert block
    line, _, said = block.group(1).partition("\n")
    monkeypatch.chdir(tmp_path)
    items = ["1;2", None, "3", *("2" for _ in range(97))]
    write(tmp_path / "log.csv", {"day": range(100), "user": [f"u{i % 30}" for i in range(100)], "items": items})
    (tmp_path / "tables.csv").write_text("name,rows,dim,features\nuser,100,16,\nitem,50,32,items\n")
    assert command(*line.removeprefix("$ shardbench ").split()) == said
    suite = tmp_path / "suite.toml"
    stated = "\n".join(line.strip() for line in said.partition("in a suite")[2].splitlines()[1:])
    suite.write_text(SUITE.replace("WORKLOAD", stated))
    command("run", suite, "--data", "data", "--results", "runs", "--strategy", "greedy-size")
    rows = (tmp_path / "runs" / "tables" / "own" / "throughput.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:5] for row in rows] == [["mine", "a100-40gb-2x8", "simulated", "greedy-size", "ok"]]


def test_what_is_written_for_torchrec_is_taken_by_it(tmp_path: Path) -> None:
    from torchrec.distributed.planner.types import ParameterConstraints, Topology  # noqa: PLC0415

    profiled(tmp_path / "out", [write(tmp_path / "log.csv", ROWS)], tables("user", "item"))
    found = {name: ParameterConstraints(**fields) for name, fields in constraints(tmp_path / "out").items()}
    assert found["item"].pooling_factors == [0.75]
    machine = load_machine("a100-40gb-2x8")
    topology = Topology(**topology_fields(machine))
    assert (topology.world_size, topology.local_world_size, topology.compute_device) == (16, 8, "cuda")
    # TorchRec reserves of the whole device what its machine's file keeps of it.
    assert topology.devices[0].storage.hbm == pytest.approx(machine.topology.hbm_bytes / 0.8)
    assert topology.hbm_mem_bw == machine.constants.hbm_bytes_per_s / 1e3


@pytest.mark.parametrize("mode", ["hash", "vocabulary"])
@pytest.mark.parametrize("missing", ["empty", "row"])
def test_what_a_dictionary_has_besides_is_not_met(mode: Mode, missing: Missing) -> None:
    numbers = pa.array([str(number) for number in range(127)])
    for places, texts in (
        (pa.array([0, 2, None, 1], pa.int8()), pa.array(["a", "b", None])),
        (pa.array([], pa.int32()), pa.array(["a"])),
        (pa.array([1, 1, 0], pa.int32()), pa.array(["7", "7.0", "x", "y", "z"])),
        (pa.array([126, 0, None] * 60, pa.int8()), numbers),
    ):
        column = pa.DictionaryArray.from_arrays(places, texts)
        rows = 100 if mode == "hash" else None
        own, plain = (RowsOfTable("t", Cells(mode=mode, missing=missing), rows) for _ in range(2))
        for one, other in zip(encoded(own, column), encoded(plain, column.dictionary_decode())):
            assert one.tolist() == other.tolist()
        assert own.rows == plain.rows
