"""Criteo Kaggle: preparing a made-up TSV, refusals by line, the prepared workload."""

import gzip
import hashlib
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from shardbench.base.errors import BadInput
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.criteo_kaggle import CONFIG
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.preparation import log_reader
from shardbench.datasets.preparation.criteo_prepare import MISSING, Prepared, category_file, prepare
from shardbench.datasets.preparation.log_encode import Cells, RowsOfTable
from shardbench.workloads.trace import Split

LINES = 70


def made_up(lines: int = LINES, seed: int = 0) -> list[list[str]]:
    """Cells of made-up samples; nothing of Criteo's."""
    generator = np.random.default_rng(seed)
    cells = []
    for _ in range(lines):
        integers = [str(int(i)) for i in generator.integers(-3, 5000, 13)]
        categories = [f"{int(v):08x}" for v in generator.zipf(1.3, 26) % (1 << 32)]
        row = [str(int(generator.integers(0, 2))), *integers, *categories]
        for column in range(1, 40):
            if generator.random() < 0.15:
                row[column] = ""
        cells.append(row)
    return cells


def write(path: Path, cells: list[list[str]], end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(row) + end for row in cells).encode())
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(log_reader, "BATCH_ROWS", 15)


def vocabulary_of(cells: list[list[str]], column: int) -> list[int]:
    rows: dict[str, int] = {}
    return [rows.setdefault(row[14 + column], len(rows)) if row[14 + column] else MISSING for row in cells]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mode", ["hash", "vocabulary"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_prepared_arrays_are_the_cells(tmp_path: Path, mode: Any, suffix: str) -> None:
    cells = made_up()
    plain = write(tmp_path / "train.txt", cells, "\r\n" if suffix == ".gz" else "\n")
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
    source = tmp_path / f"source{suffix}"
    source.write_bytes(pack[suffix](plain.read_bytes()))
    done: list[int] = []
    target = tmp_path / "out" / "prepared"
    rows = 1000 if mode == "hash" else None
    prepared = prepare(source, target, mode=mode, rows=rows, seed=3, progress=lambda _, more: done.append(more))
    assert sum(done) == LINES
    assert len(done) > 3
    assert prepared.samples == LINES
    assert Prepared.model_validate_json((target / "prepared.json").read_text()) == prepared
    assert np.load(target / "label.npy").tolist() == [int(row[0]) for row in cells]
    dense = np.array([[float(c) if c else np.nan for c in row[1:14]] for row in cells], dtype=np.float32)
    np.testing.assert_array_equal(np.load(target / "dense.npy"), dense)
    for column in range(26):
        file = category_file(column)
        got = np.load(target / file)
        assert got.dtype == np.int32
        if mode == "vocabulary":
            assert got.tolist() == vocabulary_of(cells, column)
            assert prepared.rows[column] == got.max() + 1
        else:
            there = np.array([bool(row[14 + column]) for row in cells])
            texts = pa.array([row[14 + column] for row in cells])
            table = RowsOfTable(f"C{column + 1}", Cells(seed=3), 1000)
            assert got[there].tolist() == table.bags(table.coded(texts, "x"))[0].tolist()
            assert (got[~there] == MISSING).all()
        assert prepared.missing[column] == sum(not row[14 + column] for row in cells)
        assert prepared.checksums[file] == hashlib.sha256(got.tobytes()).hexdigest()
    assert sorted(p.name for p in target.parent.iterdir()) == ["prepared"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row[:39], "Row #42: Expected 40 columns, got 39"),
        (lambda row: [*row, "x"], "Row #42: Expected 40 columns, got 41"),
        (lambda row: [], "train.txt line 42: column 1 (label) must be 0 or 1, not None"),
        (
            lambda row: [*row[:20], "0000000g", *row[21:]],
            "train.txt line 42: column 21 must be 1 to 8 hex digits or empty, not '0000000g'",
        ),
        (lambda row: [*row[:20], "123456789", *row[21:]], "column 21 must be 1 to 8 hex digits"),
        (lambda row: [*row[:5], "1.5", *row[6:]], "#5: Row #42: CSV conversion error to int64: invalid value '1.5'"),
        (lambda row: [*row[:5], "-", *row[6:]], "Row #42: CSV conversion error to int64: invalid value '-'"),
        (lambda row: ["2", *row[1:]], "train.txt line 42: column 1 (label) must be 0 or 1, not 2"),
        (lambda row: ["", *row[1:]], "train.txt line 42: column 1 (label) must be 0 or 1, not None"),
    ],
)
def test_malformed_lines_are_refused_by_number_and_nothing_is_left(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    cells = made_up()
    cells[41] = change(cells[41])
    source = write(tmp_path / "train.txt", cells)
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        prepare(source, tmp_path / "out")
    assert str(caught.value).startswith("train.txt ")
    assert "; expected: dac.tar.gz or a file of it" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["train.txt"]


def test_bad_arguments_and_files(tmp_path: Path) -> None:
    source = write(tmp_path / "train.txt", made_up(5))
    (tmp_path / "there").mkdir()
    with pytest.raises(BadInput, match="is there already"):
        prepare(source, tmp_path / "there")
    with pytest.raises(BadInput, match="leave rows out"):
        prepare(source, tmp_path / "out", mode="vocabulary", rows=10)
    with pytest.raises(BadInput, match="2147483648 rows: 2147483647 is the most"):
        prepare(source, tmp_path / "out", rows=2**31)
    with pytest.raises(BadInput, match="no file"):
        prepare(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").write_text("")
    with pytest.raises(BadInput, match="Empty CSV file"):
        prepare(tmp_path / "empty", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "there", "train.txt"]


def test_workload_reads_the_prepared_folder(tmp_path: Path) -> None:
    cells = made_up(140)
    prepare(write(tmp_path / "train.txt", cells), tmp_path / "criteo_kaggle", mode="vocabulary")
    workload = CONFIG(mode="vocabulary", batch_size=5, dim=4).build(tmp_path)
    assert workload.train_samples == 120
    for table in (0, 13, 25):
        raw = np.array(vocabulary_of(cells, table))
        assert workload.tables[table].rows == raw.max() + 1
        profile, train = workload.profiles[table], raw[:120][raw[:120] >= 0]
        assert (profile.samples, profile.present, profile.lookups) == (120, len(train), len(train))
        for batch in range(4):
            bags = workload.bags(Split.TEST, batch, table)
            part = raw[120 + 5 * batch : 125 + 5 * batch]
            assert bags.lengths.tolist() == (part >= 0).astype(int).tolist()
            np.testing.assert_array_equal(bags.values, workload.ranking(table)(part[part >= 0]))


def test_workload_refuses_what_is_not_prepared_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="shardbench prepare"):
        CONFIG().build(tmp_path)
    folder = tmp_path / "criteo_kaggle"
    prepare(write(tmp_path / "train.txt", made_up()), folder)
    with pytest.raises(BadInput, match="was prepared by 'hash'"):
        CONFIG(mode="vocabulary").build(tmp_path)
    for content in (b"cut", np.zeros(3, np.int32)):
        if isinstance(content, bytes):
            (folder / category_file(4)).write_bytes(content)
        else:
            np.save(folder / category_file(4), content)
        with pytest.raises(BadInput, match=r"C05\.npy") as caught:
            CONFIG(batch_size=2).build(tmp_path)
        assert "\n" not in str(caught.value)
    (folder / "prepared.json").write_text("{}")
    with pytest.raises(BadInput, match=r"prepared\.json"):
        CONFIG().build(tmp_path)


def test_an_array_that_was_changed_after_preparing_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "criteo_kaggle"
    prepare(write(tmp_path / "train.txt", made_up()), folder)
    config, path = CONFIG(batch_size=2), folder / category_file(3)
    assert config.build(tmp_path).profiles[3].lookups
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BadInput, match=rf"{path.name} is not what was prepared .its SHA-256 is not that of .*prepared"):
        _ = config.build(tmp_path).profiles
    path.write_bytes(whole)
    assert config.build(tmp_path).profiles[3].lookups, "held against its sum again, since the file is another"


