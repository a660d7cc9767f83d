"""EMBark's planner: small tables data-parallel, the others' shards greedily, the hottest split in rounds."""

from collections.abc import Iterable

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.model.plan import Plan, Replicated, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

from .rounds import TableSplits, best_round


class EMBark(Strategy):
    """Reduction-based shards in buckets that are nodes where there are several, else devices (RecSys 2024)."""

    name = "embark"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE})

    def is_hierarchical(self, problem: Problem) -> bool:
        """Return True where a bucket is a node, whose devices share a shard's rows."""
        return problem.topology.nodes > 1 and problem.topology.devices_per_node > 1

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan of the cheapest round (no randomness); raises Infeasible where a table has no room in HBM."""
        ranks = tuple(range(problem.world_size))
        parallel, free = _data_parallel(problem)
        rest = [i for i in range(len(problem.tables)) if i not in parallel]
        cheapest = best_round(TableSplits(problem, hierarchical=self.is_hierarchical(problem)), rest, free)
        replicas = tuple(whole_table(problem.tables[i], Replicated(ranks=ranks)) for i in sorted(parallel))
        return Plan(
            world_size=problem.world_size,
            segments=replicas + cheapest.segments,
            notes={"tables_data_parallel": len(parallel), "dearest_device": cheapest.worst},
        )


class EMBarkFlat(EMBark):
    """EMBark with devices as buckets on several nodes too: no hierarchical communication."""

    name = "embark-flat"
    role = Role.VARIANT

    def is_hierarchical(self, problem: Problem) -> bool:
        """Return False: a bucket is a device on every machine."""
        return False


def _data_parallel(problem: Problem) -> tuple[set[int], Ints]:
    """Return the smallest tables, which every device holds (deviation 2), and the bytes left on each device [world]."""
    free_bytes = problem.topology.hbm_bytes
    local_batch = problem.batch_size // problem.world_size
    chosen: set[int] = set()
    for i in sorted(range(len(problem.tables)), key=lambda i: (problem.tables[i].rows, i)):
        size = problem.weight_bytes(problem.tables[i])
        if problem.tables[i].rows > local_batch or size > free_bytes:
            break
        chosen.add(i)
        free_bytes -= size
    return chosen, np.full(problem.world_size, free_bytes, dtype=np.int64)


def strategies() -> Iterable[Strategy]:
    """Return EMBark with hierarchical communication where there can be any, and without."""
    return (EMBark(), EMBarkFlat())
