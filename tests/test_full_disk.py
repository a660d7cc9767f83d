"""A full disk: what is on record stays, and all is said in one line."""

import errno
import os
from pathlib import Path

import misbehaving
import pytest
from test_run_trial import context, outcome  # noqa: F401 - a fixture
from test_session import Told, work  # noqa: F401 - a fixture

from shardbench.base import jsonlines
from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput
from shardbench.cli import main as cli
from shardbench.records.trial import Outcome
from shardbench.trials import run_trial
from shardbench.trials.session import run_session


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_done_stays_and_the_rest_runs_once_there_is_room(work, tmp_path, monkeypatch):  # noqa: F811
    """The disk is filled by others while the second of three cells runs."""

    class FilledMeanwhile(Told):
        def started(self, piece):
            if piece == "2":
                monkeypatch.setattr(jsonlines.os, "fsync", full)

    with pytest.raises(BadInput, match="No space left on device: the cell just done is not recorded, all") as caught:
        run_session(work, tmp_path, FilledMeanwhile())
    assert "\n" not in str(caught.value)
    assert (work.ran, len(work.store.read())) == ([1, 2], 1)
    monkeypatch.undo()
    assert len(run_session(work, tmp_path, Told())) == 3
    assert [path.name for path in work.store.path.parent.iterdir()] == ["squares.jsonl"]


def test_a_file_that_does_not_fit_is_said_after_the_record(work, tmp_path):  # noqa: F811
    def keep_extras(record):
        raise OSError(errno.ENOSPC, "No space left on device", "logs/1.log")

    work.keep_extras = keep_extras
    with pytest.raises(BadInput, match=r"logs/1.log: No space left.*the cell just done is recorded, this file of it"):
        run_session(work, tmp_path, Told())
    assert len(work.store.read()) == 1


def test_a_plan_that_does_not_fit_is_kept_after_its_record(context, tmp_path, monkeypatch):  # noqa: F811
    context.results = tmp_path / "kept"
    keep, tries = run_trial.keep_plan, []

    def keep_the_second_time(results, plan):
        tries.append(plan)
        if len(tries) == 1:
            full()
        keep(results, plan)

    monkeypatch.setattr(run_trial, "keep_plan", keep_the_second_time)
    assert outcome(context, misbehaving.Honest).outcome is Outcome.OK
    assert not (context.results / "plans").exists()
    (keep_later,) = context.later
    keep_later()
    assert len(list((context.results / "plans").iterdir())) == 1


def test_a_trial_that_the_program_has_no_room_for_has_no_outcome(context, monkeypatch):  # noqa: F811
    monkeypatch.setattr("shardbench.trials.evaluate.validate", full)
    with pytest.raises(OSError, match="No space left"):
        outcome(context, misbehaving.Honest)


def test_a_file_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, whole_file(tmp_path / "table.csv"):
        full()
    assert caught.value.filename == str(tmp_path / "table.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["list"], ["--version"], ["run", "--help"], ["plan", "quick", "nosuch"]])
def test_output_that_is_not_taken_is_one_line_and_no_success(capsys, monkeypatch, arguments):
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with Path("/dev/full").open("w", encoding="utf-8") as out, monkeypatch.context() as redirected:
        redirected.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert arguments[0] == "plan" or "No space left on device: make room where the output" in line
