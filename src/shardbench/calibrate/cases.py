"""What calibration measures, as plain data: kernels by themselves, sizes of messages, and whole steps.

Steps are of seeded random plans over all device moves, of seeded random sets of tables, which no suite has. Every set
has several plans, so that the order of plans is judged as well as their times.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.model.machine import Machine, Topology
from shardbench.model.plan import (
    OnRank,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    row_ranges,
    whole_table,
    whole_tables,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.trials.control import control_plan
from shardbench.workloads.materialise import BatchSource, DrawnBatches
from shardbench.workloads.trace import Bags, bag_offsets
from shardbench.workloads.workload import Workload

BATCHES = 4
"""Batches that a point goes through in turn, as the iterations of a trial do."""
MESSAGE_BYTES = tuple(2**k for k in range(10, 25, 2))
"""Bytes of the timed all-to-alls and all-reduces: 1 KiB to 16 MiB."""
SETS, PLANS = 16, 3
"""Sets of tables, of which every second one judges, and plans of each."""
QUICK_SETS, QUICK_PLANS = 4, 3
PLAN_BATCHES = 2
"""Batches that a plan goes through in turn."""
_LOOKUPS = (1e5, 1.2e6)
"""Least and most pooled lookups of a batch, so that steps take 10 to 100 ms: calls and rates both tell."""
_LONGEST = 200.0
"""The longest mean bag of a table."""
_SEQUENCE_ROWS = 1e5
"""Most unpooled lookups of a batch: their gradients are collected one by one."""
_ROWS, _WEIGHTS = (500, 1_000_000), 30_000_000
"""Least and most rows of a table, and most weights: from what a cache holds to far more."""
_COPIED = 300_000
"""Most weights that every rank holds: their gradients are all-reduced whole."""


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """A kernel point: equal tables in one fused kernel, ``batch`` bags a table of ``pooling`` lookups on average.

    Row ids are ``rows * u ** skew`` with uniform u: 1 is uniform, more is hotter.
    """

    tables: int
    rows: int
    dim: int
    batch: int
    pooling: int
    skew: float = 1.0
    tier: Tier = Tier.HBM
    unpooled: bool = False
    held_out: bool = False
    """Whether it judges the fit and takes no part in it."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all tables' weights, in fp32."""
        return 4 * self.tables * self.rows * self.dim

    @property
    def kernel(self) -> tuple[int, int, int, Tier, bool]:
        """Return what points must have in common to share weights."""
        return self.tables, self.rows, self.dim, self.tier, self.unpooled


def kernel_points(*, tiers: tuple[Tier, ...], quick: bool) -> tuple[KernelCase, ...]:
    """Choose points that cover width, reuse, bags short and long, sequences, number of tables, and the launch floor."""
    cases: list[KernelCase] = []

    def add(tables: int, rows: int, dim: int, *loads: tuple[int, int, float], unpooled: bool = False) -> None:
        for tier in tiers:
            for batch, pooling, skew in loads:
                # Every fourth point is left out of the fit.
                out = len(cases) % 4 == 2
                shape = {"tables": tables, "rows": rows, "dim": dim, "batch": batch, "pooling": pooling}
                cases.append(KernelCase(**shape, skew=skew, tier=tier, unpooled=unpooled, held_out=out))

    add(1, 1_000_000, 64, (8, 1, 1), (1024, 1, 1), (4096, 20, 1), (4096, 20, 4))
    add(10, 400_000, 16, (8, 1, 1), (1024, 1, 1), (1024, 1, 4), (1024, 20, 1), (2048, 20, 4))
    add(2, 100_000, 32, (1024, 1, 1), (1024, 10, 2), (2048, 10, 1), unpooled=True)
    add(1, 400_000, 16, (1024, 20, 1))
    if not quick:
        add(4, 100_000, 16, (256, 4, 1), (512, 10, 1), (2048, 5, 2), unpooled=True)
        add(1, 2_000_000, 8, (4096, 20, 1), (256, 200, 1), (4096, 2, 3))
        add(2, 200_000, 128, (1024, 1, 1), (1024, 20, 1), (2048, 20, 4), (8192, 2, 2))
        add(2, 100_000, 256, (1024, 1, 1), (1024, 10, 1), (1024, 20, 4))
        add(20, 60_000, 32, (1024, 1, 1), (1024, 10, 2), (64, 100, 1))
        add(40, 10_000, 16, (64, 1, 1), (1024, 1, 2), (4096, 1, 4))
        add(4, 1_000_000, 8, (1024, 4, 1), (2048, 20, 2))
        add(1, 20_000, 64, (1024, 1, 1), (4096, 20, 1))
    return tuple(cases)


