"""Small random problems on machines of random constants, and every placement of their tables, for bounds and search."""

import itertools
from dataclasses import replace

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load, in_uvm
from shardbench.model.machine import Constants, Machine, Topology
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.workloads.trace import Bags

WORLD = 3
BATCH = 12
ENOUGH = 1 << 40


def machine(
    rng: np.random.Generator, nodes: int, devices: int, hbm_bytes: int = ENOUGH, device: str = "cuda"
) -> Machine:
    """Random constants: caches from useless to huge, host memory slower and now and then faster than HBM."""
    # Without a draw from ``rng``: half of the machines pay what only GPUs do.
    gpu = np.random.default_rng(rng.bit_generator.state["state"]["state"] % 2**32)
    on = float(gpu.integers(2))
    own = {
        "sort_launch_s": on * 1e-6, "warp_s": on * 1e-7, "gradient_ratio": 1.0 - 0.6 * on * gpu.random(),
        "uvm_hit_ratio": gpu.random() if on else None, "uvm_update_ratio": 1.0 + on * gpu.random(),
    }  # fmt: skip
    return Machine(
        name="m",
        description="",
        device=device,
        topology=Topology(
            nodes=nodes, devices_per_node=devices, hbm_bytes=hbm_bytes, uvm_bytes=ENOUGH, host_bytes=ENOUGH
        ),
        constants=Constants(
            **own,
            hbm_bytes_per_s=1e9,
            cache_bytes_per_s=float(10 ** rng.uniform(8, 11)),
            cache_bytes=float(10 ** rng.uniform(1, 5)),
            cache_reach_ratio=float(rng.uniform(0.5, 4.0)),
            uvm_bytes_per_s=float(10 ** rng.uniform(6, 10)),
            host_bytes_per_s=1e9,
            gather_efficiency_ratio=float(rng.uniform(0.1, 1.0)),
            access_overhead_bytes=float(rng.choice([0.0, 32.0])),
            sort_bytes=float(rng.choice([0.0, 128.0])),
            launch_s=float(rng.choice([0.0, 1e-6, 1e-5])),
            dispatch_s=float(rng.choice([0.0, 1e-6, 1e-4])),
            bag_step_s=float(rng.choice([0.0, 1e-7, 1e-5])),
            table_s=float(rng.choice([0.0, 1e-6, 1e-5])),
            bag_s=float(rng.choice([0.0, 1e-8, 1e-6])),
            page_s=float(rng.choice([0.0, 1e-8, 1e-6])),
            sequence_row_s=float(rng.choice([0.0, 1e-8, 1e-6])),
            sequence_half_rows=float(rng.choice([0.0, 5.0])),
            host_launch_s=1e-5,
            host_table_s=1e-6,
            intra_bytes_per_s=1e9,
            inter_bytes_per_s=1e9,
            intra_latency_s=0.0,
            inter_latency_s=0.0,
            peer_latency_s=0.0,
            dense_flop_per_s=1e9,
            dense_step_s=0.0,
            dense_layer_s=0.0,
            module_s=0.0,
            vector_copy_bytes_per_s=1e18,
            activation_bytes_per_s=1e18,
            lookup_copy_s=0.0,
            length_copy_s=0.0,
            bucketise_s=0.0,
            reduce_bytes_per_s=1e18,
            step_floor_s=0.0,
        ),
        sources={},
    )


def random_problem(seed: int, tables: int, hbm: int = ENOUGH) -> tuple[Problem, list[Bags]]:
    """A problem with one counted batch; lengths may sit on few samples, rows on few ids."""
    rng = np.random.default_rng(seed)
    shapes = tuple(
        Table(name=f"t{i}", rows=int(rng.integers(WORLD, 60)), dim=4 * int(rng.integers(2, 9))) for i in range(tables)
    )
    bags, profiles = [], []
    for table in shapes:
        lengths = rng.integers(0, 6, BATCH) * (rng.random(BATCH) < rng.choice([0.2, 1.0]))
        values = np.minimum((rng.random(int(lengths.sum())) ** 3 * table.rows).astype(np.int64), table.rows - 1)
        bags.append(Bags(values=values, offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)))
        counts = np.bincount(values, minlength=1)
        profiles.append(AccessProfile.from_counts(counts, rows=table.rows, samples=BATCH, present=BATCH))
    optimizer = list(Optimizer)[seed % 3]
    problem = Problem.of(
        "p", shapes, tuple(profiles), machine(rng, 1, WORLD, hbm), batch_size=BATCH, optimizer=optimizer
    )
    return problem, bags


def enumerated_ms(load: Load, constants: Constants, world: int, uvm: bool) -> Floats:
    """Slowest device of every placement of whole tables (and tiers, if ``uvm``)."""
    tiers = (load, in_uvm(load)) if uvm else (load,)
    places = list(itertools.product(range(world), range(len(tiers))))
    chosen = np.array(list(itertools.product(range(len(places)), repeat=len(load.bags))))
    rank, tier = np.array(places)[chosen].transpose(2, 0, 1)
    loads = np.array([x.values for x in tiers])[tier, np.arange(len(load.bags))]
    held = np.stack([loads * (rank == device)[..., None] for device in range(world)], axis=1)
    together = Load(held.sum(axis=2))
    together.chain[...] = Load(held).chain.max(axis=2)
    return embedding_ms(together, constants).max(axis=1)


def of_tables(tables: int, on: Machine, pooling: Pooling = Pooling.SUM, rows: int = 10) -> Problem:
    """So many equal tables of 16 bytes a row, about which nothing is known."""
    shapes = tuple(Table(name=f"t{i}", rows=rows, dim=4, pooling=pooling) for i in range(tables))
    profile = AccessProfile(rows=rows, samples=1, present=0, counts=(), row_counts=())
    return Problem.of("p", shapes, (profile,) * tables, on, batch_size=BATCH)


def ids_bags(ids: list[int]) -> Bags:
    """The lookups of one batch, one a sample as far as they go."""
    offsets = np.minimum(np.arange(BATCH + 1), len(ids))
    return Bags(values=np.array(ids, dtype=np.int64), offsets=offsets)


def only(on: Machine, **constants: float) -> Machine:
    """The machine with nothing that costs time but what is named, and host memory."""
    free = dict.fromkeys(("hbm_bytes_per_s", "cache_bytes_per_s", "cache_bytes", "uvm_bytes_per_s"), 1e30)
    free |= dict.fromkeys(
        ("access_overhead_bytes", "sort_bytes", "launch_s", "sort_launch_s", "dispatch_s", "bag_step_s", "warp_s"), 0.0
    )
    free |= dict.fromkeys(("table_s", "bag_s", "page_s", "sequence_row_s"), 0.0)
    return replace(on, constants=replace(on.constants, **(free | {"gather_efficiency_ratio": 1.0} | constants)))
