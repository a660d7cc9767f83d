"""Temporary folders go with the process that made them, a killed one's with the next clean-up."""

import os
import tempfile
from pathlib import Path

import pytest
from test_launch import started, within

from shardbench.base.temporary import clean_left_folders, temporary_folder


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
