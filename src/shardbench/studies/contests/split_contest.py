"""Strategies on tasks whose tables may be split: judged on a counted test batch, by the papers' cost of a placement."""

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.collectives import CollectiveName, ranks_s
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.load import longest_lookups
from shardbench.cost.lookups import CountedLookups, TableLookups
from shardbench.cost.traffic import Traffic, traffic_of
from shardbench.learned.tasks.bound import shards_bound_ms
from shardbench.learned.tasks.oracle import Costs
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.plan import Host, OnRank, Plan, Segment, Tier
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.table import Table
from shardbench.records.cell import SeriesRow
from shardbench.studies.contests.contest import Judged, ask_all, contest_row, learning_calls
from shardbench.trials.evaluate import Question
from shardbench.workloads.trace import Bags

OUTPUT = (CollectiveName.OUTPUT_ALL_TO_ALL, CollectiveName.OUTPUT_REDUCE_SCATTER)
BACKWARD = (
    CollectiveName.BACKWARD_ALL_TO_ALL, CollectiveName.BACKWARD_ALL_GATHER, CollectiveName.ROWS_ALL_REDUCE,
)  # fmt: skip


class UncutLookups:
    """What a test batch's lookups of a table come to where every part of it has all rows, on one device.

    A TableLookups without rows: where rows are needed it raises BadInput. ``by_source`` is even, on which nothing but
    exchanges of lookups depends.
    """

    def __init__(self, task: Task, table: int) -> None:
        load = task.loads(counted=True)[np.array([table])]
        fields = load.lookups, load.distinct, longest_lookups(load.chain, task.problem.tables[table].dim)
        self._total, self._distinct, self._longest = (float(field[0]) for field in fields)
        self._world, self._name = task.devices, task.problem.tables[table].name

    def by_source(self, start: int, stop: int) -> Floats:
        """Give the lookups of each rank's samples: even parts of all."""
        return np.full(self._world, self._total / self._world)

    @property
    def of_samples(self) -> "UncutLookups":
        """Itself: no ids are made distinct."""
        return self

    def distinct(self, start: int, stop: int, ways: int) -> Floats:
        """Give the distinct rows of the one device that has all rows."""
        return np.full(1, self._distinct) if ways == 1 else self._refuse()

    def longest_bag(self, start: int, stop: int, groups: int, ways: int) -> Floats:
        """Give the longest bag of the one device that has all rows."""
        return np.full((1, 1), self._longest) if (groups, ways) == (1, 1) else self._refuse()

    def _refuse(self, *arguments: object, **keywords: object) -> NoReturn:
        """Refuse what was not counted: rows that are dealt to several devices, and distinct rows by rank or node."""
        raise BadInput(f"table '{self._name}' is not split by rows: only totals of its lookups are known")

    dealt = distinct_by_group = _refuse


class SplitQuestion(Question[Costs]):
    """A task whose plans split and copy tables in device memory as they like.

    Column shards are judged by what is known of the task's tables; ``bags`` gives a table's lookups in the test batch,
    which are counted anew for tables that are split by rows or copied.
    """

    def __init__(self, task: Task, bags: Callable[[Table], Bags]) -> None:
        super().__init__(task.problem)
        self.task, self._bags = task, bags

    def judge(self, plan: Plan) -> Costs:
        """Cost a plan, [1, devices]; raises Unsupported for rows outside of device memory and for batch schedules."""
        if plan.schedule is not None or any(_elsewhere(segment) for segment in plan.segments):
            raise Unsupported("these tasks' costs are of tables in device memory, without a batch schedule")
        segments = plan.by_table()

        def lookups(i: int) -> TableLookups:
            table = self.problem.tables[i]
            if all(isinstance(s.placement, OnRank) and s.rows == table.rows for s in segments[table.name]):
                return UncutLookups(self.task, i)
            return CountedLookups(self._bags(table), table.rows, self.problem.world_size, f"table {table.name}")

        return costs_of_traffic(traffic_of(plan, self.problem, lookups, None), self.problem.machine)


def _elsewhere(segment: Segment) -> bool:
    return isinstance(segment.placement, Host) or getattr(segment.placement, "tier", Tier.HBM) is not Tier.HBM


def costs_of_traffic(traffic: Traffic, machine: Machine) -> Costs:
    """Cost any traffic as an oracle does, [1, devices]: exchanges of vectors and gradients, none of lookups.

    The all-reduce of copied tables counts with the backward exchange.
    """

    def exchange_ms(names: tuple[CollectiveName, ...]) -> Floats:
        own = np.stack([ranks_s(traffic.collectives[name], machine) for name in names])
        return np.asarray(1e3 * own.sum(axis=0)[None])

    return Costs(
        forward_ms=1e3 * forward_s(traffic.load, machine.constants)[None],
        forward_comm_ms=exchange_ms(OUTPUT),
        backward_comm_ms=exchange_ms(BACKWARD),
        backward_ms=1e3 * backward_s(traffic.load, machine.constants)[None],
    )


def judged_rows(
    strategy: Strategy,
    tasks: Sequence[Task],
    bags: Callable[[Table], Bags],
    budget: Budget,
    seed: int,
    *,
    fit_cpu_s: float = 0.0,
) -> list[SeriesRow]:
    """Judge a strategy that has learned what it learns, in one row: means over the tasks that it placed, and each.

    ``bound_ms`` holds for column shards, and so for whole tables, but not for other plans. Raises BadInput where a
    strategy fails otherwise than by declining, or declines all tasks.
    """
    answers = ask_all(strategy, [SplitQuestion(task, bags) for task in tasks], budget, seed)
    judged = Judged.of(answers.judged, [shards_bound_ms(task, counted=True) for task in tasks])
    placed_tasks = [(task, answer) for task, answer in zip(tasks, answers.answers) if answer is not None]
    calls = learning_calls(strategy, answers.notes)
    return [
        {
            **contest_row(judged, fit_cpu_s=fit_cpu_s, plan_cpu_s=answers.plan_cpu_s, oracle_calls=calls),
            "task_bound_ms": tuple(round(float(ms), 6) for ms in judged.bound_ms),
            "segments_a_table": float(np.mean([len(a.plan.segments) / task.tables for task, a in placed_tasks])),
        }
    ]
