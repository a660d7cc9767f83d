"""All cells of the support table: a row of the table, a way in which a plan comes to TorchRec, and what is run."""

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlanLoader, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.train_pipeline.pipeline_stage import PipelineStage, SparseDataDistUtil
from torchrec.distributed.train_pipeline.train_pipelines import (
    EvalPipelineSparseDist,
    PrefetchTrainPipelineSparseDist,
    StagedTrainPipeline,
    TrainPipelineBase,
    TrainPipelineFusedSparseDist,
    TrainPipelineSemiSync,
    TrainPipelineSparseDist,
)
from torchrec.distributed.types import BoundsCheckMode, CacheParams, KeyValueParams, ShardingPlan
from torchrec.modules.embedding_configs import DataType

from shardbench.model.plan import OnRank, RowWise
from shardbench.torchrec import ShardBenchPlanner, load_tables, read_tables
from torchrec_cells import models
from torchrec_cells.models import BATCH, FORMATS, MEAN, WORLD, Lookups, bag_configs, make_model, of_release
from torchrec_cells.training import (
    BOTH,
    CPU,
    INSIDE,
    WAYS,
    Setup,
    Wrong,
    carry_over,
    compare_step,
    compare_tables,
    evaluated,
    go_on,
    is_table,
    load,
    plain,
    reference_optimizer,
    segment,
    shard,
    shown,
    train,
    whole_state,
)

META = torch.device("meta")
ON_CPUS = {"compute_device": "cpu", "hbm_cap": 0}
FUSED_ONLY = {f"t{i}": ParameterConstraints(compute_kernels=["fused"]) for i in range(4)}


@dataclass(frozen=True)
class Case:
    """A cell of the table."""

    part: str
    row: str
    way: str
    run: Callable[[], None]
    not_on_cpu: str = ""
    """What TorchRec or FBGEMM say where only a GPU can do it: a pattern."""
    refused: str = ""
    """What torch or TorchRec say where they refuse it on any device, so that a user knows why: a pattern."""

    @property
    def name(self) -> str:
        return f"{self.part}: {self.row}: {self.way}"


def _rows(part: str, rows: Mapping[str, Setup]) -> Iterator[Case]:
    """Yield the cells of rows that every way is tried with."""
    for row, setup in rows.items():
        for way, plans in WAYS.items():
            run = partial(train, plans, setup)
            yield Case(part, row, way, run, NOT_ON_CPU.get(row, ""), REFUSED.get(row, ""))


def _with(*sharders: tuple[str, str]) -> Callable[[], list[Any]]:
    """Return what makes TorchRec's own sharders and some of its distributed modules."""
    return lambda: [*(of_release(f"distributed.{path}", name)() for path, name in sharders), *get_default_sharders()]


def _by_rows(config: Any, number: int) -> list[Any]:
    """Place tables whole or by rows: with row-wise Adagrad a shard of columns would have a moment of its own."""
    return [segment(config, OnRank(rank=0) if number % 2 else RowWise(ranks=BOTH))]


def _by_columns(config: Any, number: int) -> list[Any]:
    """Place tables whole or by columns, and none on all ranks."""
    half = config.embedding_dim // 2
    if number % 2:
        return [segment(config, OnRank(rank=1))]
    return [
        segment(config, OnRank(rank=1), columns=(0, half)),
        segment(config, OnRank(rank=0), columns=(half, config.embedding_dim)),
    ]


SHARDED = {
    f"t{i}": ParameterConstraints(sharding_types=[kind])
    for i, kind in enumerate(("table_wise", "row_wise", "column_wise", "table_wise"))
}
NO_ROWS = {
    f"t{i}": ParameterConstraints(sharding_types=[kind])
    for i, kind in enumerate(("table_wise", "data_parallel", "column_wise", "table_wise"))
}
ROWS_ALONE = {f"t{i}": ParameterConstraints(sharding_types=["row_wise"]) for i in range(4)}
UNCUT = {
    f"t{i}": ParameterConstraints(sharding_types=[kind]) for i, kind in enumerate(("table_wise", "column_wise") * 2)
}