def bags(point: KernelCase, batch: int, table: int) -> Bags:
    """Draw the lookups of one table in one of the point's batches, always the same."""
    rng = np.random.default_rng([point.tables, point.rows, point.dim, batch, table])
    lengths = np.ones(point.batch, dtype=np.int64) if point.pooling == 1 else rng.poisson(point.pooling, point.batch)
    offsets = bag_offsets(lengths)
    ids = (rng.random(int(offsets[-1])) ** point.skew * point.rows).astype(np.int64)
    return Bags(values=ids, offsets=offsets)


def on_one_device(machine: Machine) -> Machine:
    """Return the same device alone, without limits of memory: what a kernel point runs on."""
    huge = 2**50
    topology = Topology(nodes=1, devices_per_node=1, hbm_bytes=huge, uvm_bytes=huge, host_bytes=huge)
    return replace(machine, topology=topology)


def problem_of(point: KernelCase, machine: Machine) -> Problem:
    """Pose the point's tables as a problem; its profiles are placeholders."""
    pooling = Pooling.NONE if point.unpooled else Pooling.SUM
    tables = tuple(Table(name=f"t{i}", rows=point.rows, dim=point.dim, pooling=pooling) for i in range(point.tables))
    return _posed(tables, machine, point.batch)


def _posed(tables: tuple[Table, ...], machine: Machine, batch_size: int) -> Problem:
    profiles = [AccessProfile(rows=t.rows, samples=1, present=1, counts=(1,), row_counts=(1,)) for t in tables]
    return Problem.of("calibration", tables, tuple(profiles), machine, batch_size=batch_size)


def kernel_plan(point: KernelCase, problem: Problem) -> Plan:
    """Place all tables whole on the one device, in the point's tier."""
    return Plan(world_size=1, segments=whole_tables(problem.tables, [0] * point.tables, [point.tier] * point.tables))


@dataclass(frozen=True, kw_only=True)
class DrawnTables:
    """A set of tables, each with its mean bag and its skew, and the model around them; all drawn from ``seed``."""

    seed: int
    tables: tuple[Table, ...]
    poolings: tuple[float, ...]
    skews: tuple[float, ...]
    batch_size: int
    dense: DenseShape

    def bags(self, batch: int, table: int) -> Bags:
        """Draw the lookups of one table in one batch, always the same; row ids are ``rows * u ** skew``."""
        rng = np.random.default_rng([self.seed, batch, table])
        features = self.tables[table].features
        offsets = bag_offsets(rng.poisson(self.poolings[table], self.batch_size * features))
        ids = rng.random(int(offsets[-1])) ** self.skews[table] * self.tables[table].rows
        return Bags(values=ids.astype(np.int64), offsets=offsets, features=features)


