"""What calibration measures beside whole steps: kernel points and message sizes, as plain data."""

from dataclasses import dataclass, replace

import numpy as np

from shardbench.model.machine import Machine, Topology
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.workloads.trace import Bags, bag_offsets

BATCHES = 4
"""Batches that a point goes through in turn, as the iterations of a trial do."""

MESSAGE_BYTES = tuple(2**k for k in range(10, 25, 2))
"""Bytes of the timed all-to-alls and all-reduces: 1 KiB to 16 MiB."""


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
    profile = AccessProfile(rows=point.rows, samples=1, present=1, counts=(1,), row_counts=(1,))
    return Problem.of("calibration", tables, (profile,) * len(tables), machine, batch_size=point.batch)


def kernel_plan(point: KernelCase, problem: Problem) -> Plan:
    """Place all tables whole on the one device, in the point's tier."""
    return Plan(world_size=1, segments=whole_tables(problem.tables, [0] * point.tables, [point.tier] * point.tables))
