"""Strategies that reach for what is not theirs: files and processes of others, test lookups, the judge, the kernel;
and those that leave something for their next process, and look for what an earlier one left.

They look, or open for writing and write nothing; where the kernel closes nothing, they do no harm.
"""

import contextlib
import ctypes
import errno
import gc
import os
import pwd
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from impostors import GotThroughError, Honest, OverfullDevice

import shardbench
from shardbench.base.errors import Infeasible, InvalidPlan
from shardbench.conformance.problems import PublicDraws
from shardbench.datasets.trace_file import BUILTIN
from shardbench.model.plan import OnRank, Plan, Segment, Tier, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import Table
from shardbench.trials import evaluate as judging
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import Workload

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = range(2, 1 << 15)
_NEW_MOUNTS, _NEW_USER, _DETACH = 0x20000, 0x10000000, 2
_LEFT: set[str] = set()
"""Those that left something in this process."""


def closed_folder() -> Path:
    """The folder of test batches and records, which lies where temporary folders are; raises FileNotFoundError."""
    places = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
    # Runs that were killed may have left theirs.
    folders = sorted((one for place in places for one in place.glob("shardbench-closed-*")), key=os.path.getmtime)
    if folders:
        return folders[-1]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/var/tmp/shardbench-closed")


class Reaching(Honest):
    """Reaches out, and then plans as if nothing were."""

    def reach(self, problem: Problem) -> None:
        """Look, or touch."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        self.reach(problem)
        return super().plan(problem, budget, seed)


class ReadsTestBatches(Reaching):
    def reach(self, problem: Problem) -> None:
        Batches(closed_folder() / "batches")
        np.fromfile(closed_folder() / "batches" / "0.values", dtype=np.int32)


class WritesRecords(Reaching):
    def reach(self, problem: Problem) -> None:
        with (closed_folder() / "results" / "records" / "suite.jsonl").open("a") as file:
            file.write('{"outcome":"ok"}\n')


class ReadsItsParentsMemory(Reaching):
    def reach(self, problem: Problem) -> None:
        with Path(f"/proc/{os.getppid()}/mem").open("rb"):
            pass


class EditsTheHarness(Reaching):
    """Opens a module of the package for writing."""

    def reach(self, problem: Problem) -> None:
        with Path(shardbench.__file__).open("r+b"):
            pass


class AsksTheNetwork(Reaching):
    def reach(self, problem: Problem) -> None:
        with socket.socket() as connection:
            connection.settimeout(0.2)
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect(("192.0.2.1", 9))


class PatchesTheJudge(OverfullDevice):
    """Makes its process's checks pass everything."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        judging.validate = lambda *_: None  # type: ignore[assignment]
        InvalidPlan.__init__ = lambda *_: None  # type: ignore[assignment,method-assign]
        return super().plan(problem, budget, seed)


class AnswersForItself(Honest):
    """Writes an answer of its own to every pipe that it has."""

    answer = b"no JSON"

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        said = struct.pack("!i", len(self.answer)) + self.answer
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, said)
            except OSError:
                continue
        return super().plan(problem, budget, seed)


class AnswersWithAPickle(AnswersForItself):
    """That would run in whoever unpickles it."""

    answer = b"cposix\nabort\n(tR."


