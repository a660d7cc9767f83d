"""Tables dealt over the devices, the largest first."""

from collections.abc import Iterable

from shardbench import Budget, Infeasible, Move, Plan, Problem, Sees, Strategy, whole_tables


class RoundRobin(Strategy):
    """The i-th largest table goes to device i modulo the number of devices."""

    name = "round-robin"
    sees = frozenset({Sees.TABLES})  # anything else raises when touched
    moves = frozenset({Move.TABLE})  # a plan that does more is invalid

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan; raises Infeasible where a device is too small for its tables."""
        order = sorted(range(len(problem.tables)), key=lambda i: -problem.weight_bytes(problem.tables[i]))
        home = {table: place % problem.world_size for place, table in enumerate(order)}
        used = [0] * problem.world_size
        for i, table in enumerate(problem.tables):
            used[home[i]] += problem.weight_bytes(table)
        if max(used) > problem.topology.hbm_bytes:
            raise Infeasible(f"a device would need {max(used)} bytes")
        ranks = [home[i] for i in range(len(problem.tables))]
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, ranks))


def strategies() -> Iterable[Strategy]:
    """Return the strategies that this package brings."""
    return [RoundRobin()]
