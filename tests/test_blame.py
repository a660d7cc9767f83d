"""Which rank is at fault: of ranks that end badly, silently or not at all."""

import errno
import os

import pytest
import rank_faults
from rank_faults import LOST, report

from shardbench.engine.processes import blame, failures, launch
from shardbench.engine.processes.blame import died, fault, lost_peer, stalled
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.trial_folder import RankProgress
from shardbench.records.trial import Failure, Outcome

NOBODY = None
"""Who counts kills for want of memory."""


def run(folder, kind, timeout_s=30.0):
    with pytest.raises(TrialFailed) as caught:
        launch.run_ranks(kind, folder, 3, timeout_s)
    return caught.value.failure


@pytest.mark.parametrize(
    ("kind", "ended", "cause"),
    [
        (rank_faults.leaves_quietly, ("error", 1, "time"), "rank 1 exited with 0 in phase time and left no result"),
        (rank_faults.leaves_a_broken_result, ("error", 1, "time"), "with 0 in phase time and left a broken result"),
        (rank_faults.exits_with_3, ("error", 1, "time"), "rank 1 exited with 3 in phase time"),
        (rank_faults.says_why_late, ("error", 1, "time"), "ValueError: the cause"),
        (rank_faults.is_killed, ("error", 1, "time"), "was killed by signal 9 (not by the kernel for want of memory)"),
        (rank_faults.finds_what_was_left, ("error", 1, "time"), LOST),
        (rank_faults.loses_its_folder, ("error", None, "harness"), "job folder job was removed while its ranks ran"),
        (rank_faults.stops, ("timeout", 1, "time"), "; rank 1 is stopped"),
        (rank_faults.stays_behind, ("timeout", 1, "time"), "rank 1 time (stamp 4)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_rank_that_began_it_is_named(tmp_path, kind, ended, cause):
    (tmp_path / "job").mkdir()
    found = run(tmp_path / "job", kind, 4.0 if ended[0] == "timeout" else 30.0)
    assert (found.outcome.value, found.rank, found.phase) == ended
    assert cause in found.cause


class EndsBetweenLooks:
    """A process that runs at the first look at its exit code, and has ended at the second."""

    def __init__(self, *codes):
        self.codes = list(codes)

    @property
    def exitcode(self):
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]


def test_who_ends_silently_between_two_looks_is_named_and_its_peer_is_not(tmp_path):
    report(tmp_path, 0, LOST)
    found = launch._fault(tmp_path, [EndsBetweenLooks(1), EndsBetweenLooks(None, 3)], NOBODY)
    assert (found.rank, found.cause) == (1, "rank 1 exited with 3 in phase start")


def test_a_limit_of_memory_that_is_too_low_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "memory_limit_bytes", lambda: 300 << 20)
    said = "processes of this shell may take 300 MiB each, ranks and planners need about 1024: raise the limit"
    for failure in (died(-6, "build", 0, NOBODY), failures.not_started(EOFError(), "start").failure):
        assert failure.outcome is Outcome.OOM
        assert said in failure.cause
    assert died(3, "build", 0, NOBODY).outcome is Outcome.ERROR
    # Ranks would hang: none is started.
    found = run(tmp_path, rank_faults.stops)
    assert (found.outcome, found.phase) == (Outcome.OOM, "start")
    assert said in found.cause
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert failures.not_started(EOFError(), "start").failure.cause == "no process could be started: EOFError"


def test_ranks_that_stand_at_one_point_are_all_named_and_none_blamed(tmp_path):
    for rank in (0, 1):
        RankProgress(tmp_path, rank).step()
    found = stalled(tmp_path, {0: None, 1: None}, 5.0)
    assert found.rank is None
    assert found.cause == "no result after 5 s; ranks still in: rank 0 start (stamp 1), rank 1 start (stamp 1)"
    assert stalled(tmp_path, {1: os.getpid()}, 5.0).rank == 1, "the only one left"


def test_a_lost_connection_is_believed_last_and_only_where_nobody_says_more(tmp_path):
    report(tmp_path, 0, LOST)
    found, sure = fault(tmp_path, {0: 1, 1: None}, NOBODY)
    assert (found.rank, sure) == (0, False)
    report(tmp_path, 1, "RuntimeError: out of range")
    found, sure = fault(tmp_path, {0: 1, 1: 1}, NOBODY)
    assert (found.rank, found.cause, sure) == (1, "RuntimeError: out of range", True)


def test_the_earliest_telling_report_wins(tmp_path):
    for second, rank in enumerate((2, 0, 1)):
        report(tmp_path, rank, f"ValueError: {rank}")
        os.utime(tmp_path / f"rank{rank}.error.json", (second, second))
    assert fault(tmp_path, {0: 1, 1: 1, 2: 1}, NOBODY)[0].rank == 2


def test_a_report_that_is_cut_off_still_names_its_rank(tmp_path):
    report(tmp_path, 1, "ValueError: long")
    path = tmp_path / "rank1.error.json"
    path.write_bytes(path.read_bytes()[:20])
    found, _ = fault(tmp_path, {0: None, 1: 1}, NOBODY)
    assert found.rank == 1
    assert found.cause.endswith("what it says of it in rank1.error.json cannot be read")


@pytest.mark.parametrize(("cause", "lost"), [
    (LOST, True), ("RuntimeError: Broken pipe", True), ("DistNetworkError: Connection reset by peer", True),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms", True),
    ("DistBackendError: NCCL error: remote process exited or there was a network error", True),
    ("ValueError: 3", False), ("RuntimeError: index out of range", False), ("AssertionError", False),
    ("BadInput: set GLOO_SOCKET_IFNAME", False),
])  # fmt: skip
def test_what_peers_say_of_a_lost_rank(cause, lost):
    assert lost_peer(Failure(outcome=Outcome.ERROR, cause=cause, phase="time", rank=0)) is lost


@pytest.mark.parametrize(("after", "outcome"), [(12, Outcome.OOM), (11, Outcome.ERROR), (None, Outcome.OOM)])
def test_out_of_memory_is_what_the_kernel_counts(monkeypatch, after, outcome):
    monkeypatch.setattr(blame, "oom_kills", lambda: after)
    assert died(-9, "build", 0, 11).outcome is outcome
    assert died(-15, "build", 0, 11).outcome is Outcome.ERROR
    assert died(7, "build", 0, 11).cause == "rank 0 exited with 7 in phase build"


@pytest.mark.parametrize(
    ("code", "words", "outcome"),
    [
        (127, "cannot allocate memory for thread-local data: ABORT", Outcome.OOM),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", Outcome.OOM),
        (-6, "terminate called without an active exception", Outcome.OOM),
        (-6, "free(): double free detected", Outcome.ERROR),
        (127, "no such command", Outcome.ERROR),
        (1, "cannot allocate memory", Outcome.ERROR),
    ],
)
def test_a_runtime_that_got_no_memory_says_so_in_its_last_words(tmp_path, code, words, outcome):
    (tmp_path / "rank1.log").write_text(words)
    found, sure = fault(tmp_path, {0: None, 1: code}, NOBODY)
    assert (found.outcome, found.rank, sure) == (outcome, 1, True)
    assert ("for want of memory" in found.cause) is (outcome is Outcome.OOM)


def test_a_thread_that_is_refused_at_the_limit_of_memory_is_out_of_memory(monkeypatch):
    error = RuntimeError("Resource temporarily unavailable")
    for at_limit in (True, False):
        monkeypatch.setattr(failures, "at_memory_limit", lambda at_limit=at_limit: at_limit)
        assert failures.out_of_memory(error) is at_limit
    assert not failures.out_of_memory(ValueError("Resource temporarily unavailable"))
    assert failures.out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not failures.out_of_memory(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
