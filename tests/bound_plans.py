"""Random small problems and very many plans of each, rated at once: what a lower bound is held against.

A table is cut into cells (rows x columns). What every placement of a cell alone asks of the devices is
counted once; a plan's load is the sum over its cells, as in the accounting (a test compares the two).
"""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from bound_problems import BATCH, machine

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.accounting import Account
from shardbench.cost.bounds.demand import Demand, count_demand
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups
from shardbench.model.plan import GroupSharded, OnLocalRank, OnRank, Placement, Plan, Replicated, RowWise, Segment, Tier
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Pooling, Precision, Table
from shardbench.model.validate import memory_bytes
from shardbench.workloads.trace import Bags

TIERS = (Tier.HBM, Tier.UVM)
"""Where a cell may lie; nothing is proven about caches."""


def random_bags(rng: np.random.Generator, rows: int) -> Bags:
    """One table's bags in one batch: none, few or many, on few rows or all."""
    lengths = rng.integers(0, 6, BATCH) * (rng.random(BATCH) < rng.choice([0.0, 0.2, 1.0]))
    skew = rng.choice([1.0, 3.0])
    values = np.minimum((rng.random(int(lengths.sum())) ** skew * rows).astype(np.int64), rows - 1)
    return Bags(values=values, offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Some rows and columns of a table, and all ways to place them."""

    table: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    choices: tuple[tuple[Segment, ...], ...]
    values: Floats
    """Loads, float64 [choices, batches, world, fields]."""
    memory: Floats
    """Bytes of HBM and UVM, float64 [choices, 2, world]."""
    in_uvm: Bools
    """[choices]."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans by the choices they make, [plans, cells], and what they come to."""

    chosen: Ints
    slowest_ms: Floats
    """Slowest rank's mean embedding time over the batches, [plans]."""
    memory: Floats
    """The fullest rank's bytes of HBM and UVM, [plans, 2]."""
    ordered: Bools
    """Whether each keeps the order of frequency, [plans]."""

    def __getitem__(self, which: Bools) -> "Plans":
        return Plans(
            chosen=self.chosen[which],
            slowest_ms=self.slowest_ms[which],
            memory=self.memory[which],
            ordered=self.ordered[which],
        )


class Instance:
    """A random problem of up to four tables with one to three counted batches, its cells and its plans."""

    def __init__(self, seed: int, *, whole: bool = False) -> None:
        self.rng = rng = np.random.default_rng(seed)
        nodes, devices = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)][int(rng.integers(6))]
        shapes = tuple(
            Table(
                name=f"t{i}",
                rows=int(rng.integers(nodes * devices, 60)),
                dim=4 * int(rng.integers(1, 9)),
                pooling=Pooling.SUM if rng.random() < 0.6 else Pooling.NONE,
            )
            for i in range(int(rng.integers(1, 5)))
        )
        self.bags = [[random_bags(rng, table.rows) for table in shapes] for _ in range(int(rng.integers(1, 4)))]
        profiles = tuple(AccessProfile(rows=t.rows, samples=1, present=0, counts=(), row_counts=()) for t in shapes)
        self.problem = Problem.of(
            "p",
            shapes,
            profiles,
            machine(rng, nodes, devices),
            batch_size=BATCH,
            precision=list(Precision)[int(rng.integers(2))],
            optimizer=list(Optimizer)[int(rng.integers(3))],
        )
        self.cells = [cell for i in range(len(shapes)) for cell in self._cells(i, whole)]

    @cached_property
    def counted(self) -> Demand:
        """What the bound is proven from."""
        return count_demand(self.problem, lambda n, i: self.bags[n][i], len(self.bags))

    def limited(self, hbm: int, uvm: int) -> Problem:
        """The problem on devices of so many bytes."""
        topology = replace(self.problem.topology, hbm_bytes=hbm, uvm_bytes=uvm)
        made = replace(self.problem.machine, topology=topology)
        return replace(self.problem, machine=made, topology=topology)

    def _cells(self, i: int, whole: bool) -> list[Cell]:
        table, rng = self.problem.tables[i], self.rng
        cuts = 0 if whole else int(rng.integers(0, 3))
        rows = sorted({0, table.rows, *rng.integers(0, table.rows, cuts).tolist()})
        columns = sorted({0, table.dim, *([] if whole else (4 * rng.integers(0, table.dim // 4, 1)).tolist())})
        lookups = [CountedLookups(batch[i], table.rows, self.problem.world_size, table.name) for batch in self.bags]
        return [
            self._cell(i, row, column, lookups, whole)
            for row, column in itertools.product(itertools.pairwise(rows), itertools.pairwise(columns))
        ]

    def _cell(
        self, i: int, rows: tuple[int, int], columns: tuple[int, int], lookups: list[CountedLookups], whole: bool
    ) -> Cell:
        table = self.problem.tables[i]
        choices = tuple(
            tuple(
                Segment(
                    table=table.name, row_start=rows[0], row_stop=rows[1], column_start=columns[0],
                    column_stop=columns[1], placement=place,
                )
                for place in places
            )
            for places in self._places(rows[1] - rows[0], whole)
        )  # fmt: skip
        values, memory = [], []
        for segments in choices:
            per_batch = []
            for asked in lookups:
                account = Account(self.problem)
                account.add(table, list(segments), asked)
                per_batch.append(account.load.values)
            values.append(per_batch)
            used = memory_bytes(Plan(world_size=self.problem.world_size, segments=segments), self.problem)
            memory.append([used.hbm, used.uvm])
        tiers = [getattr(segments[0].placement, "tier", Tier.HBM) for segments in choices]
        return Cell(
            table=i,
            rows=rows,
            columns=columns,
            choices=choices,
            values=np.array(values),
            memory=np.array(memory, dtype=np.float64),
            in_uvm=np.array([tier is Tier.UVM for tier in tiers]),
        )

    def _places(self, rows: int, whole: bool) -> list[tuple[Placement, ...]]:
        topology = self.problem.topology
        everyone, devices = tuple(range(topology.world_size)), topology.devices_per_node
        by_node = [topology.node_ranks(node) for node in range(topology.nodes)]
        found: list[tuple[Placement, ...]] = [(OnRank(rank=rank, tier=tier),) for rank in everyone for tier in TIERS]
        if whole:
            return found
        found.append((Replicated(ranks=everyone),))
        if topology.nodes > 1:
            found.append(tuple(Replicated(ranks=ranks) for ranks in by_node))
        for tier in TIERS:
            found += [(OnLocalRank(local_rank=at, tier=tier),) for at in range(devices)]
            if rows >= len(everyone):
                found.append((RowWise(ranks=everyone, tier=tier),))
            if rows >= devices:
                found.append((GroupSharded(tier=tier),))
                found += [(RowWise(ranks=ranks, tier=tier),) for ranks in by_node if len(ranks) < len(everyone)]
        return found

    def plan(self, chosen: Ints) -> Plan:
        """One plan, from its choices [cells]."""
        segments = [s for cell, choice in zip(self.cells, chosen) for s in cell.choices[choice]]
        return Plan(world_size=self.problem.world_size, segments=tuple(segments))

    def load(self, chosen: Ints) -> Load:
        """Loads of plans, [plans, batches, world]."""
        parts = [cell.values[choice] for cell, choice in zip(self.cells, chosen.T)]
        load = Load(np.sum(parts, axis=0))
        load.chain[...] = np.max([Load(part).chain for part in parts], axis=0)
        return load

    def rated(self, chosen: Ints) -> Plans:
        """Plans [plans, cells], rated."""
        memory = np.sum([cell.memory[choice] for cell, choice in zip(self.cells, chosen.T)], axis=0)
        ordered = np.ones(len(chosen), dtype=np.bool_)
        for (a, cold), (b, hot) in itertools.permutations(enumerate(self.cells), 2):
            overlap = cold.columns[0] < hot.columns[1] and hot.columns[0] < cold.columns[1]
            if cold.table == hot.table and overlap and cold.rows[0] < hot.rows[0]:
                ordered &= ~(cold.in_uvm[chosen[:, a]] & ~hot.in_uvm[chosen[:, b]])
        times = embedding_ms(self.load(chosen), self.problem.machine.constants)
        return Plans(
            chosen=chosen,
            slowest_ms=times.mean(axis=1).max(axis=1),
            memory=memory.max(axis=2),
            ordered=ordered,
        )

    def random(self, plans: int) -> Plans:
        """Plans that place every cell at random."""
        return self.rated(np.stack([self.rng.integers(0, len(c.choices), plans) for c in self.cells], axis=1))

    def descended(self, start: Ints, room: Floats, *, ordered: bool) -> Plans:
        """All plans that a descent from ``start`` [cells] rates within ``room`` [2]: cell after cell, twice."""
        best, met = start.copy(), []
        for _, at in itertools.product(range(2), range(len(self.cells))):
            tried = np.repeat(best[None], len(self.cells[at].choices), axis=0)
            tried[:, at] = np.arange(len(tried))
            found = self.rated(tried)
            found = found[(found.memory <= room).all(axis=1) & (found.ordered | (not ordered))]
            met.append(found)
            best = found.chosen[int(found.slowest_ms.argmin())]
        return Plans(
            chosen=np.concatenate([p.chosen for p in met]),
            slowest_ms=np.concatenate([p.slowest_ms for p in met]),
            memory=np.concatenate([p.memory for p in met]),
            ordered=np.concatenate([p.ordered for p in met]),
        )
