"""Planning of hundreds of tables: minutes, so that asv does not ask."""

from shardbench.model.plan import Plan
from shardbench.model.strategy import Budget
from shardbench.trials.discovery import get_strategy

from .case import PlanCase
from .made_up import made_problem

MOST_GREEDIES = {
    # strategy: {(tables, devices): CPU seconds of its plan over lookup-greedy's, at the most}
    "search": {(200, 8): 160.0, (856, 8): 70.0, (856, 128): 12.0},
    "joint": {(200, 8): 140.0, (856, 8): 180.0, (856, 128): 100.0},
}
"""Three times what was seen when a line was written: beyond that, planning has become another thing."""
PLAN_S = {"search": 120.0, "joint": 1.0}


class Searching(PlanCase):
    """Strategies that search, on up to 856 tables and 128 devices; at most so many greedy plans' time."""

    params = (list(MOST_GREEDIES), list(MOST_GREEDIES["search"]))

    def setup(self, name: str, size: tuple[int, int]) -> None:
        """Make the problem of so many tables and devices."""
        self.ask(get_strategy(name), made_problem(*size), Budget(plan_s=PLAN_S[name]))
        self.most = MOST_GREEDIES[name][size]

    def long_plan(self, name: str, size: tuple[int, int]) -> Plan:
        """Plan the problem of that size."""
        return self.plan()
