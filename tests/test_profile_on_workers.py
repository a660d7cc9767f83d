"""A log that the workers of a Dask cluster read and count: the same files bit by bit, and failures in one line."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from distributed import LocalCluster

from shardbench.datasets.preparation import log_reader
from shardbench.datasets.preparation.log_encode import Cells
from shardbench.datasets.preparation.log_profile import Profiled, profile_log
from shardbench.datasets.preparation.log_reader import find_logs
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.datasets.preparation.side_by_side import LostWorkers, dask_workers
from shardbench.workloads.table_list import ListedTable

FILES = 5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Files of several row groups, with missing values, and times in no order."""
    generator, folder = np.random.default_rng(3), tmp_path / "log"
    folder.mkdir()
    for number in range(FILES):
        users = [None if value > 60 else f"u{value}" for value in generator.zipf(1.3, 900)]
        items = [generator.zipf(1.6, 2).clip(max=300).tolist() for _ in users]
        table = pa.table({"user": users, "item": items, "at": generator.integers(0, 10_000, len(users))})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=400)
    return folder


@contextmanager
def cluster(workers: int, processes: bool = False) -> Iterator[str]:
    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=processes, dashboard_address=None, memory_limit=0
    ) as made:
        yield made.scheduler_address


def profiled(log: Path, target: Path, workers: Executor | None, mode: Any = "hash") -> Profiled:
    return profile_log(
        find_logs([str(log)]), target, [ListedTable(name="user"), ListedTable(name="item")],
        cells=Cells(mode=mode, missing="row"), cut=SampleSplit(time="at", rate=0.7), workers=workers,
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_and_seven_workers_write_the_same(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "PART_BYTES", 1)
    for mode in ("hash", "vocabulary"):
        profiled(log, tmp_path / mode, None, mode)
    for number in (1, 7):
        with cluster(number) as scheduler, dask_workers(scheduler) as workers:
            for mode in ("hash", "vocabulary"):
                profiled(log, tmp_path / f"{mode}{number}", workers, mode)
                assert contents(tmp_path / f"{mode}{number}") == contents(tmp_path / mode)


def test_the_command_on_two_processes(log: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("profile", "log", "--columns", "user,item", "--out")
    here = command(*line, "here")
    with cluster(2, processes=True) as scheduler:
        there = command(*line, "there", "--engine", "dask", "--scheduler", scheduler)
        (log / "3.parquet").write_bytes(b"no parquet")
        said = command(*line, "no", "--engine", "dask", "--scheduler", scheduler, code=2)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    # All but what names the folder, and how far the reading was.
    assert there.replace("there", "here").split("tables\n")[1:] == here.split("tables\n")[1:]
    assert "3.parquet cannot be read" in said
    assert not (tmp_path / "no").exists()


def test_what_workers_cannot_do_is_one_line(log: Path, tmp_path: Path, command: Any) -> None:
    line = ("profile", log, "--out", tmp_path / "no")
    assert "go together" in command(*line, "--engine", "dask", code=2)
    assert "go together" in command(*line, "--scheduler", "tcp://10.0.0.1:8786", code=2)
    assert "no scheduler of Dask at odd://x" in command(*line, "--engine", "dask", "--scheduler", "odd://x", code=2)


class Dying(ThreadPoolExecutor):
    """Workers that do so many jobs, and then no more."""

    def __init__(self, jobs: int) -> None:
        super().__init__(1)
        self.left = jobs

    def submit(self, *given: Any, **named: Any) -> Future[Any]:
        self.left -= 1
        future = super().submit(*given, **named) if self.left >= 0 else Future()
        if self.left < 0:
            future.set_exception(RuntimeError("killed\nagain and again"))
        else:
            future.exception()
        return future


def test_what_was_read_stays_where_workers_die(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The numbers of rows of all files, and the words of three.
    with (
        Dying(FILES + 3) as dying,
        pytest.raises(LostWorkers, match="gave no answer: RuntimeError: killed again and again"),
    ):
        profiled(log, tmp_path / "out", dying)
    assert len(list((tmp_path / "out.unfinished").glob("*/part.json"))) == 3
    with ThreadPoolExecutor(2) as alive:
        profiled(log, tmp_path / "out", alive)
    profiled(log, tmp_path / "here", None)
    assert contents(tmp_path / "out") == contents(tmp_path / "here")
    assert not (tmp_path / "out.unfinished").exists()
