"""Strategies that go wrong in every way the harness must survive; importable by its child processes."""

import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
from problems import RandomWorkload

from shardbench.base.errors import Infeasible
from shardbench.base.memory import free_memory_bytes
from shardbench.model.plan import OnRank, Plan, RowWise, Tier, whole_table, whole_tables
from shardbench.model.problem import Sees
from shardbench.model.strategy import Move, Strategy
from shardbench.processes.frames import write_frame
from shardbench.runs import planning_process
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Split


class Honest(Strategy):
    """Tables dealt over the ranks."""

    name = "honest"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem, budget, seed):
        ranks = [(i + seed) % problem.world_size for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class Learner(Honest):
    """Takes its time to fit."""

    name = "learner"

    def fit(self, problems, budget, seed):
        assert problems[0].tables
        time.sleep(0.2)


class Counting(Honest):
    """Makes another plan whenever it is asked."""

    name = "counting"

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        return Plan(world_size=plan.world_size, segments=plan.segments, notes={"asked_at": time.time_ns()})


class Hangs(Honest):
    name = "hangs"

    def plan(self, problem, budget, seed):
        time.sleep(1e6)


class HangsLearned(Hangs):
    name = "hangs-learned"

    def fit(self, problems, budget, seed):
        pass


class Leaves(Honest):
    """Ends the program, as if all were well."""

    name = "leaves"

    def plan(self, problem, budget, seed):
        raise SystemExit(0)


class Ends(BaseException):
    """What no ``except Exception`` keeps, and of which nobody can make a text."""

    def __str__(self):
        raise ZeroDivisionError


class RaisesWhatEndsAll(Honest):
    name = "raises-what-ends-all"

    def plan(self, problem, budget, seed):
        raise Ends


class LeavesInPickling(Honest):
    """Ends the program that sends it to the process that plans."""

    name = "leaves-in-pickling"
    leave: ClassVar = SystemExit

    def __getstate__(self):
        raise self.leave


class EndsInPickling(LeavesInPickling):
    name = "ends-in-pickling"
    leave: ClassVar = Ends


class LeavesWhenLookedAt(Honest):
    """Ends the program that asks what it needs."""

    name = "leaves-when-looked-at"

    @property
    def requires(self):
        raise SystemExit(0)


class SaysWhatIsNoText(Honest):
    name = "says-what-is-no-text"

    def plan(self, problem, budget, seed):
        raise ValueError("byte \udc80 of a name")


class Slow(Honest):
    """Overruns its budget, but comes back."""

    name = "slow"

    def plan(self, problem, budget, seed):
        time.sleep(budget.plan_s + 0.3)
        return super().plan(problem, budget, seed)


class Declines(Honest):
    name = "declines"

    def plan(self, problem, budget, seed):
        raise Infeasible("nothing fits")


class Raises(Honest):
    name = "raises"

    def plan(self, problem, budget, seed):
        raise ZeroDivisionError("one\ntwo")


class Dies(Honest):
    name = "dies"

    def plan(self, problem, budget, seed):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)


class IsKilled(Honest):
    name = "is-killed"

    def plan(self, problem, budget, seed):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)


class Peeks(Honest):
    """Reads profiles it did not declare."""

    name = "peeks"

    def plan(self, problem, budget, seed):
        return super().plan(problem, budget, len(problem.profiles))


class PeeksAtTest(Honest):
    name = "peeks-at-test"
    workload: ClassVar = None

    def plan(self, problem, budget, seed):
        RandomWorkload([(100, 8), (40, 8)], 16).bags(Split.TEST, 0, 0)


class Mutates(Honest):
    name = "mutates"

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(problem.tables[0], "rows", 1)
        return plan


class NoPlan(Honest):
    name = "no-plan"

    def plan(self, problem, budget, seed):
        return {"world_size": 2}


