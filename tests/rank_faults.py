"""Ranks that go wrong; importable by child processes."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from shardbench.engine.processes.job import RankError
from shardbench.engine.processes.trial_folder import REFUSED, RankProgress
from shardbench.records.trial import Failure, Outcome

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:34567"


def report(folder: Path, rank: int, cause: str, outcome: Outcome = Outcome.ERROR) -> None:
    """What a rank says of its end."""
    failure = Failure(outcome=outcome, cause=cause, phase="time", rank=rank)
    (folder / f"rank{rank}.error.json").write_text(RankError(failure=failure, ran=None).model_dump_json())


def _begin(folder: Path, rank: int, stamps: int) -> None:
    (folder / f"rank{rank}.phase").write_text("time")
    progress = RankProgress(folder, rank)
    for _ in range(stamps):
        progress.step()


def _number() -> int:
    return int(os.environ["RANK"])


def _peer_is_lost(folder: Path, rank: int) -> None:
    # Nobody loses who has not begun, however slowly a process begins on a busy machine.
    while not (folder / "rank1.phase").exists():
        time.sleep(0.01)
    report(folder, rank, LOST)
    sys.exit(1)


def leaves_quietly(folder):
    """Rank 1 ends as if all were well, its peer waits."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        return
    time.sleep(60)


def leaves_a_broken_result(folder):
    """Rank 1 ends as if all were well and leaves half a result; its peer says that it lost it."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        (folder / "rank1.json").write_text('{"rank":1')
        return
    time.sleep(0.1)
    _peer_is_lost(folder, rank)


def finds_what_was_left(folder):
    """Rank 1 could not join; its peers began after it had ended and found what it left."""
    rank = _number()
    if rank == 1:
        report(folder, rank, LOST)
        sys.exit(1)
    time.sleep(0.1)
    sys.exit(REFUSED)


def loses_its_folder(folder):
    """Somebody removes the folder, and rank 1 says so in one that it makes anew."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        # In one move, as its peers may still write into it.
        gone = folder.rename(folder.with_name("gone"))
        shutil.rmtree(gone, ignore_errors=True)
        folder.mkdir()
        report(folder, rank, "FileNotFoundError: rank1.phase")
        sys.exit(1)
    time.sleep(60)


def exits_with_3(folder):
    """Rank 1 ends without a word, a moment after its peer says that it lost it."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        time.sleep(0.5)
        os._exit(3)
    _peer_is_lost(folder, rank)


def says_why_late(folder):
    """Rank 1 has a cause, which it writes after its peer lost it."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        time.sleep(1)
        report(folder, rank, "ValueError: the cause")
        sys.exit(1)
    _peer_is_lost(folder, rank)


def is_killed(folder):
    """Rank 1 is killed by somebody, for no want of memory."""
    rank = _number()
    _begin(folder, rank, 3)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    _peer_is_lost(folder, rank)


def stops(folder):
    """Rank 1 is stopped where its peer is, too."""
    rank = _number()
    _begin(folder, rank, 5)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def stays_behind(folder):
    """Rank 1 hangs before the others."""
    rank = _number()
    _begin(folder, rank, 4 if rank == 1 else 9)
    time.sleep(60)