@dataclass(frozen=True, kw_only=True)
class PlanCase:
    """A plan whose whole step is measured; ``source`` gives its lookups, ``group`` is that of plans of one problem."""

    group: str
    tables: tuple[Table, ...]
    batch_size: int
    dense: DenseShape
    plan: Plan
    source: DrawnTables | BatchSource
    held_out: bool = False
    """Whether it judges the fit and takes no part in it."""
    model: bool = False
    """Whether it stands for the dense model of a workload, whose measured time is kept, and for nothing else."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights in fp32, once."""
        return 4 * sum(table.rows * table.dim for table in self.tables)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Return the numbers of the batches that it goes through."""
        numbers = range(PLAN_BATCHES) if isinstance(self.source, DrawnTables) else self.source.numbers
        return tuple(numbers)[:PLAN_BATCHES]

    def bags(self, batch: int, table: int) -> Bags:
        """Return the lookups of a table in a batch."""
        return self.source.bags(batch, table)

    def problem(self, machine: Machine) -> Problem:
        """Pose the tables as a problem; its profiles are placeholders."""
        return _posed(self.tables, machine, self.batch_size)


def plan_cases(world: int, *, quick: bool) -> tuple[PlanCase, ...]:
    """Draw the plans to measure, always the same; the plans of every second set of tables are held out."""
    sets, plans = (QUICK_SETS, QUICK_PLANS) if quick else (SETS, PLANS)
    return tuple(
        PlanCase(
            group=f"tables-{number}",
            tables=drawn.tables,
            batch_size=drawn.batch_size,
            dense=drawn.dense,
            plan=_plan(drawn, world, np.random.default_rng([number, at])),
            source=drawn,
            held_out=number % 2 == 1,
        )
        for number in range(sets)
        for drawn in [_tables(number, world)]
        for at in range(plans)
    )


def workload_case(workload: Workload, machine: Machine) -> PlanCase:
    """Return the workload under its control plan, whose dense model is to be measured; raises Infeasible."""
    problem = Problem.of(workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)
    return PlanCase(
        group=workload.name,
        tables=workload.tables,
        batch_size=workload.batch_size,
        dense=workload.dense,
        plan=control_plan(problem),
        source=DrawnBatches(workload, min(PLAN_BATCHES, workload.test_batches)),
        held_out=True,
        model=True,
    )


def _tables(seed: int, world: int) -> DrawnTables:
    """Draw a set: of mixed widths, of one width that interacts by dot products, or with sequences."""
    rng = np.random.default_rng([2027, seed])
    dots, sequences = seed % 8 in (1, 4), seed % 4 in (2, 3)
    width = int(rng.choice([16, 32, 64]))
    local_batch = int(rng.choice([128, 256, 512] if sequences else [256, 512, 1024, 2048, 4096]))
    tables, poolings, skews = [], [], []
    for number in range(int(rng.integers(5, 26))):
        dim = width if dots else int(rng.choice([8, 16, 32, 64, 128]))
        unpooled = sequences and (number == 0 or rng.random() < 0.3)
        rows = min(int(np.exp(rng.uniform(*np.log(_ROWS)))), _WEIGHTS // dim)
        tables.append(
            Table(
                name=f"t{number}",
                rows=rows,
                dim=dim,
                pooling=Pooling.NONE if unpooled else Pooling.SUM,
                features=int(rng.choice([1, 1, 1, 2])),
            )
        )
        poolings.append(float(rng.uniform(2, 20) if unpooled else np.exp(rng.uniform(0.0, np.log(60.0)))))
        skews.append(float(rng.choice([1.0, 1.5, 2.5, 4.0])))
    batch = local_batch * world
    bags = np.array([batch * table.features for table in tables])
    pooled = np.array([table.pooling is not Pooling.NONE for table in tables])
    lookups = bags * poolings
    # Pooled tables as many as drawn, whatever their number; sequences no more than is bearable.
    factors = np.where(
        pooled,
        np.exp(rng.uniform(*np.log(_LOOKUPS))) / max(1.0, lookups[pooled].sum()),
        min(1.0, _SEQUENCE_ROWS / max(1.0, lookups[~pooled].sum())),
    )
    return DrawnTables(
        seed=seed,
        tables=tuple(tables),
        poolings=tuple(np.clip(poolings * factors, 1.0, _LONGEST).tolist()),
        skews=tuple(skews),
        batch_size=batch,
        dense=DenseShape(bottom=(64, width) if dots else (16,), top=(int(rng.choice([16, 64, 256])), 1)),
    )


def _plan(drawn: DrawnTables, world: int, rng: np.random.Generator) -> Plan:
    """Draw a plan: how often each move is made is drawn once, so that plans differ in what they are made of."""
    moves = rng.dirichlet([1.2, 0.5, 0.5, 0.35, 0.35])
    favoured = rng.dirichlet([3.0] * world)
    segments = [piece for table in drawn.tables for piece in _pieces(table, world, rng, moves, favoured)]
    return Plan(world_size=world, segments=tuple(segments))


def _pieces(table: Table, world: int, rng: np.random.Generator, moves: Floats, favoured: Floats) -> tuple[Segment, ...]:
    everyone = tuple(range(world))

    def one() -> Placement:
        return OnRank(rank=int(rng.choice(world, p=favoured)))

    def copied_or(weights: int, otherwise: Placement) -> Placement:
        return Replicated(ranks=everyone) if weights < _COPIED else otherwise

    move = int(rng.choice(5, p=moves))
    if move == 1 and table.pooling is Pooling.SUM and table.dim > 4:
        cut = 4 * int(rng.integers(1, table.dim // 4))
        return whole_table(table, one(), (0, cut)), whole_table(table, one(), (cut, table.dim))
    if move == 2 and table.pooling is Pooling.SUM:
        cut = int(rng.integers(table.rows // 10 + 1, table.rows // 2 + 1))
        hot = copied_or(cut * table.dim, RowWise(ranks=everyone)) if rng.random() < 0.7 else one()
        cold = one() if rng.random() < 0.5 else RowWise(ranks=everyone)
        return row_ranges(table, (cut, hot), (table.rows, cold))
    if move == 3:
        return (whole_table(table, RowWise(ranks=everyone)),)
    return (whole_table(table, copied_or(table.rows * table.dim, one()) if move == 4 else one()),)
