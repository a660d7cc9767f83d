"""Yambda as it is downloaded: few users in parquet files made here, with histories and features counted by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardbench.datasets.cards.card import load_card
from shardbench.datasets.laws.power_law import hashed_rows
from shardbench.datasets.preparation import log_reader, yambda_prepare
from shardbench.datasets.preparation.yambda_prepare import DAY, EVENTS, MAPPINGS, prepare
from shardbench.datasets.yambda import CONFIG, Yambda
from shardbench.datasets.yambda_like import BLOCK, ROWS
from shardbench.workloads.trace import Bags, Split

USERS = {
    3: [
        (0, 10, "listen", 90, True),
        (5, 11, "listen", 49, True),
        (10, 10, "like", None, False),
        (DAY + 3600, 12, "listen", 50, False),
        (DAY + 3600, 10, "unlike", None, True),
        (2 * DAY + 7200, 11, "listen", 100, True),
    ],
    8: [(20, 12, "listen", 80, False), (DAY + 5, 10, "listen", 0, True), (2 * DAY, 13, "like", None, False)],
}
"""Events of two users on three days: seconds, item, type, played percent, whether it is organic."""
ORDER = [(3, 0), (3, 1), (3, 2), (8, 0), (3, 3), (3, 4), (8, 1), (3, 5), (8, 2)]
"""The events as samples: the user and the number of the user's event, day by day."""
HISTORIES = [
    [], [10], [10, 11],
    [],
    [10, 11, 10], [10, 12, 11, 10],
    [12],
    [10, 12, 11, 10],
    [12, 10],
]  # fmt: skip
"""Items of each sample's history: listened to, then skipped, then liked."""
ARTISTS, ALBUMS = {10: 70, 11: 71, 12: 70, 13: 0}, {10: 900, 11: 0, 12: 901, 13: 902}


def table(users: dict[int, list[tuple[Any, ...]]] = USERS) -> pa.Table:
    rows = [(user, *event) for user, events in users.items() for event in events]
    uid, seconds, item, kind, played, organic = zip(*rows)
    return pa.table(
        {
            "uid": pa.array(uid, pa.uint32()),
            "timestamp": pa.array(seconds, pa.uint32()),
            "item_id": pa.array(item, pa.uint32()),
            "is_organic": pa.array([int(one) for one in organic], pa.uint8()),
            "played_ratio_pct": pa.array(played, pa.uint16()),
            "track_length_seconds": pa.array([100] * len(rows), pa.uint32()),
            "event_type": pa.array(kind).dictionary_encode(),
        }
    )


def files(folder: Path, events: pa.Table | None = None, size: str = "50m") -> list[Path]:
    """Write a download; item 12 has two artists, of which the first counts."""
    home = folder / "flat" / size
    home.mkdir(parents=True)
    pq.write_table(table() if events is None else events, home / EVENTS)
    owners = {"artist_id": [(10, 70), (11, 71), (12, 70), (12, 71)], "album_id": [(12, 901), (10, 900), (13, 902)]}
    for column, pairs in owners.items():
        items, own = zip(*pairs)
        pq.write_table(pa.table({column: own, "item_id": items}), folder / MAPPINGS[column])
    return [home / EVENTS, *(folder / name for name in MAPPINGS.values())]


def built(data: Path, **changes: object) -> Yambda:
    fields = {"batch_size": 1, "test_batches": 2, "dim": 8, "profile_samples": 3, "first_day": 0, **changes}
    return CONFIG.model_validate(fields).build(data)


def bags(workload: Yambda, name: str, start: int = 0, stop: int = len(ORDER)) -> Bags:
    return workload._raw(list(ROWS).index(name), start, stop)


def lists(feature: Bags) -> list[list[int]]:
    return [part.tolist() for part in np.split(feature.values, feature.offsets[1:-1])]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yambda")
    with pytest.MonkeyPatch.context() as patch:
        # Parts of two events, and runs put in order two at a time: both cut users and days.
        patch.setattr(log_reader, "BATCH_ROWS", 2)
        patch.setattr(yambda_prepare, "_SLICE", 2)
        noted = prepare(files(folder), folder / "data" / "yambda")
    assert (noted.size, noted.samples, noted.runs, noted.samples_by_day) == ("50m", 9, 6, (4, 3, 2))
    return folder / "data"


