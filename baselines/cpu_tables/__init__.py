"""All tables on the CPUs: with the dense model on the devices (hybrid), or on the CPUs as well."""

from collections.abc import Iterable

import numpy as np

from shardbench.base.errors import Infeasible
from shardbench.model.plan import DenseHome, Host, Plan, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy


class Hybrid(Strategy):
    """Keep all tables in host memory, looked up by the CPUs; train the dense model on the devices."""

    # deviation 1: ours, not XDL
    name = "hybrid"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.HOST})
    dense = DenseHome.DEVICES

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Place every table on a host (no randomness); raises Infeasible where one fits on none."""
        nodes = place_on_hosts(problem)
        segments = tuple(whole_table(table, Host(node=node)) for table, node in zip(problem.tables, nodes))
        return Plan(world_size=problem.world_size, segments=segments, dense=self.dense)


class CpuOnly(Hybrid):
    """Keep all tables in host memory and train the dense model on the CPUs, too; the devices idle."""

    name = "cpu-only"
    dense = DenseHome.HOSTS
    # Only on machines that state what their CPUs compute, so not in every comparison.
    role = Role.VARIANT


def place_on_hosts(problem: Problem) -> list[int]:
    """Return the node of every table: largest first, each on the node with the most host memory left.

    Raises Infeasible, which names the first table without room.
    """
    sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.int64)
    free = np.full(problem.topology.nodes, problem.topology.host_bytes, dtype=np.int64)
    nodes = [0] * len(sizes)
    for table in np.argsort(-sizes, kind="stable").tolist():
        node = int(free.argmax())
        if sizes[table] > free[node]:
            raise Infeasible(
                f"table '{problem.tables[table].name}' needs {sizes[table]} bytes of host memory, "
                f"at most {free[node]} are left on a node"
            )
        nodes[table] = node
        free[node] -= sizes[table]
    return nodes


def strategies() -> Iterable[Strategy]:
    """Return the hybrid and CPU-only training."""
    return (Hybrid(), CpuOnly())
