"""Public data sets as they are downloaded: small files of their form, made here, become workloads."""

import gzip
import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from shardbench.base.errors import BadInput
from shardbench.cli.prepare import Preparable
from shardbench.datasets import avazu, criteo_terabyte, taobao
from shardbench.datasets.access_log import AccessLog, read_note
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.trace import Split

ROWS = 90


def criteo_day(path: Path, seed: int) -> Path:
    """Lines as Criteo's, some cells empty."""
    generator = np.random.default_rng(seed)
    lines = []
    for line in generator.integers(0, 2**32, (ROWS, 40)).tolist():
        categories = ["" if cell % 50 == 7 else f"{cell % 50:08x}" for cell in line[14:]]
        lines.append("\t".join([str(line[0] % 2), *(str(cell % 100) for cell in line[1:14]), *categories]))
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def behaviour(path: Path) -> Path:
    generator = np.random.default_rng(3)
    seconds = 1511539200 + generator.permutation(ROWS) * 8640
    users, items, categories = (generator.integers(1, most, ROWS).tolist() for most in (30, 60, 9))
    rows = zip(users, items, categories, seconds.tolist())
    path.write_text("".join(f"{user},{item},{category},pv,{second}\n" for user, item, category, second in rows))
    return path


def clicks(path: Path) -> Path:
    generator = np.random.default_rng(4)
    names = ["id", "click", "hour", *avazu.FEATURES]
    lines = [",".join(names)]
    for row in range(ROWS):
        values = [f"{value:x}" for value in generator.integers(0, 40, len(avazu.FEATURES)).tolist()]
        lines.append(",".join([f"{row}e18", "0", str(14102100 + row // 4), *values]))
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def built(kind: str, data: Path, **fields: object) -> AccessLog:
    stated = {"dataset": kind, "name": "real", "batch_size": 8, "test_batches": 1, **fields}
    workload = workload_config(stated, "a suite").build(data)
    assert isinstance(workload, AccessLog)
    return workload


def test_days_of_the_terabyte_logs(tmp_path: Path, command) -> None:
    days = [criteo_day(tmp_path / f"day_{day}.gz", day) for day in (2, 3, 11)]
    target = tmp_path / "data" / "criteo_terabyte"
    told = json.loads(command("prepare", "criteo_terabyte", *days, target, "--json"))
    assert told["prepared"]["samples"] == 3 * ROWS
    workload = built("criteo_terabyte", tmp_path / "data")
    assert workload.train_samples == 2 * ROWS
    assert len(workload.tables) == load_card("criteo_terabyte").numbers["tables"]
    assert workload.tables[0].rows == criteo_terabyte.DOWNLOAD.tables[0].rows
    bags = workload.bags(Split.TEST, 0, 0)
    lines = gzip.decompress(days[2].read_bytes()).decode().splitlines()[:8]
    cells = [line.split("\t")[14] for line in lines]
    assert bags.lengths.tolist() == [int(cell != "") for cell in cells]
    there = [cell for cell in cells if cell]
    assert len(set(bags.values.tolist())) == len(set(there))


def test_users_behaviour_is_split_by_its_seconds(tmp_path: Path) -> None:
    file = behaviour(tmp_path / "UserBehavior.csv")
    done = prepare_download(taobao.DOWNLOAD, [file], tmp_path / "taobao")
    assert done.train_samples == 80
    cells = [line.split(",") for line in file.read_text().splitlines()]
    train = sorted(range(ROWS), key=lambda row: int(cells[row][4]))[:80]
    workload = built("taobao", tmp_path)
    for table, name in enumerate(("user", "item", "category")):
        assert workload.tables[table].name == name
        assert workload.tables[table].rows == len({line[table] for line in cells})
        counted = np.unique([cells[row][table] for row in train], return_counts=True)[1]
        assert workload.profiles[table].lookups == 80
        assert workload.profiles[table].seen_rows == len(counted)
        assert workload.profiles[table].counts[0] == counted.max()
    hashed = prepare_download(taobao.DOWNLOAD, [file], tmp_path / "hashed", mode="hash")
    assert [table.rows for table in hashed.tables] == list(load_card("taobao").numbers["rows"])  # type: ignore[arg-type]


def test_clicks_of_avazu(tmp_path: Path) -> None:
    file = clicks(tmp_path / "train.gz")
    prepare_download(avazu.DOWNLOAD, [file], tmp_path / "avazu")
    workload = built("avazu", tmp_path)
    assert [table.name for table in workload.tables] == list(avazu.FEATURES)
    assert len(workload.tables) == load_card("avazu").numbers["tables"]
    assert read_note(tmp_path / "avazu").split_at == 14102120
    assert workload.train_samples == 80
    with pytest.raises(BadInput, match="give the rows of the hashed tables"):
        prepare_download(avazu.DOWNLOAD, [file], tmp_path / "hashed", mode="hash")
    assert prepare_download(avazu.DOWNLOAD, [file], tmp_path / "hashed", mode="hash", rows=9).tables[3].rows == 9


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("criteo_terabyte", "day_0", "1\t2\n", r"day_0 has 2 columns, the header names 40: .*; expected: any of"),
        ("criteo_terabyte", "train.txt", "1\t2\n", r"train\.txt are not days in order; expected: any of day_0\.gz"),
        ("taobao", "UserBehavior.csv", "1,2,3,pv\n", r"has 4 columns, the header names 5: user.*; expected: U"),
        ("taobao", "UserBehavior.csv", "1,2,3,pv,soon\n", r"column time: times are string.*; expected: UserB"),
        ("avazu", "train.csv", "id,click\n1,0\n", r"train\.csv has no column 'hour'.*; expected: train\.gz of Avazu's"),
    ],
)  # fmt: skip
def test_wrong_files_get_a_line_that_says_what_is_expected(
    tmp_path: Path, command, kind: str, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    line = command("prepare", kind, tmp_path / name, tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert re.search(message, line), line


def test_days_out_of_order_and_one_argument_are_refused(tmp_path: Path, command) -> None:
    days, out = [criteo_day(tmp_path / f"day_{day}.gz", day) for day in (1, 0)], tmp_path / "out"
    for given, says in (
        (("criteo_terabyte", *days, out), "day_1.gz, day_0.gz are not days in order"),
        (("taobao", days[0]), "and then the folder to write"),
        (("criteo_kaggle", *days, out), "is one file, not 2"),
        (("taobao", days[0], out, "--rows", 3), "counts the rows itself"),
    ):
        assert says in command("prepare", *given, code=2)


def test_every_data_set_that_can_be_prepared_is_a_kind_with_a_card() -> None:
    for dataset in get_args(Preparable):
        assert load_card(dataset).kind == dataset
