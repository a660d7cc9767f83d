"""Tiers as a plan: segments of sequence tables, homes of the tables that are not split, and bytes on every device."""

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.model.plan import (
    GroupSharded,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    deal_start,
    row_ranges,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.validate import dealt

from .rule import RowTiers, is_split

Homes = dict[int, OnRank | RowWise]
"""Where indivisible tables lie while they are cold, by table number."""


def find_homes(problem: Problem, *, over_all: bool) -> Homes:
    """Find homes of indivisible tables, largest first (deviation 5).

    A table lies on the emptiest device if that makes no device fuller than the mean of all such
    tables' bytes; else its rows are dealt over the emptiest node, or over all devices.
    """
    topology = problem.topology
    ways = topology.world_size if over_all else topology.devices_per_node
    whole = [i for i, table in enumerate(problem.tables) if not is_split(table, problem.world_size)]
    whole.sort(key=lambda i: problem.weight_bytes(problem.tables[i]), reverse=True)
    mean = sum(problem.weight_bytes(problem.tables[i]) for i in whole) / problem.world_size
    used_bytes = np.zeros(problem.world_size, dtype=np.int64)
    homes: Homes = {}
    for i in whole:
        table, size = problem.tables[i], problem.weight_bytes(problem.tables[i])
        rank = int(used_bytes.argmin())
        if used_bytes[rank] + size <= mean or table.rows < ways or ways == 1:
            homes[i] = OnRank(rank=rank)
            used_bytes[rank] += size
        else:
            group = int(used_bytes.reshape(-1, ways).sum(axis=1).argmin())
            homes[i] = RowWise(ranks=tuple(range(group * ways, (group + 1) * ways)))
            used_bytes[group * ways : (group + 1) * ways] += dealt(table.name, table.rows, ways) * (size // table.rows)
    return homes


class Room:
    """Computes the bytes that tiers hold on every device, as ``memory_bytes`` does of their plan, without making it.

    Indivisible tables lie at ``homes`` or everywhere. The search asks for hundreds of tiers, and making a plan of each
    takes most of its time.
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
        for i, place in homes.items():
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


def cold_bytes(problem: Problem, homes: Homes) -> int:
    """Return the bytes on the fullest device where there is no copy."""
    none = np.zeros(len(problem.tables), dtype=np.int64)
    return int(Room(problem, homes).rank_bytes(RowTiers(hot=none, warm=none)).max())


def all_homes(problem: Problem) -> list[Homes]:
    """Return the homes of indivisible tables over their nodes, and those over all devices."""
    return [find_homes(problem, over_all=over_all) for over_all in (False, True)]


def least_bytes(problem: Problem) -> int:
    """Return the smallest limit, in bytes a device, that holds a plan."""
    return min(cold_bytes(problem, homes) for homes in all_homes(problem))


def runnable(tiers: RowTiers, problem: Problem) -> RowTiers:
    """Return the tiers with none that has fewer rows than ranks to deal them over, which no engine runs.

    Rows move to the colder tier, so that memory never grows.
    """
    world, local = problem.world_size, problem.topology.devices_per_node
    rows = np.array([table.rows for table in problem.tables], dtype=np.int64)
    split = np.array([is_split(table, world) for table in problem.tables])
    hot, warm = tiers.hot, tiers.warm
    cold = rows - hot - warm
    shortage = np.where(split & (cold > 0) & (cold < world), world - cold, 0)
    from_warm = np.minimum(shortage, warm)
    hot, warm = hot - (shortage - from_warm), warm - from_warm
    too_few = (warm > 0) & (warm < local)
    # Warm rows that the node cannot be dealt become cold where cold rows are dealt anyway, else hot rows go with them.
    rest = rows - hot - np.where(too_few, 0, warm)
    short = np.where(split & too_few & (rest < world), world - rest, 0)
    return RowTiers(hot=hot - short, warm=np.where(too_few, 0, warm))


def make_plan(
    problem: Problem, homes: Homes, tiers: RowTiers, notes: dict[str, float | int | str] | None = None
) -> Plan:
    """Return the plan of runnable tiers."""
    segments: list[Segment] = []
    ranks = tuple(range(problem.world_size))
    for i, table in enumerate(problem.tables):
        hot, warm = int(tiers.hot[i]), int(tiers.warm[i])
        if i in homes:
            place = Replicated(ranks=ranks) if hot else homes[i]
            segments.append(whole_table(table, place))
            continue
        # Cold rows lie over all ranks, never over one node: deviation 11.
        cold = table.rows, RowWise(ranks=ranks)
        segments += row_ranges(table, (hot, Replicated(ranks=ranks)), (hot + warm, GroupSharded()), cold)
    return Plan(world_size=problem.world_size, segments=tuple(segments), notes=notes or {})
