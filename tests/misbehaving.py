"""Strategies that go wrong in every way the harness must survive; importable by its child processes."""

import ctypes
import multiprocessing
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from problems import RandomWorkload

from shardbench.base.errors import Infeasible
from shardbench.base.memory import free_memory_bytes
from shardbench.model.plan import OnRank, Plan, RowWise, Tier, whole_table, whole_tables
from shardbench.model.problem import Sees
from shardbench.model.strategy import Move, Strategy
from shardbench.trials import planning_process
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Split


class Honest(Strategy):
    """Tables dealt over the ranks; those that derive from it are called as their class is."""

    name = "honest"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def __init_subclass__(cls):
        if "name" not in vars(cls):
            cls.name = re.sub(r"\B(?=[A-Z])", "-", cls.__name__).lower()

    def plan(self, problem, budget, seed):
        ranks = [(i + seed) % problem.world_size for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class Learner(Honest):
    """Takes its time to fit."""

    def fit(self, problems, budget, seed):
        assert problems[0].tables
        time.sleep(0.2)


class Counting(Honest):
    """Makes another plan whenever it is asked."""

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        return Plan(world_size=plan.world_size, segments=plan.segments, notes={"asked_at": time.time_ns()})


class Hangs(Honest):
    def plan(self, problem, budget, seed):
        time.sleep(1e6)


class HangsLearned(Hangs):
    def fit(self, problems, budget, seed):
        pass


class LeavesInPickling(Honest):
    """Ends the program that sends it to the process that plans."""

    def __getstate__(self):
        raise SystemExit


class EndsInPickling(LeavesInPickling):
    def __getstate__(self):
        raise NeitherExceptionNorText


class LeavesWhenLookedAt(Honest):
    """Ends the program that asks what it needs."""

    @property
    def requires(self):
        raise SystemExit(0)


class Slow(Honest):
    """Overruns its budget, but comes back."""

    def plan(self, problem, budget, seed):
        time.sleep(budget.plan_s + 0.3)
        return super().plan(problem, budget, seed)


class Peeks(Honest):
    """Reads profiles it did not declare."""

    def plan(self, problem, budget, seed):
        return super().plan(problem, budget, len(problem.profiles))


class Mutates(Honest):
    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(problem.tables[0], "rows", 1)
        return plan


class NoPlan(Honest):
    def plan(self, problem, budget, seed):
        return {"world_size": 2}


class Undeclared(Honest):
    def plan(self, problem, budget, seed):
        place = OnRank(rank=0, tier=Tier.UVM)
        segments = tuple(whole_table(t, place) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class NeedsMore(Honest):
    requires = ("a_module_that_is_not_there",)


class CannotRun(Honest):
    """A valid plan that the engine cannot run yet."""

    moves = frozenset(Move)

    def plan(self, problem, budget, seed):
        segments = tuple(whole_table(t, RowWise(ranks=(0,))) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class SlowFit(Honest):
    """Overruns its fit budget, but comes back."""

    def fit(self, problems, budget, seed):
        time.sleep(budget.fit_s + 0.2)


class BadPlan(Honest):
    """A Plan that no validation would let pass."""

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "world_size", -1)
        return plan


class Unpicklable(Honest):
    """Cannot cross to the process that plans."""

    def __init__(self):
        self.choose = lambda: 0


class OnlyPicklesHere(Honest):
    """Pickles, but cannot be read back."""

    def __reduce__(self):
        return int, ("no number",)


class FindsBatches(Honest):
    """Knows where the test batches lie, and reads them by the harness's own means."""

    def __init__(self, folder):
        self.folder = folder

    def plan(self, problem, budget, seed):
        Batches(self.folder / "batches").bags(0, 0)


class ChangesBatches(FindsBatches):
    """Makes the test batches easier."""

    def plan(self, problem, budget, seed):
        path = self.folder / "batches" / "0.values"
        path.write_bytes(bytes(path.stat().st_size))
        return Honest().plan(problem, budget, seed)


class FollowsItsLog(Honest):
    """Looks for the test batches beside its log, of which it can see the name."""

    def plan(self, problem, budget, seed):
        folder = Path("/proc/self/fd/1").readlink().parent
        if folder.exists():
            raise RuntimeError("found something")
        print("no folder of the log")
        return super().plan(problem, budget, seed)


class UsesProcesses(Honest):
    """Searches in processes of its own."""

    def plan(self, problem, budget, seed):
        with multiprocessing.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        return super().plan(problem, budget, seed)


class SetsTheClock(Honest):
    """Takes its time, and makes its process's clocks say that it took none."""

    def plan(self, problem, budget, seed):
        real = time.sleep
        for clock in ("perf_counter", "monotonic", "time"):
            setattr(time, clock, lambda: 0.0)
        real(0.6)
        return super().plan(problem, budget, seed)


def answer_pipe():
    """The pipe for this process's answer, which nobody gives a strategy: it is in the frames below it."""
    frame = sys._getframe()
    while "answers" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["answers"]


class SaysPickle(Honest):
    """Gives as its answer a pickle that would make a file where it is read."""

    def __init__(self, path: Path, kind: bytes) -> None:
        self._path, self._kind = path, kind

    def plan(self, problem, budget, seed):
        answer_pipe().send_bytes(self._kind + pickle.dumps(_Touches(self._path)))
        time.sleep(1e6)


class _Touches:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


class WrittenLate(Honest):
    """Plans at once, and does the work where its plan is written down."""

    def plan(self, problem, budget, seed):
        written = planning_process.plan_json
        planning_process.plan_json = lambda *given: (time.sleep(budget.plan_s + 0.2), written(*given))[1]
        return super().plan(problem, budget, seed)


class OpensLate(Honest):
    """Does the work where it is made again out of its pickle."""

    def __reduce__(self):
        return _opened_late, ()


def _opened_late():
    time.sleep(0.8)
    return Honest()


class NotesWithoutEnd(Honest):
    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "notes", {"all": "x" * 1_000_000})
        return plan


class NotesNoNumber(Honest):
    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        plan.notes["gap"] = float("inf")
        return plan


class SegmentsWithoutEnd(Honest):
    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "segments", plan.segments * 300_000)
        return plan


