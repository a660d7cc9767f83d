"""MLPerf's multi-hot days: small files of their form, made here, become a workload; faults are one line each."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardbench.base.errors import BadInput
from shardbench.datasets.access_log import AccessLog, read_note
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.criteo_like import cardinalities
from shardbench.datasets.criteo_multi_hot import CONFIG, DOWNLOAD
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.workloads.trace import Split

SHAPE = cardinalities()["terabyte_dcnv2"]
DAY = 40


def arrays(samples: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """A day's arrays by key, rows of few values."""
    generator = np.random.default_rng(seed)
    return {
        str(i): generator.integers(0, min(rows, 50), (samples, hotness), dtype=np.int32)
        for i, (rows, hotness) in enumerate(zip(SHAPE["rows"], SHAPE["multi_hot"], strict=True))
    }


def day(folder: Path, number: int, samples: int = DAY, *, packed: bool = False) -> Path:
    path = folder / f"day_{number}_sparse_multi_hot.npz"
    (np.savez_compressed if packed else np.savez)(path, **arrays(samples, number))
    return path


def test_days_become_a_workload_whose_last_day_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.setattr("shardbench.datasets.criteo_multi_hot.BATCH_ROWS", 16)
    days = [day(tmp_path, 0), day(tmp_path, 7, 30, packed=True), day(tmp_path, 23, 20)]
    target = tmp_path / "data" / "criteo_multi_hot"
    noted = json.loads(command("prepare", "criteo_multi_hot", *days, target, "--json"))["prepared"]
    assert (noted["samples"], noted["train_samples"], noted["mode"]) == (90, 70, "ids")
    workload = CONFIG(batch_size=10, test_batches=2).build(tmp_path / "data")
    assert isinstance(workload, AccessLog)
    numbers = load_card("criteo_multi_hot").numbers
    assert len(workload.tables) == numbers["tables"]
    assert sum(table.rows for table in workload.tables) == numbers["total_rows"]
    made = [arrays(40, 0), arrays(30, 7), arrays(20, 23)]
    lookups = 0
    for table, shape in enumerate(workload.tables):
        train = np.concatenate([part[str(table)] for part in made[:2]])
        counts = np.unique(train, return_counts=True)[1]
        profile = workload.profiles[table]
        assert (profile.samples, profile.present, profile.lookups) == (70, 70, train.size)
        assert (profile.seen_rows, profile.counts[0], shape.dim) == (len(counts), counts.max(), SHAPE["dim"])
        bags = workload.bags(Split.TEST, 1, table)
        rest = made[2][str(table)][10:]
        assert bags.lengths.tolist() == [rest.shape[1]] * 10
        assert bags.values.tolist() == workload.ranking(table)(rest.ravel().astype(np.int64)).tolist()
        lookups += len(bags.values)
    assert lookups == 10 * int(numbers["lookups_per_sample"])  # type: ignore[arg-type]


def test_one_day_is_split_by_a_share(tmp_path: Path, command) -> None:
    file = day(tmp_path, 4, 70)
    assert prepare_download(DOWNLOAD, [file], tmp_path / "own").train_samples == 60
    command("prepare", "criteo_multi_hot", file, tmp_path / "out", "--train-share", 0.5)
    assert read_note(tmp_path / "out").train_samples == 35


def test_every_way_of_cutting_days_leaves_the_last_one_to_test(tmp_path: Path) -> None:
    for first in range(1, 12):
        days = [day(tmp_path, 0, first), day(tmp_path, 1, 1)]
        assert prepare_download(DOWNLOAD, days, tmp_path / f"out{first}").train_samples == first


def test_the_card_restates_what_is_published() -> None:
    numbers = load_card("criteo_multi_hot").numbers
    assert numbers["hotness"] == tuple(SHAPE["multi_hot"])
    assert numbers["lookups_per_sample"] == sum(SHAPE["multi_hot"])
    assert numbers["total_rows"] == sum(SHAPE["rows"])


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Members of an archive changed, written again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array, allow_pickle=True)
    return made.getvalue()


def put(number: int, array: np.ndarray[Any, Any]) -> Callable[[dict[str, bytes]], None]:
    """A change that makes another array of one member."""
    return lambda members: members.update({f"{number}.npy": npy(array)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("25.npy"), "has other arrays than '0' to '25'"),
        (lambda m: m.update({"26.npy": b""}), "has other arrays than '0' to '25'"),
        (put(1, np.zeros((DAY, 3), np.int32)), "array '1' is int32 [40, 3], expected int32 [samples, 2]"),
        (put(1, np.zeros((DAY, 2), np.float32)), "array '1' is float32 [40, 2]"),
        (put(1, np.zeros((DAY, 2), np.int32, order="F")), "array '1' is int32 [40, 2], by column"),
        (put(1, np.full((DAY, 2), None)), "array '1' is object [40, 2]"),
        (put(2, np.zeros((9, 1), np.int32)), "array '2' has 9 samples, '0' has 40"),
        (lambda m: m.update({"2.npy": b"no array at all"}), "array '2' cannot be read as an array of numpy's"),
        (lambda m: m.update({"2.npy": m["2.npy"][:-1]}), "array '2' ends before its 40 samples do"),
        (lambda m: m.update({"2.npy": m["2.npy"] + b"x"}), "array '2' has more than its 40 samples"),
        (put(5, np.full((DAY, 1), 3, np.int32)), "column C6: 3 is no row of 0..2"),
        (put(5, np.full((DAY, 1), -1, np.int32)), "column C6: -1 is no row of 0..2"),
    ],
)  # fmt: skip
def test_a_day_that_is_not_as_expected_is_refused_in_one_line(
    tmp_path: Path, command, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    path = day(tmp_path, 3)
    rewritten(path, change)
    line = command("prepare", "criteo_multi_hot", path, tmp_path / "out", code=2)
    assert message in line
    assert re.search(r"day_3_sparse_multi_hot\.npz .*; expected: any of day_0_sparse_multi_hot\.npz", line), line
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    path = day(tmp_path, 3)
    whole = path.read_bytes()
    changed = bytearray(whole)
    # The last byte of the first array's numbers, of whatever is there.
    changed[whole.index(b"PK", 4) - 1] ^= 1
    for content, message in (
        (whole[: len(whole) // 2], "is not a zip file"),
        (bytes(changed), "as an array of numpy's: Bad CRC-32 for file '0.npy'"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=rf"day_3_sparse_multi_hot\.npz .*cannot be read.* {message}"):
            prepare_download(DOWNLOAD, [path], tmp_path / "out")
    dense = tmp_path / "day_3_dense.npy"
    np.save(dense, np.zeros((4, 13), np.float32))
    with pytest.raises(BadInput, match=r"day_3_dense\.npy cannot be read: .*; expected: .* dense and labels are not"):
        prepare_download(DOWNLOAD, [dense], tmp_path / "out")
    with pytest.raises(BadInput, match=r"no file .*day_9.*; expected"):
        prepare_download(DOWNLOAD, [tmp_path / "day_9_sparse_multi_hot.npz"], tmp_path / "out")
    for options in ({"rows": 7}, {"mode": "hash"}):
        with pytest.raises(BadInput, match="row numbers of published tables: leave mode and rows out"):
            prepare_download(DOWNLOAD, [path], tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
