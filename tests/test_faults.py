"""Some of the faults of ``nox -s tables -- faults``, and what its table must say."""

import csv
from pathlib import Path

import pytest
from faults.__main__ import COLUMNS, all_faults, rows
from faults.case import Fault, Seen, expected, run

from shardbench.base.wall import Kind, kind
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.records.trial import Failure, Outcome

TABLE = Path(__file__).parent.parent / "results" / "tables" / "faults" / "summary.csv"
CHOSEN = (
    "rank build no memory 0",
    "rank warmup SIGKILL 0",
    "rank time SIGSEGV 1",
    "rank start flipped batches",
    "rank result flipped 0",
    "planner plan SIGKILL 0",
    "planner plan daemon and exit 0",
    "cell run SIGKILL from outside 0",
    "store next run cut 0",
    "store next run edited 0",
    "rank time leaves half a result and ends 0",
    "rank build folder removed 0",
    "planner getstate raises KeyboardInterrupt",
    "store next run flipped bit 0",
    "disk append no room for a line 0",
)
"""Without those that wait for a limit, or start the program anew."""


def named(fault: Fault) -> str:
    return f"{fault.kind} {fault.phase} {fault.name}"


@pytest.fixture(scope="module", autouse=True)
def shared(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTS_FOLDER", str(tmp_path_factory.mktemp("shared")))
        FORK_SERVER.context()
        yield


@pytest.mark.usefixtures("few_draws")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_ends_as_it_should_and_leaves_nothing(name):
    (fault,) = [fault for fault in all_faults() if named(fault) == name]
    if fault.name.startswith("daemon") and kind() is Kind.UNCONFINED:
        pytest.skip("bubblewrap builds no wall here: a daemon outlives its planner")
    seen = run(fault, 16)
    assert seen.outcome_right and seen.rank_right in (True, None) and seen.cause_right in (True, None), seen.said
    assert (seen.hang, seen.lost, seen.orphans) == (False, 0, 0), seen


def test_another_outcome_cause_phase_or_rank_is_not_right():
    failure = Failure(outcome=Outcome.ERROR, cause="rank 1 was killed by signal 9", phase="time", rank=1)
    right = expected(failure, Outcome.ERROR, "signal 9", rank=1, phase="time")
    assert (right.outcome_right, right.rank_right, right.cause_right) == (True, True, True)
    assert not expected(failure, Outcome.OOM, "signal 9").outcome_right
    assert expected(failure, Outcome.ERROR, "signal 11").cause_right is False
    assert not expected(failure, Outcome.ERROR, "signal 9", phase="build").outcome_right
    assert expected(failure, Outcome.ERROR, "signal 9", rank=0).rank_right is False
    assert not expected(None, Outcome.ERROR, "").outcome_right
    assert expected(None, Outcome.ERROR, "").cause_right is False
    fine = expected(None, Outcome.OK, "")
    assert (fine.outcome_right, fine.cause_right) == (True, None)


def test_what_goes_on_or_is_left_is_counted():
    fault = Fault("rank", "time", "x", lambda folder, rng: Seen("", outcome_right=False))
    raises = run(Fault("rank", "time", "raises", lambda folder, rng: 1 // 0), 0)
    assert (raises.outcome_right, raises.said) == (
        False,
        "a traceback: ZeroDivisionError: integer division or modulo by zero",
    )
    seen = [
        (fault, Seen("", True, True, True)),
        (fault, Seen("", True, False, False, lost=2)),
        (fault, Seen("", False, hang=True)),
    ]
    (one, every) = rows(seen)
    assert one == {
        "kind": "rank", "phase": "time", "cases": 3, "outcome_right": 2, "cause_right": "1 of 2",
        "rank_right": "1 of 2", "hangs": 1,
        "lost_records": 2, "orphans": 0,
    }  # fmt: skip
    assert {**every, "kind": "rank", "phase": "time"} == one


def test_the_committed_table_is_whole():
    with TABLE.open(encoding="ascii", newline="") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    *parts, every = table
    counts: dict[tuple[str, str], int] = {}
    for fault in all_faults():
        counts[fault.kind, fault.phase] = counts.get((fault.kind, fault.phase), 0) + 1
    assert {(row["kind"], row["phase"]): int(row["cases"]) for row in parts} == counts
    assert len({named(fault) for fault in all_faults()}) == int(every["cases"]), "two of one name"
    for name in ("cases", "outcome_right", "hangs", "lost_records", "orphans"):
        assert int(every[name]) == sum(int(row[name]) for row in parts)
