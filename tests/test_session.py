"""A session runs what is open, and settles work by version, place and wish; a full disk leaves what is on record."""

import errno
import os
import signal
import time
from pathlib import Path

import misbehaving
import pytest
from test_run_trial import context, outcome  # noqa: F401 - a fixture

from shardbench.base import jsonlines
from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.cli import main as cli
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.store import cell_store
from shardbench.records.trial import Outcome
from shardbench.trials import run_trial
from shardbench.trials.session import Work, run_session, side_by_side


class Squares(Work):
    """Numbers to square; what it is asked is the tests' to set."""

    title = "study squares"
    unit = "cell"

    def __init__(self, results: Path, pieces: list[int]) -> None:
        self.store = cell_store(results, "mine", "squares")
        self.pieces = pieces
        self.now, self.measures, self.wanted = "c" * 16, False, False
        self.ran: list[int] = []

    def key(self, piece):
        return cell_key("squares", 1, {"number": piece})

    def version(self, piece):
        return self.now

    def is_timed(self, piece):
        return self.measures

    def wants_rerun(self, record):
        return self.wanted

    def run(self, pieces, environment, started):
        for piece in pieces:
            started(str(piece))
            self.ran.append(piece)
            yield CellRecord(
                key=self.key(piece), study="squares", version=1, cell={"number": piece}, environment=environment,
                wall_s=0, cpu_s=0, rows=({"backend": "counted", "square": piece * piece},),
                provenance=Provenance.begin(self.now).ended(),
            )  # fmt: skip


class Told:
    """Listener that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def planned(self, *facts):
        self.calls.append(facts)

    def started(self, piece):
        self.calls.append(("started", piece))

    def noted(self, line):
        self.calls.append(("noted", line))

    def finished(self, number, record):
        self.calls.append(("finished", number, record.rows[0]["square"]))


@pytest.fixture
def work(tmp_path):
    return Squares(tmp_path, [1, 2, 3])


def settled(work) -> list[int]:
    return work.settled_pieces(work.store.latest(), Environment.here().hash)


def test_what_is_open_is_run_recorded_and_told(work, tmp_path):
    told = Told()
    records = run_session(work, tmp_path, told)
    assert [record.rows[0]["square"] for record in records] == [1, 4, 9]
    assert told.calls[:3] == [("study squares", "cell", 3, 0), ("started", "1"), ("finished", 1, 1)]
    assert work.store.read() == records
    assert (tmp_path / "environments" / f"{records[0].environment}.json").is_file()
    work.pieces = [3, 4]
    again = Told()
    assert [record.rows[0]["square"] for record in run_session(work, tmp_path, again)] == [9, 16]
    assert again.calls == [("study squares", "cell", 2, 1), ("started", "4"), ("finished", 1, 16)]


def test_an_interrupted_session_keeps_what_is_done(work, tmp_path):
    class Interrupts(Told):
        def finished(self, number, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_session(work, tmp_path, Interrupts())
    assert settled(work) == [1]


def test_a_line_that_was_cut_off_is_set_aside_and_its_piece_run_again(work, tmp_path):
    run_session(work, tmp_path, Told())
    work.store.path.write_bytes(work.store.path.read_bytes()[:-10])
    told = Told()
    records = run_session(work, tmp_path, told)
    assert [record.rows[0]["square"] for record in records] == [1, 4, 9]
    (_, line), planned, *_ = told.calls
    assert line.startswith("a line that was cut off is set aside: ") and line.endswith("; its cell is repeated")
    assert planned == ("study squares", "cell", 3, 2)


def test_two_runs_do_not_write_to_one_folder(work, tmp_path):
    class Nested(Told):
        def started(self, piece):
            with pytest.raises(BadInput, match=f"another run writes to {tmp_path}: wait for it, or give another"):
                run_session(Squares(tmp_path, [7]), tmp_path, Told())
            run_session(Squares(tmp_path / "other", [7]), tmp_path / "other", Told())

    assert len(run_session(work, tmp_path, Nested())) == 3
    assert len(run_session(Squares(tmp_path, [8]), tmp_path, Told())) == 1, "free again afterwards"


def test_version_place_and_wish_unsettle(work, tmp_path):
    run_session(work, tmp_path, Told())
    assert settled(work) == [1, 2, 3]
    work.now = "edited since"
    assert settled(work) == []
    work.now = None
    assert settled(work) == [], "no version is nobody's"
    work.now = "c" * 16
    work.wanted = True
    assert settled(work) == []
    work.wanted = False
    assert work.settled_pieces(work.store.latest(), "another environment") == [1, 2, 3], "counted: the same everywhere"
    work.measures = True
    assert work.settled_pieces(work.store.latest(), "another environment") == []
    assert settled(work) == [1, 2, 3]


def test_a_record_that_states_no_version_is_not_settled(work, tmp_path):
    (first, *_) = run_session(work, tmp_path, Told())
    for provenance in (None, Provenance.begin(None)):
        work.store.append(first.model_copy(update={"provenance": provenance}))
        assert settled(work) == [2, 3]
        work.now = None
        assert settled(work) == []
        work.now = "c" * 16


def test_a_piece_listed_twice_is_refused(work, tmp_path):
    work.pieces = [1, 1]
    with pytest.raises(BadInput, match="study squares lists a cell twice"):
        run_session(work, tmp_path, Told())
    assert not work.store.path.exists()


def _loaded(number: int) -> int:
    if number == 6:
        raise ModuleNotFoundError("no such study")
    return 10 * number


def _square(loaded: int, number: int) -> tuple[int, int]:
    assert loaded == 10 * number
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 4:
        print("still here")
        time.sleep(1e6)
    if number == 5:
        raise SystemExit(0)
    return number * number, _process()


def _process() -> int:
    """When this process began, by which it is known from outside of its namespace."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def _burn(seconds: float) -> str:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    time.sleep(0.3)
    return "done"