class LooksThroughFrames(Honest):
    """Says in its plan what it found of what it may not see: on the stack and among all objects."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        found = 0
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            found += sum(isinstance(value, Problem) and _tells(value) for value in frame.f_locals.values())
        kinds = (Bags, Batches, Workload, AccessProfile)
        found += sum(isinstance(each, kinds) for each in gc.get_objects())
        return replace(super().plan(problem, budget, seed), notes={"found": found})


def _tells(problem: Problem) -> bool:
    return isinstance(problem.profiles, tuple)


def _either_tier(problem: Problem) -> Plan:
    """Whole tables, HBM before UVM; raises Infeasible."""
    free = [
        (tier, rank, size)
        for tier, size in ((Tier.HBM, problem.topology.hbm_bytes), (Tier.UVM, problem.topology.uvm_bytes))
        for rank in range(problem.world_size)
    ]
    segments = []
    for table in problem.tables:
        needed = problem.weight_bytes(table)
        place = next((i for i, (_, _, size) in enumerate(free) if size >= needed), None)
        if place is None:
            raise Infeasible(f"no room for {table.name}")
        tier, rank, size = free[place]
        free[place] = (tier, rank, size - needed)
        segments.append(whole_table(table, OnRank(rank=rank, tier=tier)))
    return Plan(world_size=problem.world_size, segments=tuple(segments))


class Foresees(Honest):
    """Puts into HBM what the test lookups of the tables ask for, where it knows them."""

    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE, Move.ROWS, Move.UVM})
    block = 16
    """Rows that stay together."""
    tables: Sequence[Table] = PublicDraws.tables
    """By them it knows the workload of which it knows the lookups."""

    def test_rows(self, table: int) -> np.ndarray:
        """Row ids of the test lookups of a table of that workload."""
        raise NotImplementedError

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        if [table.rows for table in problem.tables] != [table.rows for table in self.tables]:
            return _either_tier(problem)
        room = problem.topology.hbm_bytes * problem.world_size // len(problem.tables)
        segments: list[Segment] = []
        for i, table in enumerate(problem.tables):
            blocks = room // (self.block * problem.weight_bytes(table) // table.rows)
            asked = np.bincount(self.test_rows(i) // self.block, minlength=-(-table.rows // self.block))
            hot = np.zeros(len(asked), dtype=bool)
            hot[np.argsort(-asked, kind="stable")[: blocks - 1]] = True
            edges = [0, *(np.flatnonzero(np.diff(hot)) + 1).tolist(), len(hot)]
            segments += [
                Segment(
                    table=table.name,
                    row_start=start * self.block,
                    row_stop=min(stop * self.block, table.rows),
                    column_stop=table.dim,
                    placement=OnRank(rank=i % problem.world_size, tier=Tier.HBM if hot[start] else Tier.UVM),
                )
                for start, stop in zip(edges, edges[1:])
            ]
        return Plan(world_size=problem.world_size, segments=tuple(segments))


class AsksForTheTestSplit(Foresees):
    @cached_property
    def workload(self) -> Workload:
        return PublicDraws()

    def test_rows(self, table: int) -> np.ndarray:
        return self.workload.bags(Split.TEST, 0, table).values


class AsksBehindTheSeal(AsksForTheTestSplit):
    """Calls what the sealed method calls."""

    def test_rows(self, table: int) -> np.ndarray:
        return self.workload._bags(Split.TEST, 0, table).values


class ForeseesALittle(AsksBehindTheSeal):
    """In one table of four alone: less than chance may make."""

    def test_rows(self, table: int) -> np.ndarray:
        known = super().test_rows(table)
        return known if table == 0 else np.arange(int(0.29 * PublicDraws.tables[table].rows))


class ReadsShippedLookups(Reaching):
    """Recorded lookups lie in the package: the second half of them is what some problems test on."""

    def reach(self, problem: Problem) -> None:
        for name in sorted(BUILTIN):
            BUILTIN[name].stat()
            raise GotThroughError(f"{name} is there")


def own() -> set[int]:
    """Numbers of this process, its threads, its parent and the first process."""
    return {0, 1, os.getpid(), os.getppid(), *(int(path.name) for path in Path("/proc/self/task").iterdir())}


class ReachesOthers(Reaching):
    """Does something to every process there is but its own."""

    def touch(self, pid: int) -> object:
        """Raise OSError where that is not possible."""
        raise NotImplementedError

    def reach(self, problem: Problem) -> None:
        known = own()
        for pid in _NUMBERS:
            if pid not in known:
                with contextlib.suppress(ProcessLookupError):
                    self.touch(pid)
                    raise GotThroughError(f"process {pid} is not its own")


class SignalsOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        os.kill(pid, 0)


class WritesAHugeFile(Reaching):
    def reach(self, problem: Problem) -> None:
        path = Path(os.environ["TMPDIR"], "huge")
        path.touch()
        try:
            os.truncate(path, 1 << 31)
        finally:
            path.unlink()


class Keeps(Reaching):
    """Knows in its next process that it was there before."""

    def found(self) -> bool:
        """Tell whether something is there; it is taken away."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave it; raises OSError."""
        raise NotImplementedError

    def reach(self, problem: Problem) -> None:
        if type(self).__name__ in _LEFT:
            return
        if self.found():
            raise GotThroughError("it was here before")
        _LEFT.add(type(self).__name__)
        self.leave()


def checked(result: int) -> int:
    """What a call of the C library gave, where that is no error; raises OSError."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class KeepsAFile(Keeps):
    def place(self) -> Path:
        """Say where."""
        return Path(tempfile.gettempdir(), "impostor")

    def found(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self.place().unlink()
            return True
        return False

    def leave(self) -> None:
        self.place().write_text("seen")


class KeepsAFileAtTheUsersHome(KeepsAFile):
    def place(self) -> Path:
        return Path(pwd.getpwuid(os.getuid()).pw_dir, ".impostor")


class KeepsAProcess(Keeps):
    """Leaves one of a session of its own, which would end by itself after a while."""

    many = 1

    def found(self) -> bool:
        return any(_name(folder) == b"impostor" for folder in Path("/proc").glob("[0-9]*"))

    def leave(self) -> None:
        for _ in range(self.many):
            if os.fork() == 0:
                os.setsid()
                _LIBC.prctl(15, b"impostor", 0, 0, 0)
                self.stay()
                os._exit(0)

    def stay(self) -> None:
        time.sleep(30.0)


def _name(folder: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (folder / "comm").read_bytes().strip()
    return b""


class MountsInNamespacesOfItsOwn(Reaching):
    """May do there what it likes; what is below its folders is not there either."""

    def reach(self, problem: Problem) -> None:
        child = os.fork()
        if child == 0:
            try:
                code = self.beyond()
            except OSError:
                code = 0
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise GotThroughError("there is something below its folders")

    def beyond(self) -> int:
        checked(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS))
        folders = (Path("/tmp"), Path("/var/tmp"), Path("/"))
        before = [set(folder.iterdir()) for folder in folders if folder.exists()]
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            _LIBC.umount2(line.split()[4].encode(), _DETACH)
        after = [set(folder.iterdir()) for folder in folders if folder.exists()]
        return int(any(later - earlier for earlier, later in zip(before, after)))
