"""Places whole tables uniformly at random, by a seed: what no method at all achieves."""

from collections.abc import Iterable

import numpy as np

from shardbench.base.errors import Infeasible
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy

DRAWS = 100
"""The number of random orders that are tried before the strategy gives up."""


class Shuffle(Strategy):
    """Put every table on a device drawn uniformly among those with room, HBM before UVM."""

    name = "shuffle"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE, Move.UVM})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return a random plan; raises Infeasible where no random order fits."""
        sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.int64)
        capacity = np.array([problem.topology.hbm_bytes, problem.topology.uvm_bytes], dtype=np.int64)
        rng = np.random.default_rng(seed)
        for draw in range(DRAWS):
            placement = _draw(sizes, capacity, problem.world_size, rng)
            if placement is not None:
                ranks, tiers = placement
                segments = whole_tables(problem.tables, ranks, tiers)
                return Plan(world_size=problem.world_size, segments=segments, notes={"draws": draw + 1})
        raise Infeasible(
            f"none of {DRAWS} random orders fits {int(sizes.sum())} bytes of tables, the largest of {int(sizes.max())}"
        )


def _draw(
    sizes: np.ndarray, capacity: np.ndarray, world_size: int, rng: np.random.Generator
) -> tuple[list[int], list[Tier]] | None:
    free = np.repeat(capacity[:, None], world_size, axis=1)
    ranks = [0] * len(sizes)
    tiers = [Tier.HBM] * len(sizes)
    for table in rng.permutation(len(sizes)):
        for row, tier in enumerate((Tier.HBM, Tier.UVM)):
            roomy = np.flatnonzero(free[row] >= sizes[table])  # deviation 1
            if len(roomy):
                ranks[table], tiers[table] = int(rng.choice(roomy)), tier
                free[row, ranks[table]] -= sizes[table]
                break
        else:
            return None
    return ranks, tiers


def strategies() -> Iterable[Strategy]:
    """Return the one strategy of this folder."""
    return (Shuffle(),)