def _burn_after(prepared: str, seconds: float) -> str:
    assert prepared == "done"
    return _burn(seconds)


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_side_by_side_each_end_in_an_answer_or_a_failure(tmp_path, workers):
    numbers = [(n,) for n in (1, 2, 3, 4, 5, 7, 6)]
    made = side_by_side(_loaded, _square, numbers, workers, timeout_s=3.0, logs=tmp_path)
    answers = {done.number: done for done in made}
    assert [answers[i].value[0] for i in (0, 1, 5)] == [1, 4, 49]
    assert answers[6].value.cause.startswith("ModuleNotFoundError: no such study")
    killed, hung, left = (answers[i].value for i in (2, 3, 4))
    assert (killed.outcome, killed.phase) == (Outcome.ERROR, "run")
    assert killed.cause == "the process was killed by signal 9 (not by the kernel for want of memory) in phase run"
    assert (hung.outcome, hung.cause) == (Outcome.TIMEOUT, "no result from run after 3 s")
    assert answers[3].log.read_text() == "still here\n", "and nothing of the calls before"
    assert (left.outcome, left.cause.split()[0]) == (Outcome.ERROR, "SystemExit:")
    pids = {answers[i].value[1] for i in (0, 1, 5)}
    assert _process() not in pids
    if workers == 1:
        assert answers[0].value[1] == answers[1].value[1] != answers[5].value[1], "one process as long as it lives"
        assert answers[3].wall_s >= 3.0


def test_what_a_call_took_is_told_by_the_kernel(tmp_path):
    (done,) = side_by_side(_burn, _burn_after, [(0.5,)], 1, timeout_s=60.0, logs=tmp_path)
    assert done.value == "done"
    assert 0.5 <= done.cpu_s < min(done.wall_s, 0.9), "without what was prepared"
    assert done.wall_s >= 0.8


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_done_stays_and_the_rest_runs_once_there_is_room(work, tmp_path, monkeypatch):
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


def test_a_file_that_does_not_fit_is_said_after_the_record(work, tmp_path):
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
