"""Strategies that break one rule each; conformance must reject every one by its check."""

import ctypes
import os
import secrets
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np

from shardbench.base.errors import Infeasible
from shardbench.engine.processes.failures import failed
from shardbench.model.plan import OnRank, Plan, Replicated, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.table import DenseShape, Table
from shardbench.records.trial import Outcome
from shardbench.workloads.ranking_cache import Survey
from shardbench.workloads.trace import Bags, Ranking, Split
from shardbench.workloads.workload import Workload


class GotThroughError(Exception):
    """What no check expects: an impostor got what is not its own."""


class Honest(Strategy):
    """Largest table first to the emptiest device, in HBM; passes every check."""

    name = "honest"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        used = [0] * problem.world_size
        segments = []
        for table in sorted(problem.tables, key=problem.weight_bytes, reverse=True):
            rank = used.index(min(used))
            used[rank] += problem.weight_bytes(table)
            segments.append(whole_table(table, OnRank(rank=rank)))
        if max(used) > problem.topology.hbm_bytes:
            raise Infeasible("the tables do not fit the HBM")
        return Plan(world_size=problem.world_size, segments=tuple(segments))


class MissingRows(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        first, *rest = super().plan(problem, budget, seed).segments
        cut = replace(first, row_stop=first.row_stop - 1)
        return Plan(world_size=problem.world_size, segments=(cut, *rest))


class OverfullDevice(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        segments = tuple(whole_table(t, OnRank(rank=0)) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class PlansWhatDoesNotFit(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        if problem.topology.hbm_bytes > 1000:
            return super().plan(problem, budget, seed)
        segments = tuple(whole_table(t, OnRank(rank=0)) for t in problem.tables)
        return Plan(world_size=problem.world_size, segments=segments)


class DeclinesEverything(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise Infeasible("too hard")


class PeeksAtProfile(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        assert problem.profiles[0].lookups >= 0
        return super().plan(problem, budget, seed)


class TinyWorkload(Workload):
    name = "tiny"
    tables = (Table(name="t0", rows=10, dim=16),)
    dense = DenseShape()
    batch_size = 4
    test_batches = 1

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        return Bags(values=np.arange(4), offsets=np.arange(5))

    def _survey(self, table: int) -> Survey:
        profile = AccessProfile.from_counts(np.ones(4, dtype=np.int64), rows=10, samples=4, present=4)
        return Ranking(np.arange(4), 10), profile

    def recipe(self) -> object:
        return {}


class PeeksAtTestTrace(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        TinyWorkload().bags(Split.TEST, 0, 0)
        return super().plan(problem, budget, seed)


class OverwritesArrays(Honest):
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        for array in problem.profiles[0]._arrays:
            array.setflags(write=True)
            array[:] = 1.0
        return super().plan(problem, budget, seed)


class UndeclaredMove(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        first, *rest = super().plan(problem, budget, seed).segments
        everywhere = Replicated(ranks=tuple(range(problem.world_size)))
        return Plan(world_size=problem.world_size, segments=(replace(first, placement=everywhere), *rest))


class Hangs(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        while True:
            time.sleep(60.0)


class HangsWithChild(Honest):
    """Leaves a process behind that must die with it; both go by a name."""

    def __init__(self, name: str) -> None:
        self.called = name

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        os.fork()
        ctypes.CDLL(None).prctl(15, self.called.encode(), 0, 0, 0)
        while True:
            time.sleep(60.0)


class DiesSilently(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        os._exit(3)


class Raises(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise KeyError("t0\nand more")


class RollsDice(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        return replace(made, notes={"luck": secrets.randbits(40)})


class OtherWorld(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return replace(super().plan(problem, budget, seed), world_size=problem.world_size + 1)


class NotAPlan(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Any:
        return [s.placement for s in super().plan(problem, budget, seed).segments]


class NoMoves(Honest):
    moves = frozenset()


class HoldsALambda(Honest):
    """Cannot be sent to the process that plans."""

    def __init__(self) -> None:
        self.choose = lambda used: used.index(min(used))


class FitsFirst(Honest):
    """Learns before it plans; without fit() it would fail."""

    def __init__(self) -> None:
        self.ready = False

    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        self.ready = True

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        assert self.ready
        return super().plan(problem, budget, seed)


class ForgesAPlan(Honest):
    """A Plan that its own checks would not let pass."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        object.__setattr__(made, "world_size", -1)
        return made


class Overruns(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        time.sleep(1.3 * budget.plan_s)
        return super().plan(problem, budget, seed)


class OverrunsWhileItLearns(Honest):
    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        time.sleep(2.3 * budget.fit_s)


class IsKilled(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().plan(problem, budget, seed)


class SpeaksForTheHarness(Honest):
    """Raises what only the harness raises."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        raise failed(Outcome.SKIPPED, "no such device", "start")
