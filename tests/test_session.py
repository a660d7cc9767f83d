"""A session runs what is open, in this process or in others, and settles work by code, place and wish."""

import os
from pathlib import Path

import pytest

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.provenance import Provenance
from shardbench.records.store import cell_store
from shardbench.runs.session import Work, run_session, side_by_side


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

    def code(self, piece, record):
        return self.now

    def timed(self, piece):
        return self.measures

    def again(self, record):
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
    return work.settled(work.store.latest(), Environment.here().hash)


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


def test_code_place_and_wish_unsettle(work, tmp_path):
    run_session(work, tmp_path, Told())
    assert settled(work) == [1, 2, 3]
    work.now = "edited since"
    assert settled(work) == []
    work.now = None
    assert settled(work) == [], "no code is nobody's code"
    work.now = "c" * 16
    work.wanted = True
    assert settled(work) == []
    work.wanted = False
    assert work.settled(work.store.latest(), "another environment") == [1, 2, 3], "counted: the same everywhere"
    work.measures = True
    assert work.settled(work.store.latest(), "another environment") == []
    assert settled(work) == [1, 2, 3]


def test_a_record_that_states_no_code_is_not_settled(work, tmp_path):
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


def _where(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


@pytest.mark.parametrize(("workers", "here"), [(1, True), (2, False)])
def test_calls_side_by_side(workers, here):
    given = list(side_by_side(_where, [(1,), (2,), (3,)], workers))
    assert sorted(square for square, _ in given) == [1, 4, 9]
    assert all((process == os.getpid()) is here for _, process in given)
