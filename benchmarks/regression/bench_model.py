"""The cost model's estimate of a plan, counting a plan's traffic, and the proven bounds."""

from functools import cache

import numpy as np

from shardbench.cost.bounds.demand import Demand, count_demand, expected_demand
from shardbench.cost.bounds.embedding import split_bound
from shardbench.cost.bounds.step import DEVICE_MOVES, step_bound
from shardbench.cost.costmodel import estimate
from shardbench.cost.traffic import count
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, whole_table
from shardbench.model.table import DenseShape
from shardbench.workloads.trace import Bags

from .made_up import TABLES, cpu_s, made_bags, made_problem

DENSE = DenseShape(features=13, bottom=(512, 256, 16), top=(512, 256, 1))
SMALL, LARGE = 10_000, 1_000_000
"""Rows below which a table is replicated, and from which it is dealt over all devices."""


@cache
def mixed_plan(tables: int) -> Plan:
    """Small tables replicated, large ones row-wise, the others whole, in turn."""
    problem = made_problem(tables)
    everyone = tuple(range(problem.world_size))
    segments = []
    for i, table in enumerate(problem.tables):
        if table.rows < SMALL:
            place = Replicated(ranks=everyone)
        elif table.rows >= LARGE:
            place = RowWise(ranks=everyone)
        else:
            place = OnRank(rank=i % problem.world_size)
        segments.append(whole_table(table, place))
    return Plan(world_size=problem.world_size, segments=tuple(segments))


@cache
def demand_of(tables: int) -> Demand:
    """What bounds are proven from."""
    return expected_demand(made_problem(tables))


class Estimating:
    """Under the training profiles, as strategies ask."""

    params = (list(TABLES),)
    param_names = ("tables",)
    timer = staticmethod(cpu_s)

    def setup(self, tables: int) -> None:
        """A plan of all kinds of placement."""
        self.problem = made_problem(tables)
        self.plan = mixed_plan(tables)
        self.demand = demand_of(tables)

    def time_estimate(self, tables: int) -> None:
        """CPU seconds of an estimated step."""
        estimate(self.plan, self.problem, DENSE)

    def time_expected_demand(self, tables: int) -> None:
        """CPU seconds of what bounds are proven from."""
        expected_demand(self.problem)

    def time_embedding_bound(self, tables: int) -> None:
        """CPU seconds of the bound on the slowest rank."""
        split_bound(self.demand.loads, self.problem, DEVICE_MOVES, self.demand.any_rows)

    def time_step_bound(self, tables: int) -> None:
        """CPU seconds of the bound on the step, its prices found."""
        step_bound(self.demand, self.problem, DENSE, DEVICE_MOVES)


class Counted:
    """Twenty tables' lookups of one batch on 16 devices."""

    timer = staticmethod(cpu_s)

    def setup(self) -> None:
        """65,536 bags of four lookups a table."""
        self.problem = made_problem(20)
        self.plan = mixed_plan(20)
        batch = self.problem.batch_size
        self.bags = [made_bags(table.rows, batch, 4, seed=i) for i, table in enumerate(self.problem.tables)]

    def _demand(self) -> Demand:
        def bags(batch: int, table: int) -> Bags:
            return self.bags[table]

        return count_demand(self.problem, bags, 1)

    def time_count_plan(self) -> None:
        """CPU seconds of a plan's traffic."""
        count(self.plan, self.problem, self.bags.__getitem__, DENSE)

    def time_count_demand(self) -> None:
        """CPU seconds of what bounds are proven from."""
        self._demand()

    def peakmem_count_demand(self) -> None:
        """Bytes of the process at its largest."""
        self._demand()

    def track_bound_gap(self) -> float:
        """Estimated step of the plan over the proven bound: a weaker bound is a larger gap."""
        bound = step_bound(expected_demand(self.problem), self.problem, DENSE, DEVICE_MOVES)
        step = estimate(self.plan, self.problem, DENSE).phases_ms.values()
        return float(np.sum(list(step))) / bound.ms

    track_bound_gap.unit = "bounds"
