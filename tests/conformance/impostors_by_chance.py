"""Strategies whose plans hang on what is none of their business: chance, names, order, place and time."""

import hashlib
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from impostors import Honest

from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget


def dealt(problem: Problem, first: int) -> Plan:
    """Tables dealt over the ranks from some rank on, by their size."""
    order = sorted(range(len(problem.tables)), key=lambda i: (problem.tables[i].rows, problem.tables[i].dim))
    ranks = [0] * len(order)
    for place, i in enumerate(order):
        ranks[i] = (place + first) % problem.world_size
    return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class Dealt(Honest):
    """Deals from the rank that ``first`` says, and notes that: ranks are few, so two draws may agree."""

    def first(self, problem: Problem, seed: int) -> int:
        return 0

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        first = self.first(problem, seed)
        return replace(dealt(problem, first), notes={"first": first})


class DrawsFromTheModuleRandom(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return random.randrange(1 << 30)


class DrawsFromNumpysGenerator(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int(np.random.randint(1 << 30))


class DrawsFromTorchsGenerator(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int(torch.randint(1 << 30, ()))


class AddsTheSeedToTheClock(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return seed + time.perf_counter_ns() // 1000


class PlansByTheMonth(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int(time.time() // (20 * 86400.0))


class PlansByTheProcess(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return os.getpid()


class PlansByTheHome(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int("elsewhere" in os.environ["HOME"])


class PlansByTheFolder(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int("elsewhere" in str(Path.cwd()))


class PlansByAddresses(Dealt):
    """Keeps what it was given: a problem that is gone leaves its place to the next."""

    kept: tuple[Problem, ...] = ()

    def first(self, problem: Problem, seed: int) -> int:
        self.kept = (*self.kept, problem)
        return int(hashlib.sha256(str(id(problem)).encode()).hexdigest()[:8], 16)


class CountsItsCalls(Dealt):
    calls = 0

    def first(self, problem: Problem, seed: int) -> int:
        self.calls += 1
        return self.calls


class CountsForItsClass(Dealt):
    calls = 0

    def first(self, problem: Problem, seed: int) -> int:
        type(self).calls += 1
        return type(self).calls


class FailsForOtherSeeds(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return [0] * 100 and [0][seed > 100]


class OverfillsForOtherSeeds(Dealt):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        return made if seed <= 100 else Plan(world_size=made.world_size, segments=made.segments[1:])


class KnowsTheProblem(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return {"few-tables": 1}.get(problem.name, 0)


class KnowsTheTables(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int(any(table.name == "t0" for table in problem.tables))


class HashesNames(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        digests = [hashlib.sha256(table.name.encode()).digest()[0] for table in problem.tables]
        ranks = [digest % problem.world_size for digest in digests]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class SortsByName(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        names = sorted(table.name for table in problem.tables)
        ranks = [names.index(table.name) % problem.world_size for table in problem.tables]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class DealsByPosition(Honest):
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        ranks = [i % problem.world_size for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class PlansWellInOneOrder(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int(problem.tables[0].rows > problem.tables[1].rows)


class PretendsToDraw(Honest):
    """Deals by position, but from a rank that the seed says: the order may matter to who draws."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        ranks = [(i + seed) % problem.world_size for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class KnowsTheShapes(Dealt):
    """Has one problem's answer ready, and knows the problem by the sizes of its tables."""

    def first(self, problem: Problem, seed: int) -> int:
        return int(sum(table.rows for table in problem.tables) == 8304)


class KnowsThatItIsTested(Dealt):
    """Would deal otherwise if it were not under test."""

    def first(self, problem: Problem, seed: int) -> int:
        return int("shardbench-test-" not in os.environ.get("TMPDIR", ""))
