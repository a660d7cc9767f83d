"""Predicts the time of a published training step on some GPUs, by the cost model, part by part."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.collectives import Collective, all_reduce_s, captured, collective_s, node_reduction, pairwise
from shardbench.cost.costmodel import backward_work_s, copy_bytes_per_s, forward_work_s
from shardbench.cost.dense import PRODUCTS, Format, Product, products_s
from shardbench.cost.load import Load, segment_load
from shardbench.cost.published.points import (
    ModelTables,
    PublishedModel,
    PublishedPlan,
    PublishedStep,
    power_law_distinct,
    published,
)
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.table import Precision

HOST_CALLS = 6
"""Collectives that a host starts on several GPUs: splits, lengths, lookups, vectors, gradients and an all-reduce."""
FILL = 2.0
"""Steps that the begin of a timed run takes beside its own: 269 of 323 ms a step are one iteration (PR 3807)."""
FREQUENT_ROWS = 8192
"""Rows of a table up to which a hybrid embedding has them all on every GPU."""
WEIGHT_BYTES = 4
"""A lookup's own weight, fp32."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Seconds of a step's parts; what is hidden is none of them."""

    input: float
    lookup: float
    output: float
    dense: float
    assembly: float
    output_backward: float
    lookup_backward: float
    all_reduce: float
    fill: float = 0.0
    """A step's share of filling the pipeline, where that was timed."""
    floor: float = 0.0
    """What the host's own time adds to all of these."""

    @property
    def total(self) -> float:
        """Return the seconds of the step."""
        return sum(float(getattr(self, part.name)) for part in fields(self))


@dataclass(frozen=True, eq=False)
class Placed:
    """Loads and bytes of a step's ranks; vectors counted as columns a sample of the whole batch."""

    load: Load
    """[gpus]; vectors as fp32."""
    weighted: Load
    """The part of the load whose lookups have weights."""
    columns: Floats
    """Columns of vectors that each rank sends to all samples, [gpus]."""
    node_columns: Floats
    """Columns of vectors that each node's ranks reduce among them and then send, [nodes]."""
    tables: Floats
    """Tables and features that each rank goes through, [gpus]."""
    replicated: float
    """Weights of tables on every rank."""
    rows: float
    """Rows that a rank fetches one by one, times their columns."""


@lru_cache(maxsize=64)
def tables_of(model: PublishedModel) -> tuple[ModelTables, ...]:
    """Return every table of a model, in order; draws ask for them thousands of times."""
    return tuple(replace(kind, count=1) for kind in model.tables for _ in range(kind.count))


def table_load(table: ModelTables, model: PublishedModel, batch: float, ways: int, tier: Tier = Tier.HBM) -> Load:
    """Return the load of one of ``ways`` equal parts by rows of a table in a tier, for ``batch`` samples."""
    rows, lookups = table.rows / ways, batch * sum(table.hotness) / ways
    distinct = distinct_rows(table.rows, batch * sum(table.hotness), model.alpha) / ways
    state = WEIGHT_BYTES * table.dim if model.state == "element" else 0
    return segment_load(
        lookups=lookups,
        distinct=distinct,
        bags=batch * len(table.hotness),
        longest_bag=float(max(table.hotness)),
        rows=rows,
        columns=table.dim,
        features=len(table.hotness),
        tier=tier,
        precision=Precision.FP16 if table.half else Precision.FP32,
        state=state,
    )


def distinct_rows(rows: int, lookups: float, alpha: float | None) -> float:
    """Return the expected distinct rows of independent lookups, uniform or of a power law."""
    if alpha is not None:
        return power_law_distinct(rows, lookups, alpha)
    return float(-rows * np.expm1(lookups * np.log1p(-1.0 / rows))) if rows > 1 else 1.0