def _in_ranges(config: Any, number: int, *, ranks: tuple[int, int] = BOTH) -> list[Any]:
    """Cut a table's rows in two."""
    ranges = ((0, 9), (9, config.num_embeddings))
    return [segment(config, OnRank(rank=rank), rows=rows) for rank, rows in zip(ranks, ranges)]


def _with_repeats(model: torch.nn.Module, optimizer: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Train where what TorchRec repeats the vectors of sequences by has a gradient, as it has on GPUs."""
    vector = torch.ones(1, requires_grad=True)
    order, lengths = torch.tensor([0, 0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    _, twice, _ = torch.ops.fbgemm.permute_1D_sparse_data(order, lengths, vector, None, 2)
    twice.sum().backward()
    if vector.grad is None:
        raise RuntimeError("fbgemm::permute_1D_sparse_data has no gradient on CPUs: tables would stay as they are")
    yield from plain(model, optimizer, batches)


def _dealt(config: Any, number: int) -> list[Any]:
    return [segment(config, RowWise(ranks=BOTH))]


def _managed(**how: Any) -> Setup:
    build = partial(models.managed, **how)
    return Setup(build=build, managed=True, constraints={}, placements=_dealt, cut=_dealt)


MODULES = {
    "pooled": Setup(),
    "unpooled": Setup(build=models.sequences),
    "weighted": Setup(build=partial(models.bags, weighted=True), weighted=True),
    "mean pooling": Setup(build=partial(models.bags, **MEAN), constraints=NO_ROWS, placements=_by_columns),
    "mean pooling, all tables by rows": Setup(
        build=partial(models.bags, **MEAN), constraints=ROWS_ALONE, placements=_dealt, cut=_dealt
    ),
    "mean pooling, one of the tables by rows": Setup(build=partial(models.bags, **MEAN)),
    "tables with several features": Setup(build=models.shared_tables),
    "a feature looked up in two tables": Setup(build=models.shared_features),
    "several modules": Setup(build=models.several),
    "tables of one name in two modules": Setup(build=models.same_names),
    "feature processors": Setup(build=models.processed, longest={f"f{i}": 5 for i in range(4)}),
    "feature processors in a collection": Setup(
        build=partial(models.processed, collection=True), longest={f"f{i}": 5 for i in range(4)}
    ),
    "managed collision, pooled": _managed(),
    "managed collision, unpooled": _managed(pooled=False),
    "managed collision, pooled, default buckets": _managed(collisions=partial(models.slots, buckets=1)),
    "managed collision, pooled, more buckets than ranks": _managed(collisions=partial(models.slots, buckets=2 * WORLD)),
    "HashZch, pooled": _managed(collisions=models.hashed),
    "HashZch, unpooled": _managed(pooled=False, collisions=models.hashed),
    **{
        f"in-training pruning (ITEP), {said}": Setup(
            build=partial(models.pruned, pooled=said == "pooled"), constraints={}, placements=_by_columns,
            sharders=_with(
                ("itep_embeddingbag", "ITEPEmbeddingBagCollectionSharder"),
                ("itep_embeddingbag", "ITEPEmbeddingCollectionSharder"),
            ),
        )
        for said in ("pooled", "unpooled")
    },
    "prioritized communication (PEC)": Setup(
        build=models.prioritized, constraints={}, sharders=_with(("pec_embedding", "PECEmbeddingCollectionSharder"))
    ),
    "embedding tower": Setup(build=models.towers),
    "collection of towers": Setup(build=partial(models.towers, collection=True)),
    **{
        f"{said}, sharded as one": Setup(
            build=partial(models.towers, collection=collection), constraints={},
            sharders=_with(
                ("embedding_tower_sharding", "EmbeddingTowerSharder"),
                ("embedding_tower_sharding", "EmbeddingTowerCollectionSharder"),
            ),
        )
        for said, collection in (("embedding tower", False), ("collection of towers", True))
    },
    "variable batches (VBE), pooled": Setup(
        given=models.condensed, constraints=UNCUT, placements=_by_columns, cut=_in_ranges
    ),
    "variable batches (VBE), mean pooling": Setup(
        build=partial(models.bags, **MEAN), constraints=UNCUT, placements=_by_columns, cut=_in_ranges,
        given=models.condensed,
    ),
    "variable batches (VBE), a table by rows": Setup(
        given=models.condensed, constraints=SHARDED, placements=_by_rows, cut=_dealt
    ),
    "variable batches (VBE), a table copied": Setup(given=models.condensed),
    "variable batches (VBE), unpooled": Setup(build=models.sequences, given=models.condensed, loop=_with_repeats),
    "variable batches (VBE), unpooled, evaluated": Setup(
        build=models.sequences, given=models.condensed, loop=lambda model, _, batches: evaluated(model, batches),
        trained=False, checkpoint=False,
    ),
    "weighted mean pooling, on CPUs": Setup(
        build=partial(models.bags, weighted=True, **MEAN), weighted=True, constraints={}, topology=ON_CPUS,
        placements=_by_columns, cut=_dealt, given=models.times_length,
    ),
    "uneven pooling": Setup(longest={"f0": 1, "f1": 40, "f2": 0, "f3": 7}),
    "tables on the meta device": Setup(device=META),
    "planned for CPUs": Setup(constraints={}, topology=ON_CPUS),
    "planned for CPUs, unpooled": Setup(build=models.sequences, constraints={}, topology=ON_CPUS),
}  # fmt: skip

NUMBERS = {
    f"{name} weights": Setup(build=partial(models.bags, data_type=FORMATS[name]), atol=atol, **more)
    for name, atol, more in (
        ("fp32", 2e-6, {}),
        ("fp16", 2e-3, {}),
        ("bf16", 2e-2, {}),
        ("int8", 5e-2, {"constraints": {}, "topology": ON_CPUS}),
    )
}


def _dense(plan: ShardingPlan) -> None:
    for module in plan.plan.values():
        for how in module.values():
            how.compute_kernel = "dense"


OPTIMIZERS = {
    "SGD, fused": Setup(),
    "Adagrad, fused": Setup(optimizer="Adagrad"),
    "row-wise Adagrad, fused": Setup(
        optimizer="row-wise Adagrad",
        constraints={
            f"t{i}": ParameterConstraints(sharding_types=[kind])
            for i, kind in enumerate(["table_wise", "row_wise"] * 2)
        },
        placements=_by_rows,
        cut=_by_rows,
    ),
    **{f"{name}, fused": Setup(optimizer=name) for name in ("Adam", "AdamW", "LAMB", "PartialRowWiseLAMB", "LarsSGD")},
    "Lion, a class of one's own, fused": Setup(optimizer="Lion"),
    **{
        f"{name}, dense kernel": Setup(optimizer=name, in_backward=False, changed=_dense)
        for name in ("SGD", "Adagrad", "Adam", "AdamW")
    },
    "Lion, a class of one's own, dense kernel": Setup(optimizer="Lion", in_backward=False, changed=_dense),
}


def _pipelined(
    kind: Callable[..., Any], model: torch.nn.Module, optimizer: Any, batches: Iterator[Any]
) -> Iterator[Any]:
    # Some have no stages before the sharded modules, as the evaluating one of 1.6.1.
    ahead = {"pipeline_postproc": True} if "pipeline_postproc" in inspect.signature(kind).parameters else {}
    pipeline = kind(model, optimizer, CPU, **ahead)
    while True:
        try:
            yield pipeline.progress(batches)
        except StopIteration:
            return


def _staged(model: torch.nn.Module, optimizer: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Train with the stages that SparseDataDistUtil documents."""
    streams = torch.get_device_module(CPU)
    ahead = SparseDataDistUtil(model, streams.Stream(), pipeline_postproc=True)
    first = PipelineStage("data_copy", lambda batch: batch.to(CPU, non_blocking=True), streams.Stream())
    second = PipelineStage(
        "start_sparse_data_dist", ahead.start_sparse_data_dist, ahead.data_dist_stream, ahead.wait_sdd_fill_callback
    )
    pipeline = StagedTrainPipeline([first, second])
    while (batch := pipeline.progress(batches)) is not None:
        yield from plain(model, optimizer, iter([batch]))


LOOPS = {
    "DistributedModelParallel": Setup(),
    "TrainPipelineBase": Setup(loop=partial(_pipelined, TrainPipelineBase)),
    "TrainPipelineSparseDist": Setup(loop=partial(_pipelined, TrainPipelineSparseDist), steps=5),
    "TrainPipelineSparseDist, unpooled": Setup(
        build=models.sequences, loop=partial(_pipelined, TrainPipelineSparseDist), steps=5
    ),
    "PrefetchTrainPipelineSparseDist": Setup(loop=partial(_pipelined, PrefetchTrainPipelineSparseDist), steps=5),
    "TrainPipelineSemiSync": Setup(loop=partial(_pipelined, TrainPipelineSemiSync), steps=5),
    "TrainPipelineFusedSparseDist": Setup(loop=partial(_pipelined, TrainPipelineFusedSparseDist), steps=5),
    "StagedTrainPipeline": Setup(loop=_staged, steps=5),
    "EvalPipelineSparseDist": Setup(loop=partial(_pipelined, EvalPipelineSparseDist), steps=5, trained=False),
}


def _kind(table: str, kind: str) -> Callable[[ShardingPlan], bool]:
    return lambda plan: plan.plan["bags"][table].sharding_type == kind


def _kernel(table: str, *kernels: str) -> Callable[[ShardingPlan], bool]:
    return lambda plan: plan.plan["bags"][table].compute_kernel in kernels


def _passed(table: str, field: str, value: Any) -> Callable[[ShardingPlan], bool]:
    return lambda plan: getattr(plan.plan["bags"][table], field) == value


def _constrained(kept: Callable[[ShardingPlan], bool] | None = None, **fields: Any) -> Setup:
    """Constrain the table t2, which is 32 wide."""
    return Setup(constraints={"t2": ParameterConstraints(**fields)}, kept=kept)


def _constraints() -> Iterator[tuple[str, Setup]]:
    kinds = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise")
    for kind in (*kinds, "grid_shard"):
        yield f"sharding_types {kind}", _constrained(_kind("t2", kind), sharding_types=[kind])
    older = [one.value for one in EmbeddingComputeKernel if one.value not in NEWER_KERNELS]
    for name in (*older, *NEWER_KERNELS):
        kernel = _constrained(_kernel("t2", name), compute_kernels=[name])
        if name in STORED:
            # The composite store has none of pooled tables.
            build = partial(models.virtual, pooled=name != "dram_ssd_virtual_table")
            kernel = replace(kernel, build=build, optimizer="row-wise Adagrad")
        yield f"compute_kernels {name}", kernel
    yield (
        "min_partition",
        _constrained(
            lambda plan: min(s.shard_sizes[1] for s in plan.plan["bags"]["t2"].sharding_spec.shards) >= 16,
            sharding_types=["column_wise"], min_partition=16,
        ),
    )  # fmt: skip
    yield "pooling_factors", _constrained(pooling_factors=[7.0])
    yield "num_poolings", _constrained(pooling_factors=[2.0], num_poolings=[2.0])
    yield "batch_sizes", _constrained(pooling_factors=[2.0], batch_sizes=[models.BATCH // 2])
    yield (
        "is_weighted",
        Setup(
            build=partial(models.bags, weighted=True), weighted=True,
            constraints={f"t{i}": ParameterConstraints(is_weighted=True) for i in range(4)},
        ),
    )  # fmt: skip
    cache = CacheParams(load_factor=0.5)
    yield (
        "cache_params",
        _constrained(_passed("t2", "cache_params", cache), compute_kernels=["fused_uvm_caching"], cache_params=cache),
    )
    yield (
        "enforce_hbm",
        _constrained(_passed("t2", "enforce_hbm", True), sharding_types=["table_wise"], enforce_hbm=True),
    )
    yield (
        "stochastic_rounding",
        replace(
            _constrained(_passed("t2", "stochastic_rounding", False), stochastic_rounding=False),
            build=partial(models.bags, data_type=DataType.FP16), atol=2e-3,
        ),
    )  # fmt: skip
    mode = BoundsCheckMode.IGNORE
    yield "bounds_check_mode", _constrained(_passed("t2", "bounds_check_mode", mode), bounds_check_mode=mode)
    yield "feature_names", _constrained(feature_names=["f2"])
    half = DataType.FP16
    yield "output_dtype", replace(_constrained(_passed("t2", "output_dtype", half), output_dtype=half), atol=2e-3)
    yield "device_group", _constrained(device_group="cuda")
    yield "key_value_params", _constrained(key_value_params=KeyValueParams())
    yield "use_virtual_table", _constrained(use_virtual_table=True)
    yield (
        "compute_kernels fused, small tables, on CPUs",
        Setup(
            constraints=FUSED_ONLY,
            topology=ON_CPUS,
            kept=lambda plan: {how.compute_kernel for how in plan.plan["bags"].values()} == {"fused"},
        ),
    )


NEWER_KERNELS = ("dram_ssd_virtual_table", "fused_triton", "unfused_tpu")
"""The newest kernels. Not every release has a name for each: a user of an older one may ask for them as well."""
STORED = ("key_value", "ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table")
"""Kernels that keep rows in a store of keys and values."""
NOT_ON_CPU = {
    **{
        f"compute_kernels {name}": "CUDA|cuda|GPU"
        for name in ("key_value", "ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table", "fused_triton")
    },
    **{f"HashZch, {said}": "Expected readonly to be true" for said in ("pooled", "unpooled")},
    **{f"in-training pruning (ITEP), {said}": "init_address_lookup" for said in ("pooled", "unpooled")},
    **{
        f"{said}, sharded as one": "DistributedDataParallel device_ids"
        for said in ("embedding tower", "collection of towers")
    },
    "variable batches (VBE), a table by rows": "ProcessGroupGloo::allgather: invalid tensor size",
    "variable batches (VBE), a table copied": "Tensors must have same number of dimensions",
    "variable batches (VBE), unpooled": "has no gradient on CPUs",
    "bf16 weights": "not implemented for 'BFloat16'",
    **{f"{name}, fused": "not supported in CPU mode" for name in ("Adam", "LAMB", "PartialRowWiseLAMB", "LarsSGD")},
    # Without streams TorchRec prefetches nothing, and then misses it; torch records none of a CPU.
    "PrefetchTrainPipelineSparseDist": "Invalid PrefetchPipelinedForward usage",
    "TrainPipelineSemiSync": "unknown parameter type|'Stream' object has no attribute 'device'",
    "TrainPipelineFusedSparseDist": "unknown parameter type|'Stream' object has no attribute 'device'",
    "StagedTrainPipeline": "'Stream' object has no attribute 'device'",
}
"""What TorchRec, FBGEMM or torch say of rows that only a GPU can do: patterns."""
REFUSED = {f"{name}, fused": "Cannot cast" for name in ("AdamW", "Lion, a class of one's own")}
"""The same of rows that they refuse on any device."""


@contextmanager
def _told() -> Iterator[list[str]]:
    """Listen to what ShardBench warns of."""
    lines: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("shardbench")
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _strange_table(way: str) -> None:
    """Constrain a table that there is not: it has to be said, on the rank that plans."""
    with _told() as lines:
        strange = {"t9": ParameterConstraints(sharding_types=["table_wise"])}
        train(INSIDE[way], Setup(constraints=strange))
    if dist.get_rank() == 0 and not any("t9" in line for line in lines):
        raise Wrong("nothing is said of a constraint for a table that there is not")


def _watched(one: Any, method: str) -> tuple[Any, Mock]:
    """Return an object, and what counts the calls of a method of it."""
    calls = Mock(wraps=getattr(one, method))
    setattr(one, method, calls)
    return one, calls


def _callbacks(_topology: Topology, _model: torch.nn.Module) -> tuple[Any, Mock]:
    calls = Mock(side_effect=list)
    return [calls], calls


class _Loader(PlanLoader):
    """Gives the plan that TorchRec's planner made before."""

    def __init__(self, topology: Topology, model: torch.nn.Module) -> None:
        planner = EmbeddingShardingPlanner(topology, BATCH // WORLD, stats=[])
        planner.plan(model, get_default_sharders())
        self._options = {option.storage_hash(): option for option in planner._best_plan}

    def load(self) -> dict[int, Any]:
        return self._options

    def plan_context_hash(self) -> None:
        return None

    def get_plan_id(self) -> str:
        return "before"


ARGUMENTS: dict[str, Callable[[Topology, torch.nn.Module], tuple[Any, Mock | None]]] = {
    "enumerator": lambda topology, _: _watched(EmbeddingEnumerator(topology, BATCH // WORLD), "enumerate"),
    "storage_reservation": lambda *_: (HeuristicalStorageReservation(0.1), None),
    "proposer": lambda *_: _watched(GreedyProposer(), "propose"),
    "partitioner": lambda *_: _watched(GreedyPerfPartitioner(), "partition"),
    "performance_model": lambda topology, _: _watched(NoopPerfModel(topology), "rate"),
    "stats": lambda *_: _watched(EmbeddingStats(), "log"),
    "callbacks": _callbacks,
    "timeout_seconds": lambda *_: (5, None),
    "plan_loader": lambda topology, model: _watched(_Loader(topology, model), "load"),
    "heuristical_storage_reservation_percentage": lambda *_: (0.1, None),
}
"""What the planner may be given, and what counts its calls where TorchRec's planner alone uses it."""


def _with_argument(way: str, name: str) -> None:
    """Give the planner an argument: TorchRec's planner inside uses it, or the log names it."""
    watched: list[Mock | None] = []

    def arguments(topology: Topology, model: torch.nn.Module) -> dict[str, Any]:
        value, calls = ARGUMENTS[name](topology, model)
        watched.append(calls)
        return {name: value}

    with _told() as lines:
        train(INSIDE[way], Setup(constraints={}, arguments=arguments))
    (calls,) = watched
    if calls is not None and dist.get_rank() == 0:
        if way == "planner" and not calls.called:
            raise Wrong(f"{name} was not used")
        if way == "alone" and not any(name in line for line in lines):
            raise Wrong(f"nothing is said of {name}, which is not used")


def _from_factory(**shape: Any) -> Topology:
    trainer, kernel, factory = (
        of_release("distributed.planner.types", name) for name in ("TrainerConfig", "KernelConfig", "TopologyFactory")
    )
    ranks = {name: shape[name] for name in ("world_size", "local_world_size")}
    memory = {f"{name}_bytes": shape[name] for name in ("hbm_cap", "ddr_cap")}
    return factory.create_topology(trainer(**ranks, **memory), kernel_config=kernel(compute_device="cuda"))


def _larger_than_devices(*, ask_torchrec: bool) -> None:
    """Plan 14 GB of tables, ten rows of them 1.4 GB each, for eight GPUs of 2 GB with 64 GB of host memory each."""
    tables = bag_configs(tuple((437_500, 800) for _ in range(10)))
    model = torch.nn.ModuleDict({"bags": EmbeddingBagCollection(tables=tables, device=META)})
    gb = 10**9
    shape = {"world_size": 8, "local_world_size": 8, "compute_device": "cuda", "hbm_cap": 2 * gb, "ddr_cap": 64 * gb}
    planner = ShardBenchPlanner(Topology(**shape), batch_size=512, plan_s=1.0, ask_torchrec=ask_torchrec)
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    held = [0.0] * 8
    for how in plan.plan["bags"].values():
        cached = how.cache_params.load_factor if how.cache_params and how.cache_params.load_factor else 0.2
        share = {"fused_uvm": 0.0, "fused_uvm_caching": cached}.get(how.compute_kernel, 1.0)
        blocks = how.sharding_spec.shards if how.sharding_spec else []
        for rank, one in zip(how.ranks, blocks, strict=True):
            held[rank] += 4 * share * one.shard_sizes[0] * one.shard_sizes[1]
    if not 0 < max(held) <= 2 * gb:
        raise Wrong(f"a device of 2 GB would hold {max(held) / gb:.3f} GB: {shown(plan)}")


def _on_rank_0(config: Any, number: int) -> list[Any]:
    return [segment(config, OnRank(rank=0))]


def _in_groups(way: str) -> None:
    """Shard the model in groups of one rank by TorchRec's 2D parallelism."""
    setup = Setup(constraints={}, topology={"world_size": 1, "local_world_size": 1})
    model = make_model(setup.build, CPU, seed=1)
    if way in INSIDE:
        plan, _ = INSIDE[way](model, setup)
    else:
        plan, _ = WAYS[way](model, replace(setup, placements=_on_rank_0, cut=partial(_in_ranges, ranks=(0, 0))))
    DMPCollection(
        model, device=CPU, plan=plan, world_size=2, sharding_group_size=1, global_pg=dist.group.WORLD,
        sharders=setup.sharders(),
    )  # fmt: skip


def _between(first: str, second: str, setup: Setup, *, optimizer: bool) -> None:
    """Train by one plan, save, load into a model of another plan, and go on."""
    lookups = Lookups.of(make_model(setup.build, CPU, seed=1), {})
    reference = make_model(setup.build, CPU, seed=1)
    stepping = reference_optimizer(reference, setup)
    weights = {name: value.detach().clone() for name, value in reference.named_parameters()}
    sharded = shard(make_model(setup.build, CPU, seed=1), WAYS[first], setup, weights)
    rank = dist.get_rank()
    found = plain(sharded.model, sharded.optimizer, (lookups.part(step, rank) for step in range(setup.steps)))
    wanted = plain(reference, stepping, (lookups.whole(step) for step in range(setup.steps)))
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        compare_step(number, one, other, setup)
    fresh = shard(make_model(setup.build, CPU, seed=2), WAYS[second], replace(setup, placements=_by_rows), {})
    if first == "remapped" and not optimizer:
        load_tables(fresh.model, fresh.exported, read_tables(sharded.model, sharded.exported))
        load(fresh.model, {name: value for name, value in whole_state(sharded.model).items() if not is_table(name)})
    else:
        carry_over(sharded, fresh, setup, optimizer=optimizer)
    compare_tables(fresh, reference, setup)
    if optimizer or setup.optimizer == "SGD":
        go_on(fresh, reference, stepping, lookups, setup)


def _all_cases() -> Iterator[Case]:
    for part, rows in (("modules", MODULES), ("numbers", NUMBERS), ("training", LOOPS)):
        yield from _rows(part, rows)
    for way in WAYS:
        only = "DMPCollection only supports CUDA or MTIA"
        yield Case("training", "DMPCollection", way, partial(_in_groups, way), only)
    yield from _rows("optimizers", OPTIMIZERS)
    for row, setup in _constraints():
        for way, plans in INSIDE.items():
            yield Case("constraints", row, way, partial(train, plans, setup), NOT_ON_CPU.get(row, ""))
    for way in INSIDE:
        asked = partial(_larger_than_devices, ask_torchrec=way == "planner")
        yield Case("constraints", "14 GB of tables on 8 x 2 GB, planned only", way, asked)
        yield Case("constraints", "for a table that there is not", way, partial(_strange_table, way))
    for way, plans in INSIDE.items():
        for name in ARGUMENTS:
            yield Case("planner", name, way, partial(_with_argument, way, name))
        made = partial(train, plans, Setup(make_topology=_from_factory))
        yield Case("planner", "topology of TopologyFactory", way, made)
    for way in WAYS:
        other = "exported" if way != "exported" else "planner"
        yield Case("checkpoints", "weights", way, partial(_between, way, other, Setup(), optimizer=False))
        sharded = Setup(optimizer="Adagrad", constraints=SHARDED)
        first = replace(sharded, placements=_by_columns if way == "exported" else None)
        # The optimizer knows the pieces of remapped tables, and copies, by other names.
        unknown = "Missing key in checkpoint state_dict"
        run = partial(_between, way, other, first, optimizer=True)
        yield Case("checkpoints", "weights and optimizer", way, run, refused=unknown if way == "remapped" else "")
        copied = replace(sharded, constraints=None if way in INSIDE else SHARDED)
        run = partial(_between, way, other, copied, optimizer=True)
        yield Case("checkpoints", "with optimizer, a table copied by one plan", way, run, refused=unknown)


CASES = {case.name: case for case in _all_cases()}


def _one_rank_fails(end: Callable[[], None]) -> None:
    if dist.get_rank() == 1:
        end()
    dist.barrier()


def _fail() -> None:
    raise ValueError("no such thing")


def _too_long(model: torch.nn.Module, optimizer: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Take every step twice."""
    for batch in batches:
        first, _ = plain(model, optimizer, iter([batch, batch]))
        yield first


PLANTED = {
    f"planted: {name}: exported": Case("planted", name, "exported", run)
    for name, run in {
        "other steps": partial(train, WAYS["exported"], Setup(loop=_too_long)),
        "one rank fails": partial(_one_rank_fails, _fail),
        "one rank dies": partial(_one_rank_fails, os.abort),
    }.items()
}
"""Cases that must come out wrong."""