def test_samples_have_the_histories_and_candidates_counted_by_hand(data: Path) -> None:
    workload = built(data)
    items = bags(workload, "item_id")
    assert lists(items.feature(0)) == HISTORIES
    own = [USERS[user][number][1] for user, number in ORDER]
    assert items.feature(1).values.tolist() == own
    for name, owners in (("artist_id", ARTISTS), ("album_id", ALBUMS)):
        of_owners = bags(workload, name)
        assert lists(of_owners.feature(0)) == [[owners[item] for item in history] for history in HISTORIES]
        assert of_owners.feature(1).values.tolist() == [owners[item] for item in own]


def test_a_pool_keeps_the_latest_events(data: Path) -> None:
    cut = lists(bags(built(data, pool=1), "item_id").feature(0))
    assert cut == [[], [10], [10, 11], [], [10, 11, 10], [12, 11, 10], [12], [12, 11, 10], [12, 10]]


def test_features_of_one_lookup_are_those_of_the_sample(data: Path) -> None:
    workload, names = built(data), list(ROWS)
    events = [(user, *USERS[user][number]) for user, number in ORDER]
    user, seconds, item, organic = (np.array([event[at] for event in events]) for at in (0, 1, 2, 5))
    artist, album = (np.array([owners[one] for one in item.tolist()]) for owners in (ARTISTS, ALBUMS))
    hour = np.array([0, 0, 0, 0, 1, 1, 0, 2, 0])
    np.testing.assert_array_equal(hour, seconds // 3600 % 24)
    assert bags(workload, "uid").values.tolist() == user.tolist()
    crossed = {
        "user_x_artist": user * ROWS["artist_id"] + artist,
        "user_x_album": user * ROWS["album_id"] + album,
        "user_x_hour": user * 24 + hour,
        "item_x_hour": item * 24 + hour,
        "artist_x_hour": artist * 24 + hour,
        "user_x_is_organic": user * 2 + organic,
        "user_x_artist_x_hour": (user * ROWS["artist_id"] + artist) * 24 + hour,
    }
    for name, keys in crossed.items():
        expected = hashed_rows(keys.astype(np.int64), ROWS[name], names.index(name))
        np.testing.assert_array_equal(bags(workload, name).values, expected, err_msg=name)


def test_the_workload_is_of_the_cards_numbers_and_is_profiled_and_tested_by_days(data: Path) -> None:
    numbers, workload = load_card("yambda").numbers, built(data, profile_samples=7)
    assert (len(workload.tables), CONFIG().pool) == (numbers["tables"], numbers["pool"])
    assert sum(of.rows for of in workload.tables) == numbers["rows"]
    assert {of.dim for of in CONFIG().tables(ROWS)} == {numbers["width"]}
    assert (workload.train_samples, workload.samples) == (7, 9)
    # Of item 10: four lookups as candidate and eight in histories; the last day is not counted.
    assert workload.profiles[0].counts[0] == 4 + 1 + 1 + 2 + 2
    assert workload.recorded(Split.TEST, 0, 0).feature(1).values.tolist() == [11]
    assert workload.recorded(Split.TEST, 1, 0).feature(0).values.tolist() == [12, 10]
    later = built(data, first_day=1, profile_samples=2)
    assert later.train_samples == 3
    assert later.recorded(Split.TRAIN, 0, 0).feature(0).values.tolist() == HISTORIES[4]
    assert later.profiles[0].lookups == (len(HISTORIES[4]) + 1) + (len(HISTORIES[5]) + 1)
    assert built(data, first_day=None, test_day=2).train_samples == 3, "60 % of two days"
    assert built(data, test_day=1, profile_samples=4, test_batches=5).train_samples == 4
    assert workload.fingerprint != built(data, pool=1).fingerprint


def test_samples_are_the_same_however_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    kinds, days = ["listen", "like", "dislike"], 4
    users = {
        user: [
            (second, int(generator.integers(10, 14)), kinds[generator.integers(3)], int(generator.integers(100)), False)
            for second in np.sort(generator.integers(0, days * DAY, 40)).tolist()
        ]
        for user in range(5)
    }
    prepare(files(tmp_path, table(users)), tmp_path / "yambda")
    workload = built(tmp_path, profile_samples=20)
    whole = bags(workload, "item_id", 0, 200)
    monkeypatch.setattr("shardbench.datasets.yambda.BLOCK", 7)
    assert BLOCK > 7
    parted = bags(workload, "item_id", 0, 200)
    assert np.array_equal(parted.values, whole.values) and np.array_equal(parted.offsets, whole.offsets)
    for name in ROWS:
        one = bags(workload, name, 0, 200)
        assert all(bags(workload, name, at, at + 1).values.tolist() == one.samples(at, at + 1).values.tolist()
                   for at in range(0, 200, 13))  # fmt: skip


def cut(paths: list[Path]) -> None:
    paths[0].write_bytes(paths[0].read_bytes()[:-30])


def renamed(paths: list[Path]) -> None:
    pq.write_table(table().rename_columns([f"_{name}" for name in table().column_names]), paths[0])


def mapped_otherwise(paths: list[Path]) -> None:
    pq.write_table(pa.table({"item": [1], "artist": [2]}), paths[1])


def one_changed(column: str, values: pa.Array):
    at = table().column_names.index(column)
    return lambda paths: pq.write_table(table().set_column(at, column, values), paths[0])


def of_size(paths: list[Path]) -> None:
    paths[0].parent.rename(paths[0].parents[1] / "1b")
    paths[0] = paths[0].parents[1] / "1b" / EVENTS


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (cut, "multi_event.parquet cannot be read: "),
        (renamed, "multi_event.parquet has no column 'uid'"),
        (mapped_otherwise, "artist_item_mapping.parquet has no column 'item_id'"),
        (of_size, "multi_event.parquet is in a folder '1b', which is no size of the data set; expected: "),
        (lambda paths: paths.pop(), "are not the three files"),
        (lambda paths: pq.write_table(table()[:0], paths[0]), "multi_event.parquet has no event"),
        (
            lambda paths: pq.write_table(table().take(list(range(8, -1, -1))), paths[0]),
            "event 1 is of an earlier user or",
        ),
        (one_changed("uid", pa.array([2_000_000] * 9)), "column uid: 2000000 is not in 0..1000000"),
        (one_changed("item_id", pa.array([None] * 9, pa.int32())), "column item_id: values are int32, or missing"),
        (one_changed("event_type", pa.array(["heard"] * 9)), "column event_type: heard is none of listen, like, dis"),
        (
            one_changed("event_type", pa.array([[0]] * 9)),
            "column event_type: values are list<element: int64>: all must",
        ),
        (
            one_changed("timestamp", pa.array([2**64 - 1] * 9, pa.uint64())),
            "column timestamp: -1 is not in 0..4294967295",
        ),
        (one_changed("played_ratio_pct", pa.array(["9"] * 9)), "column played_ratio_pct: values are string"),
    ],
)
def test_wrong_files_get_one_line(tmp_path: Path, command, spoil, says: str) -> None:
    paths = files(tmp_path)
    spoil(paths)
    line = command("prepare", "yambda", *paths, tmp_path / "out", code=2)
    assert says in line and line.count("\n") <= 1, line
    assert "expected: multi_event.parquet of flat/50m" in line
    assert not (tmp_path / "out").exists()


def test_the_command_and_what_it_refuses(tmp_path: Path, command) -> None:
    paths = files(tmp_path, size="5b")
    told = json.loads(command("prepare", "yambda", *reversed(paths), tmp_path / "data" / "yambda", "--json"))
    assert (told["prepared"]["samples"], told["prepared"]["size"]) == (9, "5b")
    for option, says in (("--train-share", "state test_day in the suite"), ("--rows", "leave mode and rows out")):
        assert says in command("prepare", "yambda", *paths, tmp_path / "out", option, "1", code=2)
    for days in ({"test_day": 3}, {"first_day": 2}, {"first_day": 1, "test_day": 1}):
        with pytest.raises(yambda_prepare.BadInput, match="there are days 0 to 2, of which none from"):
            built(tmp_path / "data", **days)
    with pytest.raises(yambda_prepare.BadInput, match="shardbench prepare yambda"):
        built(tmp_path)