@lru_cache(maxsize=512)
def place(step: PublishedStep) -> Placed:
    """Place a published step's tables on its GPUs, as its plan says, and count.

    Raises BadInput for tables in host memory under another plan than ``table_wise``.
    """
    if step.in_uvm and step.plan != "table_wise":
        raise BadInput(f"step {step.point}: tables in host memory are placed under the plan table_wise alone")
    model, tables = published().models[step.model], tables_of(published().models[step.model])
    gpus, batch = step.gpus, float(step.batch_size)
    local = gpus // step.nodes
    placed = Placed(
        load=Load.zeros(gpus), weighted=Load.zeros(gpus), columns=np.zeros(gpus), node_columns=np.zeros(step.nodes),
        tables=np.zeros(gpus), replicated=0.0, rows=0.0,
    )  # fmt: skip

    def put(table: ModelTables, ranks: Ints, ways: int, samples: float, tier: Tier = Tier.HBM) -> None:
        part = table_load(table, model, samples, ways, tier)
        placed.load.add_at(ranks, part)
        placed.tables[ranks] += len(table.hotness)
        if table.weighted:
            placed.weighted.add_at(ranks, part)

    def copied(table: ModelTables) -> float:
        put(table, np.arange(gpus), 1, batch / gpus)
        return float(table.rows * table.dim)

    replicated = rows = 0.0
    plan = published().plans.get(step.plan)
    if plan is not None:
        replicated = sum(copied(tables[t]) for t in plan.replicated)
        for number, buckets in _dealt(plan):
            table, ways = tables[number], len(buckets)
            columns = table.dim * len(table.hotness)
            for bucket in buckets:
                if plan.two_level:
                    put(table, np.arange(bucket * local, (bucket + 1) * local), ways * local, batch)
                    placed.node_columns[bucket] += columns
                else:
                    put(table, np.array([bucket]), ways, batch)
                    placed.columns[bucket] += columns
    elif step.plan == "table_wise":
        own = Load(np.stack([table_load(t, model, batch, 1).values for t in tables]))
        for number, (table, rank) in enumerate(zip(tables, _greedy(own, gpus))):
            put(table, np.array([rank]), 1, batch, Tier.UVM if number in step.in_uvm else Tier.HBM)
            placed.columns[rank] += table.dim * len(table.hotness)
    elif step.plan == "row_wise":
        for table in tables:
            put(table, np.arange(gpus), gpus, batch)
            # One-hot lookups are exchanged row by row: a rank sends its share of the vectors.
            placed.columns[:] += table.dim * sum(table.hotness) / gpus
    else:
        for table in tables:
            if table.rows <= FREQUENT_ROWS:
                replicated += copied(table)
            else:
                distinct = distinct_rows(table.rows, batch / gpus * sum(table.hotness), model.alpha)
                part = table_load(table, model, batch, gpus)
                placed.load.add_at(np.arange(gpus), part)
                placed.tables[:] += 1
                rows += distinct * table.dim
    return replace(placed, replicated=replicated, rows=rows)


def _dealt(plan: PublishedPlan) -> list[tuple[int, list[int]]]:
    """Return each table that is not replicated with the buckets that hold equal parts of it."""
    tables = sorted({t for bucket in plan.buckets for t in bucket})
    return [(t, [b for b, bucket in enumerate(plan.buckets) for table in bucket if table == t]) for t in tables]


def _greedy(loads: Load, ranks: int) -> list[int]:
    """Return the rank of each table: largest first, to the rank with the least lookups' bytes."""
    work = loads.lookup_bytes + loads.bag_bytes + 2.0 * loads.distinct_bytes
    total, rank = np.zeros(ranks), [0] * len(work)
    for table in np.argsort(-work, kind="stable").tolist():
        rank[table] = int(total.argmin())
        total[rank[table]] += work[table]
    return rank


