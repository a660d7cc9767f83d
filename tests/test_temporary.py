"""Temporary folders go with the process that made them or the next clean-up; freed memory stays with the process."""

import ctypes
import os
import resource
import tempfile
from pathlib import Path

import pytest
from test_launch import started, within

from shardbench.base.temporary import clean_left_folders, temporary_folder
from shardbench.engine.heap import give_freed_memory_back, keep_freed_memory
from shardbench.engine.processes.launch import call_in_child


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_gone_after_its_block_however_that_ends(tmp_path):
    with temporary_folder() as folder:
        (folder / "deep" / "er").mkdir(parents=True)
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    with pytest.raises(KeyboardInterrupt), temporary_folder():
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleaned_and_nothing_that_is_in_use(tmp_path):
    program = started(
        "import time, os; from shardbench.base.temporary import temporary_folder\n"
        "with temporary_folder() as folder: (folder / 'ready').touch(); time.sleep(1e6)",
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert within(60, lambda: list(tmp_path.glob("*/ready")))
        (theirs,) = tmp_path.iterdir()
        with temporary_folder() as ours:
            assert clean_left_folders() == []
            program.kill()
            program.communicate(timeout=20)
            (tmp_path / "something-else").mkdir()
            (tmp_path / f"{theirs.name}-link").symlink_to(ours)
            assert clean_left_folders() == [theirs]
            assert ours.is_dir()
    finally:
        program.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["something-else", f"{theirs.name}-link"])


def test_somebody_elses_folder_stays(tmp_path, monkeypatch):
    left = Path(tempfile.mkdtemp(prefix="shardbench.run-"))
    monkeypatch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
    assert clean_left_folders() == []
    assert left.is_dir()


SIZE = 6 << 20
"""Bytes of a block, which glibc gives back by default when it is freed."""
ROUNDS = 50


def faults(keeps: bool, gives_back: bool = False) -> int:
    """Page faults of as many rounds of taking two blocks, writing them and giving them back."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    if keeps:
        keep_freed_memory()
    if gives_back:
        give_freed_memory_back()

    def a_round() -> None:
        blocks = [libc.malloc(SIZE) for _ in range(2)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE)
        for block in blocks:
            libc.free(block)

    a_round()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        a_round()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_is_freed_is_not_asked_of_the_kernel_again(tmp_path) -> None:
    given_back, kept = (
        call_in_child(faults, (keeps,), timeout_s=60, phase="heap", log=tmp_path / "log") for keeps in (False, True)
    )
    assert given_back > 1000
    assert kept < 100


def test_what_is_freed_goes_back_to_the_kernel_again_where_tables_of_another_plan_need_it(tmp_path) -> None:
    assert call_in_child(faults, (True, True), timeout_s=60, phase="heap", log=tmp_path / "log") > 1000
