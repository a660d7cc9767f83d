"""The cost model's estimate of a plan, counting a plan's traffic, and the proven bounds."""

from functools import cache

import numpy as np

from shardbench.cost.bounds.demand import Demand, count_demand, expected_demand
from shardbench.cost.bounds.embedding import split_bound
from shardbench.cost.bounds.step import DEVICE_MOVES, step_bound
from shardbench.cost.costmodel import estimate
from shardbench.cost.traffic import count
from shardbench.model.table import DenseShape
from shardbench.workloads.trace import Bags

from .case import Case
from .made_up import TABLES, made_bags, made_problem, mixed_plan

DENSE = DenseShape(features=13, bottom=(512, 256, 16), top=(512, 256, 1))
SMALL, LARGE = 10_000, 1_000_000
"""Tables of fewer rows are replicated; those of as many or more are dealt over all devices."""


@cache
def demand_of(tables: int) -> Demand:
    """Return what bounds are proven from."""
    return expected_demand(made_problem(tables))


class Estimating(Case):
    """Estimates and bounds under the training profiles, as strategies ask for them."""

    params = (list(TABLES),)
    param_names = ("tables",)

    def setup(self, tables: int) -> None:
        """Make a plan of all kinds of placement."""
        self.problem = made_problem(tables)
        self.plan = mixed_plan(self.problem, SMALL, LARGE)
        self.demand = demand_of(tables)

    def time_estimate(self, tables: int) -> None:
        """Estimate the step of the plan."""
        estimate(self.plan, self.problem, DENSE)

    def time_expected_demand(self, tables: int) -> None:
        """Find what bounds are proven from."""
        expected_demand(self.problem)

    def time_embedding_bound(self, tables: int) -> None:
        """Prove the bound on the slowest rank."""
        split_bound(self.demand.loads, self.problem, DEVICE_MOVES, self.demand.any_rows)

    def time_step_bound(self, tables: int) -> None:
        """Prove the bound on the step, and find its prices."""
        step_bound(self.demand, self.problem, DENSE, DEVICE_MOVES)


class Counted(Case):
    """The lookups of twenty tables in one batch on 16 devices, beside sorting them."""

    against = "sorting their lookups"

    def setup(self) -> None:
        """Draw 65,536 bags of four lookups for each table."""
        self.problem = made_problem(20)
        self.plan = mixed_plan(self.problem, SMALL, LARGE)
        batch = self.problem.batch_size
        self.bags = [made_bags(table.rows, batch, 4, seed=i) for i, table in enumerate(self.problem.tables)]

    def _demand(self) -> Demand:
        def bags(batch: int, table: int) -> Bags:
            return self.bags[table]

        return count_demand(self.problem, bags, 1)

    def time_count_plan(self) -> None:
        """Count the traffic of the plan."""
        count(self.plan, self.problem, self.bags.__getitem__, DENSE)

    def time_count_demand(self) -> None:
        """Count what bounds are proven from."""
        self._demand()

    def peakmem_count_demand(self) -> None:
        """Count what bounds are proven from."""
        self._demand()

    def track_bound_gap(self) -> float:
        """Return the plan's estimated step over the proven bound: a weaker bound is a larger gap."""
        bound = step_bound(expected_demand(self.problem), self.problem, DENSE, DEVICE_MOVES)
        step = estimate(self.plan, self.problem, DENSE).phases_ms.values()
        return float(np.sum(list(step))) / bound.ms

    track_bound_gap.unit = "bounds"

    def reference(self) -> object:
        """Sort the lookups of each table."""
        return [np.sort(bags.values) for bags in self.bags]
