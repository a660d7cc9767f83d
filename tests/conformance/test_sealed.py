"""A trial's planner: what is not in its process, and where that process cannot go."""

import ctypes
import errno
import os
import sys
from pathlib import Path

import pytest
from impostors import Honest
from impostors_reaching import LooksThroughFrames

import shardbench
from shardbench.base.wall import Kind, kind
from shardbench.conformance.problems import cases
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure
from shardbench.trials.evaluate import Answer, RulesOnly, evaluate

PROBLEM = cases()[0].problem
SHOWN = Path(shardbench.__file__).parent / "report"
"""A folder of the package that no planner needs."""
ROOT = {
    "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix", "etc", "sys", "proc", "dev", "tmp",
    *(place.parts[1] for place in map(Path, (sys.prefix, sys.base_prefix, shardbench.__file__, __file__))),
}  # fmt: skip


def asked(strategy: Strategy, *closed: Path) -> Answer[None] | Failure:
    question = RulesOnly(PROBLEM)
    question.closed = closed
    return evaluate(question, strategy, Budget(plan_s=10.0), 0)


def test_frames_and_objects_tell_nothing() -> None:
    answer = asked(LooksThroughFrames())
    assert not isinstance(answer, Failure), answer
    assert answer.plan.notes == {"found": 0}


class Reads(Honest):
    """Says in its plan what became of reading a file and of writing another."""

    def __init__(self, read: Path, written: Path) -> None:
        self.read, self.written = read, written

    def plan(self, problem: Problem, budget: Budget, seed: int):
        made = super().plan(problem, budget, seed)
        made.notes["read"] = _tried(self.read.read_text)
        made.notes["written"] = _tried(lambda: self.written.write_text("mine"))
        return made


def _tried(call) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
@pytest.mark.parametrize("hidden", [True, False])
def test_folders_of_others_are_out_of_reach_and_nothing_is_written(tmp_path: Path, hidden: bool) -> None:
    secret = SHOWN / "__init__.py" if hidden else tmp_path / "lookups"
    if not hidden:
        secret.write_text("test lookups")
    answer = asked(Reads(secret, tmp_path / "records"), *([secret.parent] if hidden else []))
    assert not isinstance(answer, Failure), answer
    assert answer.plan.notes == {"read": "ENOENT", "written": "ENOENT"}
    assert not (tmp_path / "records").exists()


class Uncovers(Honest):
    """Says in its plan whether it could make namespaces, could take off what covers a folder, and what it saw."""

    def __init__(self, covered: Path) -> None:
        self.covered = covered

    def plan(self, problem: Problem, budget: Budget, seed: int):
        made = super().plan(problem, budget, seed)
        child = os.fork()
        if child == 0:
            libc = ctypes.CDLL(None)
            # Of users and mounts; then the mounts are taken off, the last first.
            code = 16 * (libc.unshare(0x10000000 | 0x20000) == 0)
            code += libc.umount2(str(self.covered).encode(), 2) == 0
            os._exit(code + 2 * len(list(self.covered.iterdir())))
        made.notes["found"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        made.notes["listed"] = len(list(self.covered.iterdir()))
        return made


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_what_is_covered_cannot_be_uncovered() -> None:
    answer = asked(Uncovers(SHOWN), SHOWN)
    assert not isinstance(answer, Failure), answer
    assert answer.plan.notes == {"found": 0, "listed": 0}


class Renices(Honest):
    """Ranks all processes of its user behind where they were."""

    def plan(self, problem: Problem, budget: Budget, seed: int):
        os.setpriority(os.PRIO_USER, os.getuid(), os.getpriority(os.PRIO_PROCESS, 0) + 1)
        return super().plan(problem, budget, seed)


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_a_users_processes_are_those_behind_the_wall() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert not isinstance(asked(Renices()), Failure)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


class Sees(Honest):
    """Says in its plan what it sees of its machine."""

    def plan(self, problem: Problem, budget: Budget, seed: int):
        made = super().plan(problem, budget, seed)
        sockets = Path("/proc/net/unix").read_text().splitlines()[1:]
        made.notes.update(
            processes=" ".join(path.name for path in sorted(Path("/proc").glob("[0-9]*"))),
            sockets=len(sockets),
            shared=len(list(Path("/dev/shm").iterdir())),
            own=len(list(Path(os.environ["TMPDIR"]).glob("mine"))),
            root=" ".join(sorted(path.name for path in Path("/").iterdir())),
            capabilities=_status("CapEff:"),
            files=len(list(Path("/proc/self/fd").iterdir())),
            baselines=int(Path(shardbench.__file__).is_file()),
            room=int(max(map(_bytes, (os.environ["TMPDIR"], "/dev/shm"))) < 0.25 * _memory_bytes()),
            score=_tried(lambda: Path("/proc/self/oom_score_adj").write_text("0")),
        )
        Path(os.environ["TMPDIR"], "mine").write_text("mine")
        Path("/dev/shm/mine").write_text("mine")
        return made


def _bytes(folder: str) -> int:
    room = os.statvfs(folder)
    return room.f_blocks * room.f_frsize


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _status(name: str) -> str:
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_behind_the_wall_are_a_problem_a_folder_and_python() -> None:
    for _ in range(2):
        answer = asked(Sees())
        assert not isinstance(answer, Failure), answer
        notes = dict(answer.plan.notes)
        # The first process, and this one.
        assert notes.pop("processes") == "1 2"
        assert set(str(notes.pop("root")).split()) <= ROOT
        assert int(notes.pop("files")) <= 6
        assert notes.pop("score") in ("EROFS", "EACCES")
        assert notes == {"sockets": 0, "shared": 0, "own": 0, "capabilities": "0" * 16, "baselines": 1, "room": 1}