def step_parts(step: PublishedStep, machine: Machine, shares: Mapping[str, float]) -> StepParts:
    """Return the seconds of each part of a published step on GPUs with the machine's constants.

    Of the ``shares`` those of the host's time are asked for, for a step of TorchRec that is no recorded graph.
    """
    data, placed = published(), place(step)
    software, model = data.executors[step.executor], data.models[step.model]
    topology = replace(machine.topology, nodes=step.nodes, devices_per_node=step.gpus // step.nodes)
    machine = replace(machine, topology=topology)
    machine = captured(machine) if software.graph else machine
    constants = machine.constants
    width = Precision(step.exchange).bytes
    samples = step.batch_size / step.gpus
    load = with_vectors_of(placed.load, width)
    chains = software.kernels_a_table * constants.launch_s * placed.tables / 2.0
    copy_s = 1.0 / constants.vector_copy_bytes_per_s

    sent = placed.columns * step.batch_size * width
    exchange, reduced = _exchange(placed, step, width, machine)
    rows_bytes = placed.rows * width
    forward = constants.launch_s + chains + forward_work_s(load, constants) + constants.bag_step_s * load.chain
    sorts_s = min(1.0, software.sort_ratio) * constants.sort_launch_s
    backward = constants.launch_s + sorts_s + chains + backward_work_s(load, constants)
    backward += (software.sort_ratio - 1.0) * constants.sort_bytes * load.all_lookups / constants.hbm_bytes_per_s
    backward += software.materialised_passes * load.gradient_bytes * copy_s
    if step.weight_gradient and placed.weighted.lookups.any():
        backward += forward_work_s(placed.weighted, constants)
    held_bytes = sent.max() + placed.node_columns.max() * step.batch_size * step.nodes / step.gpus * width
    passed_s = (held_bytes + rows_bytes) * copy_s * (step.gpus > 1)
    output = exchange + reduced + software.vector_passes_forward * passed_s
    output_backward = exchange + reduced + software.vector_passes_backward * passed_s

    assembled = columns_of(model) * samples * Format(step.dense).bytes
    all_reduce = all_reduce_s(_reduced_bytes(model, placed, step), machine)
    # It goes on beside the backward pass.
    hidden = float(backward.max()) + output_backward
    lookups_bytes = load.all_lookups.max() * INDEX_BYTES + placed.weighted.all_lookups.max() * WEIGHT_BYTES
    input_s = lookups_bytes / copy_bytes_per_s(machine)
    dense = model_dense_s(step, machine)
    if software.hides_gradient_exchange:
        products = layers(model, samples)
        output_backward -= min(exchange + reduced, products_s(products, machine, Format(step.dense)))
    parts = StepParts(
        input=0.0 if software.hides_input else input_s,
        lookup=float(forward.max()),
        output=output,
        dense=dense,
        assembly=software.assembly_passes * assembled * copy_s,
        output_backward=output_backward,
        lookup_backward=float(backward.max()),
        all_reduce=max(0.0, all_reduce - hidden),
    )
    host_s = shares["host_step_s"] + shares["host_call_s"] * HOST_CALLS * (step.gpus > 1)
    floor = 0.0 if software.graph else host_s * software.host_ratio
    parts = replace(parts, floor=max(0.0, floor - parts.total))
    return replace(parts, fill=parts.total * FILL / step.batches) if step.batches else parts


def with_vectors_of(load: Load, width: int) -> Load:
    """Return the load with vectors and gradients of ``width`` bytes a number instead of four.

    Published software writes vectors in the format that it exchanges, whose copies are its ``passes``; TorchRec's
    kernels, which the counter counts, write fp32 in any case and codecs convert it (``Account.converted``).
    """
    scaled = Load(load.values.copy())
    ratio = width / WEIGHT_BYTES
    scaled.bag_bytes[...] *= ratio
    scaled.gradient_bytes[...] *= ratio
    scaled.gradient_first_bytes[...] *= ratio
    scaled.gradient_set_bytes2[...] *= ratio**2
    return scaled


def _exchange(placed: Placed, step: PublishedStep, width: int, machine: Machine) -> tuple[float, float]:
    """Return the seconds of one exchange of vectors, and of the reduction inside nodes before it."""
    gpus, topology = step.gpus, machine.topology
    if gpus == 1:
        return 0.0, 0.0
    sent = placed.columns * (step.batch_size / gpus) * width
    rows = placed.rows * width / gpus
    each = pairwise(np.repeat(sent[:, None], gpus, axis=1) + rows, topology)
    if not placed.node_columns.any():
        return collective_s(each, machine), 0.0
    local = topology.devices_per_node
    whole = placed.node_columns * step.batch_size * width
    reduced = collective_s(node_reduction(whole, topology), machine)
    # Each GPU of a node then holds the sums of its share of the samples and sends them across.
    across = np.repeat(whole / local, local) * (topology.nodes - 1) / topology.nodes
    into = np.full(gpus, whole.sum() / gpus) * (topology.nodes - 1) / topology.nodes
    zeros = np.zeros(gpus)
    cross = Collective(sent_intra=zeros, sent_inter=across, received_intra=zeros, received_inter=into)
    return collective_s(cross, machine), reduced


def _reduced_bytes(model: PublishedModel, placed: Placed, step: PublishedStep) -> float:
    """Return the bytes of gradients that all ranks reduce: of the dense layers and of replicated tables."""
    if step.gpus == 1:
        return 0.0
    weights = sum(p.k * p.n for p in layers(model, 1.0))
    return Format(step.dense).bytes * (weights + placed.replicated)


@lru_cache(maxsize=64)
def columns_of(model: PublishedModel) -> int:
    """Return the columns of all vectors that the tables of a model give for a sample."""
    return sum(t.dim * len(t.hotness) for t in tables_of(model))


@lru_cache(maxsize=512)
def layers(model: PublishedModel, samples: float, bottom_samples: float | None = None) -> tuple[Product, ...]:
    """Return the forward product of every layer of the dense model, for so many samples on a rank.

    The bottom layers see ``bottom_samples`` where those are stated.
    """
    columns = columns_of(model)
    dims = (model.numerical, *model.bottom)
    products = [Product(m=bottom_samples or samples, k=i, n=o) for i, o in zip(dims[:-1], dims[1:])]
    last = model.bottom[-1] if model.bottom else model.numerical
    vectors = sum(len(t.hotness) for t in tables_of(model)) + 1
    if model.interaction == "dot":
        products.append(Product(m=samples * vectors, k=last, n=vectors))
        width = last + vectors * (vectors - 1) // 2
    elif model.interaction == "pool":
        width = last + round(columns / model.stride)
    else:
        width = last + columns
    for _ in range(model.cross_layers):
        products += [Product(m=samples, k=width, n=model.cross_rank), Product(m=samples, k=model.cross_rank, n=width)]
    dims = (width, *model.top)
    return (*products, *(Product(m=samples, k=i, n=o) for i, o in zip(dims[:-1], dims[1:])))


def model_dense_s(step: PublishedStep, machine: Machine) -> float:
    """Return the seconds of a published model's dense layers, forward and backward."""
    data, format_ = published(), Format(step.dense)
    software, model = data.executors[step.executor], data.models[step.model]
    samples = step.batch_size / step.gpus
    products = layers(model, samples, step.batch_size if software.bottom_on_one else None)
    constants = machine.constants
    results = sum(p.m * p.n for p in products) * software.elementwise_passes
    columns = columns_of(model) + (model.bottom[-1] if model.bottom else 0)
    interaction_numbers = (
        samples * columns * software.interaction_passes * max(model.cross_layers, int(model.interaction == "dot"))
    )
    moving_s = (results + interaction_numbers) * format_.bytes / constants.vector_copy_bytes_per_s
    fixed = constants.dense_step_s + len(products) * constants.dense_layer_s
    return fixed + PRODUCTS * products_s(products, machine, format_) + moving_s
