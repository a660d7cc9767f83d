"""Strategies that reach for what is not theirs: other people's files and processes, test lookups, the judge.

They look, or open for writing and write nothing; where the kernel closes nothing, they do no harm.
"""

import contextlib
import ctypes
import errno
import gc
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from impostors import GotThroughError, Honest, OverfullDevice

import shardbench
from shardbench.base.errors import Infeasible, InvalidPlan
from shardbench.model.plan import OnRank, Plan, Segment, Tier, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import Table
from shardbench.runs import evaluate as judging
from shardbench.runs.conformance_draws import PublicDraws
from shardbench.workloads import trace
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Bags, Ranking, Split
from shardbench.workloads.workload import Workload


def closed_folder() -> Path:
    """The folder of test batches and records, which lies where temporary folders are; raises FileNotFoundError."""
    for place in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")):
        for folder in place.glob("shardbench-closed-*"):
            return folder
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


class ListsTheFolderOfBatches(Reaching):
    def reach(self, problem: Problem) -> None:
        list((closed_folder() / "batches").iterdir())


class ListsWhereTemporaryFoldersAre(Reaching):
    def reach(self, problem: Problem) -> None:
        found = [path.name for path in Path("/tmp").iterdir() if path.name.startswith(("shardbench", "pytest"))]
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/var/tmp")


class ReadsRecords(Reaching):
    def reach(self, problem: Problem) -> None:
        (closed_folder() / "results" / "records" / "suite.jsonl").read_text()


class WritesRecords(Reaching):
    def reach(self, problem: Problem) -> None:
        with (closed_folder() / "results" / "records" / "suite.jsonl").open("a") as file:
            file.write('{"outcome":"ok"}\n')


class WritesRecordsAndSaysNothing(Reaching):
    """Its plan is good; only what it tried to leave behind is not."""

    def reach(self, problem: Problem) -> None:
        try:
            with (closed_folder() / "results" / "records" / "suite.jsonl").open("a") as file:
                file.write('{"outcome":"ok"}\n')
        except OSError:
            pass


class ChangesTestBatches(Reaching):
    def reach(self, problem: Problem) -> None:
        path = closed_folder() / "batches" / "0.values"
        path.write_bytes(bytes(path.stat().st_size))


class RemovesTestBatches(Reaching):
    def reach(self, problem: Problem) -> None:
        (closed_folder() / "batches" / "batches.json").unlink()


class LinksTestBatches(Reaching):
    """A link from its own folder is no way there."""

    def reach(self, problem: Problem) -> None:
        link = Path(os.environ["TMPDIR"]) / "mine"
        link.unlink(missing_ok=True)
        link.symlink_to(closed_folder() / "batches" / "batches.json")
        link.read_text()


class ReadsThroughAChild(Reaching):
    """A process of its own is confined as it is."""

    def reach(self, problem: Problem) -> None:
        path = closed_folder() / "batches" / "batches.json"
        child = os.fork()
        if child == 0:
            os._exit(0 if os.access(path, os.R_OK) and _readable(path) else 1)
        if os.waitpid(child, 0)[1] != 0:
            raise PermissionError("not by a child either")


def _readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except PermissionError:
        return False


class ReadsItsParentsMemory(Reaching):
    def reach(self, problem: Problem) -> None:
        with Path(f"/proc/{os.getppid()}/mem").open("rb"):
            pass


class FollowsItsParentsFiles(Reaching):
    """Its parent's folders and files are its own: the parent is the first process of its namespace."""

    def reach(self, problem: Problem) -> None:
        parent = Path(f"/proc/{os.getppid()}")
        seen = {path.name for path in (parent / "root").iterdir()} - {path.name for path in Path("/").iterdir()}
        seen |= {path.name for path in (parent / "cwd").iterdir() if path.name.startswith("shardbench")}
        if seen:
            raise GotThroughError(f"its parent sees {seen}")


class SignalsItsParent(Reaching):
    def reach(self, problem: Problem) -> None:
        os.kill(os.getppid(), 0)


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


class MountsAnotherFolder(Reaching):
    """A file system over the one that is closed."""

    def reach(self, problem: Problem) -> None:
        call = ctypes.CDLL(None, use_errno=True)
        if call.mount(b"none", os.environ["TMPDIR"].encode(), b"tmpfs", 0, None) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        call.umount(os.environ["TMPDIR"].encode())


class ReadsWhileItIsPickled(Honest):
    def __getstate__(self) -> Any:
        Batches(closed_folder() / "batches")
        return {}


class ReadsWhileItIsUnpickled(Honest):
    """Does it where it is made again out of its pickle."""

    def __reduce__(self) -> Any:
        return _read_again, ()


def _read_again() -> Honest:
    list(closed_folder().iterdir())
    return ReadsWhileItIsUnpickled()


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
        said = len(self.answer).to_bytes(8, "big") + self.answer
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, said)
            except OSError:
                continue
        return super().plan(problem, budget, seed)


class AnswersWithAPickle(AnswersForItself):
    """That would run in whoever unpickles it."""

    answer = b"cposix\nabort\n(tR."


class AnswersWithAPlan(AnswersForItself):
    """That is no plan for the problem."""

    answer = b'text\n{"world_size":1,"segments":[]}'


class AnswersWithoutEnd(AnswersForItself):
    """Says that more will come than there is memory."""

    answer = b""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, (1 << 60).to_bytes(8, "big"))
            except OSError:
                continue
        return super().plan(problem, budget, seed)


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


class OpensTheSeal(AsksForTheTestSplit):
    """Makes its process forget that the test split is sealed."""

    def test_rows(self, table: int) -> np.ndarray:
        trace._sealed = False
        return super().test_rows(table)


class AsksBehindTheSeal(AsksForTheTestSplit):
    """Calls what the sealed method calls."""

    def test_rows(self, table: int) -> np.ndarray:
        return self.workload._bags(Split.TEST, 0, table).values


class DrawsItsOwn(Foresees):
    """Has its own code for the draws, and the seed that everyone can read."""

    def test_rows(self, table: int) -> np.ndarray:
        rows, draws = PublicDraws.tables[table].rows, 4 * PublicDraws.batch_size

        def drawn(split: int, batch: int) -> np.ndarray:
            seeds = np.random.SeedSequence(entropy=2024, spawn_key=(split, batch, table))
            shares = np.random.default_rng(seeds).random(draws)
            return np.minimum(rows * shares**5.0, rows - 1).astype(np.int64)

        ranks = Ranking(np.concatenate([drawn(0, batch) for batch in range(8)]), rows)
        return ranks(drawn(1, 0))


class ForeseesALittle(AsksBehindTheSeal):
    """In one table of four alone: less than chance may make."""

    def test_rows(self, table: int) -> np.ndarray:
        known = super().test_rows(table)
        return known if table == 0 else np.arange(int(0.29 * PublicDraws.tables[table].rows))