class Ends(BaseException):
    """What no ``except Exception`` keeps."""


class NeitherExceptionNorText(BaseException):
    """The same, and nobody can make a text of it."""

    def __str__(self):
        raise ZeroDivisionError


def _raise(error: BaseException) -> None:
    raise error


def _leave_daemon() -> None:
    subprocess.Popen(
        [sys.executable, "-c", "import os, time; os.fork(); os.setsid(); os.fork(); time.sleep(1e6)"],
        start_new_session=True,
    )
    time.sleep(0.3)


def _daemon_then_exit() -> None:
    _leave_daemon()
    os._exit(4)


def _spin() -> None:
    while True:
        pass


def _fork_often() -> None:
    for _ in range(30):
        if os.fork() == 0:
            os.setsid()
            time.sleep(1e6)


def _recurse() -> None:
    _recurse()


def _close_all() -> None:
    os.closerange(3, 256)
    time.sleep(0.2)


def _answer(written: bytes) -> None:
    os.write(answer_pipe().fileno(), written)
    time.sleep(1e6)


def _end_for_want_of_memory() -> None:
    """What a library of C++ does that no exception leaves."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


DEEDS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exits": lambda: os._exit(3),
    "leaves": lambda: sys.exit(0),
    "raises": lambda: 1 // 0,
    "raises two lines": lambda: _raise(ZeroDivisionError("one\ntwo")),
    "declines": lambda: _raise(Infeasible("nothing fits")),
    "says much of its end": lambda: _raise(Infeasible("x" * 1_000_000)),
    "opens the test batches": lambda: RandomWorkload([(100, 8), (40, 8)], 16).bags(Split.TEST, 0, 0),
    "recurses": _recurse,
    "hangs": lambda: time.sleep(1e6),
    "spins": _spin,
    "all memory": lambda: bytearray(1 << 45),
    "nearly all memory": lambda: np.zeros(int(0.97 * free_memory_bytes()), dtype=np.uint8),
    "torch has no memory": lambda: _raise(
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried")
    ),
    "ends for want of memory": _end_for_want_of_memory,
    "fills the disk": lambda: os.ftruncate(1, 1 << 40),
    "half an answer": lambda: _answer(struct.pack("!i", 1000) + b"half"),
    "an answer without end": lambda: _answer(struct.pack("!iQ", -1, 1 << 60)),
    "nonsense": lambda: _answer(struct.pack("!i", 9) + b"no pickle"),
    "closes all": _close_all,
    "what is no Exception": lambda: _raise(Ends("for all")),
    "what is neither": lambda: _raise(NeitherExceptionNorText()),
    "what is no text": lambda: _raise(ValueError("byte \udc80 of a name")),
    "daemon": _leave_daemon,
    "daemon and exit": _daemon_then_exit,
    "thirty children": _fork_often,
    "kills who is above": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(5)),
    "stops who is above": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "kills all others": lambda: os.kill(-1, signal.SIGKILL),
    "stops all others": lambda: os.kill(-1, signal.SIGSTOP),
    "nice for all of its user's": lambda: os.setpriority(os.PRIO_USER, 0, 19),
}
"""What goes wrong while it plans; nearly all memory is asked for and none of it touched, and the file is a hole."""


class Does(Honest):
    """Does what it should not after a moment, and plans then if it still can."""

    def __init__(self, deed: str, delay_s: float = 0.0) -> None:
        self.deed, self.delay_s = deed, delay_s

    def plan(self, problem, budget, seed):
        time.sleep(self.delay_s)
        DEEDS[self.deed]()
        return super().plan(problem, budget, seed)
