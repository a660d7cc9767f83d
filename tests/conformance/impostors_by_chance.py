"""Strategies whose plans hang on what is none of their business: chance, names, order, place and time."""

import os
from dataclasses import replace

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


class PlansByTheHome(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return int("elsewhere" in os.environ["HOME"])


class CountsForItsClass(Dealt):
    calls = 0

    def first(self, problem: Problem, seed: int) -> int:
        type(self).calls += 1
        return type(self).calls


class FailsForOtherSeeds(Dealt):
    def first(self, problem: Problem, seed: int) -> int:
        return [0] * 100 and [0][seed > 100]


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


class PretendsToDraw(Honest):
    """Deals by position, but from a rank that the seed says: the order may matter to who draws."""

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        super().plan(problem, budget, seed)
        ranks = [(i + seed) % problem.world_size for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


class KnowsThatItIsTested(Dealt):
    """Would deal otherwise if it were not under test."""

    def first(self, problem: Problem, seed: int) -> int:
        return int("shardbench-test-" not in os.environ.get("TMPDIR", ""))
