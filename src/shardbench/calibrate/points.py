"""What calibration measures: kernel points, probe steps and message sizes, as plain data."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardbench.model.machine import Machine, Topology
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Tier, whole_table, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.workloads.trace import Bags, bag_offsets

BATCHES = 4
"""Batches that a point goes through in turn, as the iterations of a trial do."""

MESSAGE_BYTES = tuple(2**k for k in range(10, 25, 2))
"""Bytes of the timed all-to-alls and all-reduces: 1 KiB to 16 MiB."""

DENSE = DenseShape(bottom=(512, 256, 32), top=(512, 256, 1))


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


@dataclass(frozen=True, kw_only=True)
class ProbeStep:
    """A whole training step on tables of a kernel point's shape, dealt evenly over the ranks.

    Of the tables, ``row_wise`` are dealt row by row and ``replicated`` lie on every rank.
    """

    point: KernelCase
    dense: DenseShape = DENSE
    row_wise: int = 0
    replicated: int = 0
    held_out: bool = False


def kernel_points(*, tiers: tuple[Tier, ...], quick: bool) -> tuple[KernelCase, ...]:
    """Choose points that cover width, reuse, bags short and long, sequences, number of tables, and the launch floor."""
    made: list[KernelCase] = []

    def add(tables: int, rows: int, dim: int, *loads: tuple[int, int, float], unpooled: bool = False) -> None:
        for tier in tiers:
            for batch, pooling, skew in loads:
                # Every fourth point is left out of the fit.
                out = len(made) % 4 == 2
                shape = {"tables": tables, "rows": rows, "dim": dim, "batch": batch, "pooling": pooling}
                made.append(KernelCase(**shape, skew=skew, tier=tier, unpooled=unpooled, held_out=out))

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
    return tuple(made)


def probe_steps(world: int, *, quick: bool) -> tuple[ProbeStep, ...]:
    """Choose steps from nearly empty to some tens of milliseconds; batch sizes are multiples of the world."""

    def tables(*shape: int, unpooled: bool = False) -> KernelCase:
        number, rows, dim, local_batch, pooling, skew = shape
        return KernelCase(
            tables=number * world, rows=rows, dim=dim, batch=local_batch * world, pooling=pooling, skew=skew,
            unpooled=unpooled,
        )  # fmt: skip

    small = DenseShape(bottom=(128, 64, 16), top=(128, 64, 1))
    tiny = DenseShape(bottom=(32,), top=(32, 1))
    wide = DenseShape(bottom=(512, 256, 64), top=(1024, 512, 1))
    middle = tables(4, 100_000, 32, 512, 5, 2)
    steps = [
        ProbeStep(point=tables(1, 1000, 16, 16, 1, 1), dense=small),
        ProbeStep(point=middle),
        ProbeStep(point=tables(8, 100_000, 16, 256, 2, 3), dense=tiny),
        ProbeStep(point=tables(2, 200_000, 64, 1024, 20, 2), dense=wide),
    ]
    if not quick:
        steps += [
            ProbeStep(point=tables(10, 100_000, 16, 512, 1, 3), held_out=True),
            ProbeStep(point=tables(8, 100_000, 16, 512, 10, 2), dense=small),
            ProbeStep(point=tables(2, 100_000, 128, 1024, 8, 1), dense=tiny),
            ProbeStep(point=tables(2, 50_000, 128, 2048, 1, 2), dense=tiny),
            ProbeStep(point=tables(1, 200_000, 64, 512, 20, 3), dense=small),
            ProbeStep(point=tables(5, 100_000, 16, 512, 20, 1), held_out=True),
            ProbeStep(point=middle, row_wise=2),
            ProbeStep(point=tables(4, 50_000, 64, 1024, 5, 1), dense=tiny, row_wise=3 * world),
            ProbeStep(point=tables(4, 100_000, 32, 1024, 20, 2), dense=tiny, row_wise=3 * world, held_out=True),
            ProbeStep(point=tables(4, 4000, 32, 512, 5, 2), row_wise=2, replicated=2),
            ProbeStep(point=tables(2, 50_000, 32, 256, 10, 2, unpooled=True), dense=small),
            ProbeStep(point=tables(1, 100_000, 32, 512, 20, 1, unpooled=True), dense=tiny, held_out=True),
            ProbeStep(point=tables(8, 50_000, 32, 512, 10, 2), dense=wide, held_out=True),
            ProbeStep(point=tables(3, 50_000, 128, 1024, 3, 1), dense=tiny, held_out=True),
        ]
    return tuple(steps)


def bags(point: KernelCase, batch: int, table: int) -> Bags:
    """Draw the lookups of one table in one of the point's batches, always the same."""
    rng = np.random.default_rng([point.tables, point.rows, point.dim, batch, table])
    lengths = np.ones(point.batch, dtype=np.int64) if point.pooling == 1 else rng.poisson(point.pooling, point.batch)
    offsets = bag_offsets(lengths)
    ids = (rng.random(int(offsets[-1])) ** point.skew * point.rows).astype(np.int64)
    return Bags(values=ids, offsets=offsets)


def lookups_of(point: KernelCase, batch: int) -> Callable[[int], Bags]:
    """Return ``bags`` of one batch as a function of the table."""
    return lambda table: bags(point, batch, table)


def on_one_device(machine: Machine) -> Machine:
    """Return the same device alone, without limits of memory: what a kernel point runs on."""
    huge = 2**50
    topology = Topology(nodes=1, devices_per_node=1, hbm_bytes=huge, uvm_bytes=huge, host_bytes=huge)
    return replace(machine, topology=topology)


def problem_of(point: KernelCase, machine: Machine) -> Problem:
    """Pose the point's tables as a problem; its profiles are placeholders."""
    pooling = Pooling.NONE if point.unpooled else Pooling.SUM
    tables = tuple(Table(name=f"t{i}", rows=point.rows, dim=point.dim, pooling=pooling) for i in range(point.tables))
    profile = AccessProfile(rows=point.rows, samples=1, present=1, counts=(1,), row_counts=(1,))
    return Problem.of("calibration", tables, (profile,) * len(tables), machine, batch_size=point.batch)


def kernel_plan(point: KernelCase, problem: Problem) -> Plan:
    """Place all tables whole on the one device, in the point's tier."""
    return Plan(world_size=1, segments=whole_tables(problem.tables, [0] * point.tables, [point.tier] * point.tables))


def probe_plan(probe: ProbeStep, problem: Problem) -> Plan:
    """Place row-wise tables first, then replicated ones, and deal the rest over the ranks."""
    world = problem.world_size
    everyone = tuple(range(world))
    segments = []
    for i, table in enumerate(problem.tables):
        if i < probe.row_wise:
            segments.append(whole_table(table, RowWise(ranks=everyone)))
        elif i < probe.row_wise + probe.replicated:
            segments.append(whole_table(table, Replicated(ranks=everyone)))
        else:
            segments.append(whole_table(table, OnRank(rank=i % world)))
    return Plan(world_size=world, segments=tuple(segments))
