"""Computes the bytes that tiers hold on every device, as ``memory_bytes`` does of their plan, without making it."""

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.model.plan import OnRank, deal_start
from shardbench.model.problem import Problem
from shardbench.model.validate import dealt

from .rule import RowTiers
from .shape import Homes
from .units import is_split


class Room:
    """Weights and optimiser state of a problem's tables, of which the indivisible ones lie at ``homes`` or everywhere.

    The search asks for hundreds of tiers, and making a plan of each takes most of its time.
    """

    def __init__(self, problem: Problem, homes: Homes) -> None:
        self.world, self.local = problem.world_size, problem.topology.devices_per_node
        tables = problem.tables
        self.rows = np.array([table.rows for table in tables], dtype=np.int64)
        self.row_bytes = np.array([problem.weight_bytes(t) // t.rows for t in tables], dtype=np.int64)[:, None]
        self.split = np.array([is_split(table, self.world) for table in tables])[:, None]
        self.in_world, self.in_node = (
            (np.arange(self.world) - np.array([deal_start(t.name, ways) for t in tables])[:, None]) % ways
            for ways in (self.world, self.local)
        )
        """The number of each rank in the dealing of each table, [tables, world]."""
        self.at_home = np.zeros((len(tables), self.world), dtype=np.int64)
        for i, place in homes.placement.items():
            if isinstance(place, OnRank):
                self.at_home[i, place.rank] = self.rows[i]
            else:
                self.at_home[i, list(place.ranks)] = dealt(tables[i].name, tables[i].rows, len(place.ranks))

        self.most_at_home_bytes = int((self.at_home * self.row_bytes).sum(axis=0).max())
        """Bytes of indivisible tables alone on the fullest rank."""

    def rank_bytes(self, tiers: RowTiers) -> Ints:
        """Return the bytes of weights and optimiser state on each rank, int64 [world]."""
        hot, warm = tiers.hot[:, None], tiers.warm[:, None]
        cold = self.rows[:, None] - hot - warm
        in_world = (cold + self.world - 1 - self.in_world) // self.world
        in_node = (warm + self.local - 1 - self.in_node) // self.local
        whole = np.where(hot > 0, self.rows[:, None], self.at_home)
        return np.asarray((np.where(self.split, hot + in_node + in_world, whole) * self.row_bytes).sum(axis=0))