def test_card_restates_the_published_cardinalities() -> None:
    numbers = load_card("criteo_kaggle").numbers
    assert list(numbers["rows"]) == cardinalities()["kaggle"]["rows"]
    assert sum(numbers["rows"]) == numbers["total_rows"]
    assert len(numbers["rows"]) == numbers["tables"]


def archive(path: Path, *members: Path) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for member in members:
            file.add(member, f"dac/{member.name}")
    return path


def test_the_archive_is_read_as_it_is_downloaded(tmp_path: Path) -> None:
    cells = made_up()
    train = write(tmp_path / "train.txt", cells)
    (tmp_path / "readme.txt").write_text("about")
    packed = archive(tmp_path / "dac.tar.gz", tmp_path / "readme.txt", train)
    assert prepare(packed, tmp_path / "of_archive") == prepare(train, tmp_path / "of_file")
    with pytest.raises(BadInput, match=r"other\.tar\.gz has no file train\.txt: give the archive as it was"):
        prepare(archive(tmp_path / "other.tar.gz", tmp_path / "readme.txt"), tmp_path / "out")
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"dac\.tar\.gz cannot be read: .*; expected: dac"):
        prepare(packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_without_labels_gives_the_same_columns(tmp_path: Path) -> None:
    cells = made_up()
    labelled = prepare(write(tmp_path / "train.txt", cells), tmp_path / "train")
    plain = prepare(write(tmp_path / "test.txt", [row[1:] for row in cells]), tmp_path / "test")
    assert labelled.checksums.keys() - plain.checksums.keys() == {"label.npy"}
    assert plain.checksums.items() <= labelled.checksums.items()
    assert not (tmp_path / "test" / "label.npy").exists()
    wrong = [row[1:] for row in cells]
    wrong[4][13] = "0000000g"
    with pytest.raises(BadInput, match=r"test2\.txt line 5: column 14 must be 1 to 8 hex digits or empty"):
        prepare(write(tmp_path / "test2.txt", wrong), tmp_path / "out")