class Undeclared(Honest):
    name = "undeclared"

    def plan(self, problem, budget, seed):
        place = OnRank(rank=0, tier=Tier.UVM)
        segments = tuple(whole_table(t, place) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class NeedsMore(Honest):
    name = "needs-more"
    requires = ("a_module_that_is_not_there",)


class CannotRun(Honest):
    """A valid plan that the engine cannot run yet."""

    name = "cannot-run"
    moves = frozenset(Move)

    def plan(self, problem, budget, seed):
        segments = tuple(whole_table(t, RowWise(ranks=(0,))) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class SlowFit(Honest):
    """Overruns its fit budget, but comes back."""

    name = "slow-fit"

    def fit(self, problems, budget, seed):
        time.sleep(budget.fit_s + 0.2)


class BadPlan(Honest):
    """A Plan that no validation would let pass."""

    name = "bad-plan"

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "world_size", -1)
        return plan


class Unpicklable(Honest):
    """Cannot cross to the process that plans."""

    name = "unpicklable"

    def __init__(self):
        self.choose = lambda: 0


class OnlyPicklesHere(Honest):
    """Pickles, but cannot be read back."""

    name = "only-pickles-here"

    def __reduce__(self):
        return int, ("no number",)


class FindsBatches(Honest):
    """Knows where the test batches lie, and reads them by the harness's own means."""

    name = "finds-batches"

    def __init__(self, folder):
        self.folder = folder

    def plan(self, problem, budget, seed):
        Batches(self.folder / "batches").bags(0, 0)


class ChangesBatches(FindsBatches):
    """Makes the test batches easier."""

    name = "changes-batches"

    def plan(self, problem, budget, seed):
        path = self.folder / "batches" / "0.values"
        path.write_bytes(bytes(path.stat().st_size))
        return Honest().plan(problem, budget, seed)


class FollowsItsLog(Honest):
    """Looks for the test batches beside its log, of which it can see the name."""

    name = "follows-its-log"

    def plan(self, problem, budget, seed):
        folder = Path("/proc/self/fd/1").readlink().parent
        if folder.exists():
            raise RuntimeError("found something")
        print("no folder of the log")
        return super().plan(problem, budget, seed)


class UsesProcesses(Honest):
    """Searches in processes of its own."""

    name = "uses-processes"

    def plan(self, problem, budget, seed):
        with multiprocessing.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        return super().plan(problem, budget, seed)


class SetsTheClock(Honest):
    """Takes its time, and makes its process's clocks say that it took none."""

    name = "sets-the-clock"

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


class SaysHalf(Honest):
    """Writes the beginning of an answer and hangs."""

    name = "says-half"

    def plan(self, problem, budget, seed):
        os.write(answer_pipe().fileno(), (1000).to_bytes(8, "big") + b"half")
        time.sleep(1e6)


class SaysTooMuch(Honest):
    """Says that its answer is as long as no memory."""

    name = "says-too-much"

    def plan(self, problem, budget, seed):
        os.write(answer_pipe().fileno(), (1 << 60).to_bytes(8, "big"))
        time.sleep(1e6)


class SaysPickle(Honest):
    """Gives as its answer a pickle that would make a file where it is read."""

    name = "says-pickle"

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind

    def plan(self, problem, budget, seed):
        content = self._kind.encode() + b"\n" + pickle.dumps(_Touches(self._path))
        write_frame(answer_pipe(), content)
        time.sleep(1e6)


class _Touches:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


class WrittenLate(Honest):
    """Plans at once, and does the work where its plan is written down."""

    name = "written-late"

    def plan(self, problem, budget, seed):
        written = planning_process.written
        planning_process.written = lambda *given: (time.sleep(budget.plan_s + 0.2), written(*given))[1]
        return super().plan(problem, budget, seed)


class OpensLate(Honest):
    """Does the work where it is made again out of its pickle."""

    name = "opens-late"

    def __reduce__(self):
        return _opened_late, ()


def _opened_late():
    time.sleep(0.8)
    return Honest()


class TakesAllMemory(Honest):
    """Asks for nearly all memory of the machine, of which the harness keeps a share; touches none of it."""

    name = "takes-all-memory"

    def plan(self, problem, budget, seed):
        np.zeros(int(0.97 * free_memory_bytes()), dtype=np.uint8)
        return super().plan(problem, budget, seed)


class TorchHasNone(Honest):
    name = "torch-has-none"

    def plan(self, problem, budget, seed):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried")


class EndsForWantOfMemory(Honest):
    """What a library of C++ does that no exception leaves."""

    name = "ends-for-want-of-memory"

    def plan(self, problem, budget, seed):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
        os.abort()


class FillsTheDisk(Honest):
    """Prints more than is kept of anything; a hole, so that no disk is filled."""

    name = "fills-the-disk"

    def plan(self, problem, budget, seed):
        os.ftruncate(1, 1 << 40)


class NotesWithoutEnd(Honest):
    name = "notes-without-end"

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "notes", {"all": "x" * 1_000_000})
        return plan


class SegmentsWithoutEnd(Honest):
    name = "segments-without-end"

    def plan(self, problem, budget, seed):
        plan = super().plan(problem, budget, seed)
        object.__setattr__(plan, "segments", plan.segments * 300_000)
        return plan


class SaysMuchOfItsEnd(Honest):
    name = "says-much-of-its-end"

    def plan(self, problem, budget, seed):
        raise Infeasible("x" * 1_000_000)
