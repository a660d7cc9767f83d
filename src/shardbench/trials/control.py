"""The control: one plan that the ranks of every measured trial of a group hold beside the trial's.

It is made from the problem alone, in one way, and is no strategy's: it stands for the machine as it
is at the moment, so that a plan's time over the control's is free of what drifts.
"""

from collections.abc import Iterator

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.model.plan import Host, OnRank, Placement, Plan, RowWise, Segment, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.table import Table
from shardbench.model.validate import dealt, memory_text


def control_plan(problem: Problem) -> Plan:
    """Whole tables, dearest first, each to the rank with least to do that has room; raises Infeasible.

    Dear is a table by the weights that the train split reads of it. What fits on no rank is dealt
    row-wise over all of them, and what is left of that fills the room that is left, on a CPU machine
    the hosts' too. On devices half of the HBM is used: the trial's plan is there as well.
    """
    room = _Room(problem)
    read = [p.lookups / p.samples * t.dim for t, p in zip(problem.tables, problem.profiles)]
    sizes = [problem.weight_bytes(table) for table in problem.tables]
    work = np.zeros(problem.world_size)
    pieces: dict[int, list[Segment]] = {}
    for i in sorted(range(len(sizes)), key=lambda i: (-read[i], -sizes[i], i)):
        table = problem.tables[i]
        home = room.home(sizes[i], work)
        if home is None:
            pieces[i] = list(room.cut(table))
            work += read[i] / problem.world_size
        else:
            pieces[i] = [whole_table(table, home)]
            work[home.rank] += read[i]
    segments = tuple(segment for i in range(len(sizes)) for segment in pieces[i])
    return Plan(world_size=problem.world_size, segments=segments)


class _Room:
    """Bytes that are free: by tier on each rank, int64 [world], and on each node's host."""

    def __init__(self, problem: Problem) -> None:
        topology, on_devices = problem.topology, problem.machine.device == "cuda"
        world = topology.world_size
        self._problem = problem
        self._everyone = tuple(range(world))
        self._free = {
            Tier.HBM: np.full(world, topology.hbm_bytes // (2 if on_devices else 1), dtype=np.int64),
            Tier.UVM: np.full(world, topology.uvm_bytes, dtype=np.int64),
        }
        # Beside GPUs the engine refuses whole tables on hosts and on devices in one plan.
        self._hosts = np.full(0 if on_devices else topology.nodes, topology.host_bytes, dtype=np.int64)

    def home(self, size: int, work: np.ndarray) -> OnRank | None:
        """The rank with least to do that has room for ``size`` bytes, the free tier first; None where none has."""
        for tier, free in self._free.items():
            roomy = np.flatnonzero(free >= size)
            if len(roomy):
                rank = int(roomy[np.argmin(work[roomy])])
                free[rank] -= size
                return OnRank(rank=rank, tier=tier)
        return None

    def cut(self, table: Table) -> Iterator[Segment]:
        """The table in pieces that fit; raises Infeasible."""
        row_bytes, at = self._problem.weight_bytes(table) // table.rows, 0
        for place, free in self._places():
            # Of a dealt piece all rows that are left, or as many on every rank.
            ways, rows_left = len(free), table.rows - at
            all_fit = (dealt(table.name, rows_left, ways) * row_bytes <= free).all()
            rows = rows_left if all_fit else int(free.min() // row_bytes) * ways
            if rows < ways:
                continue
            free[:] -= dealt(table.name, rows, ways) * row_bytes
            yield Segment(table=table.name, row_start=at, row_stop=at + rows, column_stop=table.dim, placement=place)
            at += rows
            if at == table.rows:
                return
        rows_left = table.rows - at
        raise Infeasible(
            f"no control plan: {rows_left} rows of table '{table.name}' fit nowhere, {rows_left * row_bytes} bytes; "
            f"{memory_text(self._problem)}"
        )

    def _places(self) -> Iterator[tuple[Placement, Ints]]:
        """Yield the places where a piece may lie, each with the view of what is free there."""
        for tier, free in self._free.items():
            yield RowWise(ranks=self._everyone, tier=tier), free
        for tier, free in self._free.items():
            for rank in self._everyone:
                yield OnRank(rank=rank, tier=tier), free[rank : rank + 1]
        for node in range(len(self._hosts)):
            yield Host(node=node), self._hosts[node : node + 1]
