"""A strategy in a package of its own: all tables on the first device."""

from shardbench.base.errors import Infeasible
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy


class RankZero(Strategy):
    """Everything on rank 0, in HBM."""

    name = "rank-zero"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """The plan; raises Infeasible where the first device is too small."""
        if sum(problem.weight_bytes(table) for table in problem.tables) > problem.topology.hbm_bytes:
            raise Infeasible("the tables do not fit the first device")
        segments = whole_tables(problem.tables, [0] * len(problem.tables))
        return Plan(world_size=problem.world_size, segments=segments)
