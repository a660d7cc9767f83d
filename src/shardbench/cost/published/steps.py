"""Predicts the time of a published model's training step on some GPUs, by the cost model."""

from dataclasses import replace

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.collectives import collective_s, pairwise, world_reduction
from shardbench.cost.costmodel import BACKWARD_DENSE, backward_work_s, forward_work_s, work_ms
from shardbench.cost.load import VECTOR_BYTES, Load, segment_load
from shardbench.cost.published.points import PublishedModel, power_law_distinct
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.table import Precision

ALPHA = 1.05
DEVICES_A_NODE = 8


def model_loads(model: PublishedModel, batch: int) -> tuple[Load, Floats]:
    """Return the load of every table on one device, [tables], and the columns of its features' vectors."""
    count = sum(t.count for t in model.tables)
    load, columns, at = Load.zeros(count), np.zeros(count), 0
    for kind in model.tables:
        lookups = float(batch * sum(kind.hotness))
        alone = segment_load(
            lookups=lookups,
            distinct=power_law_distinct(kind.rows, lookups, ALPHA),
            bags=float(batch * len(kind.hotness)),
            longest_bag=float(max(kind.hotness)),
            rows=float(kind.rows),
            columns=kind.dim,
            tier=Tier.HBM,
            precision=Precision.FP32,
            # Adagrad's accumulator is as wide as the row.
            state=4 * kind.dim,
        )
        load.add_at(np.arange(at, at + kind.count), alone)
        columns[at : at + kind.count] = kind.dim * len(kind.hotness)
        at += kind.count
    return load, columns


def step_s(model: PublishedModel, gpus: int, batch: int, machine: Machine) -> float:
    """Return the seconds of a step: whole tables greedily placed by work, one launch a table and pass, no overlap."""
    constants = machine.constants
    topology = replace(machine.topology, nodes=-(-gpus // DEVICES_A_NODE), devices_per_node=min(gpus, DEVICES_A_NODE))
    machine = replace(machine, topology=topology)
    loads, columns = model_loads(model, batch)
    rank = _greedy(work_ms(loads, constants) + 2e3 * constants.launch_s, gpus)
    ranks = Load.zeros(gpus)
    ranks.add_at(rank, loads)
    tables = np.bincount(rank, minlength=gpus)
    forward = constants.launch_s * tables + forward_work_s(ranks, constants)
    backward = constants.launch_s * tables + backward_work_s(ranks, constants)
    sent = np.bincount(rank, weights=columns, minlength=gpus) * batch / gpus * VECTOR_BYTES
    exchange = pairwise(np.repeat(sent[:, None], gpus, axis=1), topology)
    layers = (model.numerical + round(columns.sum() / model.interaction_stride), *model.mlp, 1)
    weights = sum(a * b for a, b in zip(layers[:-1], layers[1:]))
    dense = (1.0 + BACKWARD_DENSE) * batch / gpus * 2.0 * weights / constants.dense_flop_per_s
    reduction = world_reduction(float(weights * VECTOR_BYTES), 2.0, topology)
    return float(
        forward.max()
        + backward.max()
        + dense
        + 2.0 * collective_s(exchange, machine)
        + collective_s(reduction, machine)
    )


def _greedy(times: Floats, ranks: int) -> Ints:
    """Return the rank of each table: longest first, to the rank with the least."""
    total, rank = np.zeros(ranks), np.zeros(len(times), dtype=np.int64)
    for table in np.argsort(-times, kind="stable").tolist():
        rank[table] = int(total.argmin())
        total[rank[table]] += times[table]
    return rank
