"""Small problems and batches for tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from shardbench.cost.bounds.embedding import alone_load
from shardbench.cost.load import Load
from shardbench.cost.lookups import CountedLookups
from shardbench.model.machine import Constants, Machine, Topology
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.workloads.ranking_cache import Survey
from shardbench.workloads.trace import Bags, Ranking, Split
from shardbench.workloads.workload import DenseShape, Workload

CONSTANTS = Constants(
    hbm_bytes_per_s=1e12, cache_bytes_per_s=4e12, cache_bytes=1e6, cache_reach_ratio=2,
    uvm_bytes_per_s=1e10, host_bytes_per_s=5e10,
    gather_efficiency_ratio=0.5, access_overhead_bytes=32, sort_bytes=32, launch_s=1e-5,
    dispatch_s=2e-5, bag_step_s=1e-7, peer_latency_s=1e-6,
    intra_bytes_per_s=1e11, inter_bytes_per_s=1e10, intra_latency_s=1e-5, inter_latency_s=3e-5, dense_flop_per_s=1e13,
    table_s=0, bag_s=0, page_s=0, sequence_row_s=0, sequence_half_rows=0, host_launch_s=1e-4, host_table_s=1e-6,
    dense_step_s=1e-5, dense_layer_s=1e-6,
    module_s=1e-6, vector_copy_bytes_per_s=2e11, activation_bytes_per_s=1e18,
    lookup_copy_s=1e-9, length_copy_s=2e-9, bucketise_s=3e-9, reduce_bytes_per_s=5e10,
    step_floor_s=0.0,
)  # fmt: skip


def machine(nodes: int = 1, devices: int = 2, hbm: int = 10**9, uvm: int = 10**10) -> Machine:
    """A made-up machine."""
    topology = Topology(nodes=nodes, devices_per_node=devices, hbm_bytes=hbm, uvm_bytes=uvm, host_bytes=10**10)
    return Machine(name="toy", description="toy", device="cpu", topology=topology, constants=CONSTANTS, sources={})


def without_placing(on: Machine) -> Machine:
    """The same machine, on which nothing that is put in place around kernels and exchanges takes time."""
    free = dict.fromkeys(("module_s", "lookup_copy_s", "length_copy_s", "bucketise_s", "step_floor_s"), 0.0)
    free |= dict.fromkeys(("vector_copy_bytes_per_s", "reduce_bytes_per_s"), 1e30)
    return replace(on, constants=replace(on.constants, **free))


class RandomWorkload(Workload):
    """Skewed lookups of random bag lengths; tables numbered in ``unpooled`` are sequences, ``shared`` have features."""

    def __init__(
        self,
        shapes: list[tuple[int, int]],
        batch_size: int,
        pooling: int = 5,
        seed: int = 0,
        unpooled: frozenset[int] = frozenset(),
        shared: dict[int, int] | None = None,
        *,
        distinct: bool = False,
    ) -> None:
        features = shared or {}
        self.name = "random"
        self.tables = tuple(
            Table(
                name=f"table{i}",
                rows=r,
                dim=d,
                pooling=Pooling.NONE if i in unpooled else Pooling.SUM,
                features=features.get(i, 1),
                distinct=distinct and i in unpooled,
            )
            for i, (r, d) in enumerate(shapes)
        )
        self.dense = DenseShape(features=4, bottom=(8, shapes[0][1]), top=(8, 1))
        self.batch_size = batch_size
        self.test_batches = 2
        self.pooling = pooling
        self.seed = seed

    def recipe(self) -> object:
        """See Workload."""
        return {"pooling": self.pooling, "seed": self.seed}

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        rng = np.random.default_rng([self.seed, split is Split.TEST, batch, table])
        features = self.tables[table].features
        lengths = rng.integers(0, 2 * self.pooling, self.batch_size * features)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rows = self.tables[table].rows
        # Squared uniforms: low (hot) ranks are asked for more often.
        values = (rng.random(offsets[-1]) ** 2 * rows).astype(np.int64)
        return Bags(values=values, offsets=offsets, features=features)

    def _survey(self, table: int) -> Survey:
        bags = self._bags(Split.TRAIN, 0, table)
        counts = np.bincount(bags.values, minlength=self.tables[table].rows)
        present = int(np.count_nonzero(bags.sample_lengths))
        rows = self.tables[table].rows
        profile = AccessProfile.from_counts(counts, rows=rows, samples=self.batch_size, present=present)
        return Ranking(bags.values, rows), profile

    def problem(self, on: Machine, *args: Any, **rest: Any) -> Problem:
        """The planning problem of this workload on a machine, with nothing known of the dense model."""
        return replace(super().problem(on, *args, **rest), dense=None)


def bags(*lists: list[int], features: int = 1) -> Bags:
    """Bags of these rows, of so many features a sample."""
    offsets = np.concatenate([[0], np.cumsum([len(b) for b in lists])]).astype(np.int64)
    return Bags(values=np.array([v for b in lists for v in b], dtype=np.int64), offsets=offsets, features=features)


def table_loads(problem: Problem, bags_of: Callable[[int], Bags]) -> Load:
    """Return the counted load of each table alone on one device in HBM, [tables]; ``bags_of(i)`` is a global batch."""
    lookups = [CountedLookups(bags_of(i), table.rows, problem.world_size) for i, table in enumerate(problem.tables)]
    return Load(np.stack([alone_load(problem, i, counted).values for i, counted in enumerate(lookups)]))
