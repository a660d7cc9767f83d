"""What a case does on each rank: plan, shard, take steps beside the unsharded model, save, load, and step again."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import LAMB, LarsSGD, PartialRowWiseLAMB

from shardbench.engine.torchrec.sharding import Collection, configs_of, parameters_of_replicas
from shardbench.model.plan import OnRank, Placement, Plan, Replicated, RowWise, Segment
from shardbench.torchrec import Exported, ShardBenchPlanner, export, load_tables, sharding_plan, split
from torchrec_cells.models import BATCH, WORLD, Batch, Build, Lookups, Model, bags, make_model

STEPS = 3
BOTH = (0, 1)


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of gradients: stands for what users write, as neither torch nor FBGEMM has it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    parameter.sub_(group["lr"] * torch.sign(0.9 * mean + 0.1 * parameter.grad))
                    mean.mul_(0.99).add_(parameter.grad, alpha=0.01)


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.5}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    "row-wise Adagrad": (RowWiseAdagrad, {"lr": 0.1, "eps": 1e-8}),
    "Adam": (torch.optim.Adam, {"lr": 0.05, "eps": 1e-4}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.05, "eps": 1e-4}),
    "LAMB": (LAMB, {"lr": 0.05}),
    "PartialRowWiseLAMB": (PartialRowWiseLAMB, {"lr": 0.05}),
    "LarsSGD": (LarsSGD, {"lr": 0.05}),
    "Lion": (Lion, {"lr": 0.05}),
}
CPU = torch.device("cpu")
GPUS = {"compute_device": "cuda", "hbm_cap": 1 << 30, "ddr_cap": 1 << 32}
"""What is planned for, though the shards then run on CPUs: TorchRec deals no rows of bags on a CPU."""


class Wrong(Exception):
    """Says what differs from the unsharded model, or from what was asked for."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is trained, and how."""

    build: Build = bags
    weighted: bool = False
    longest: Mapping[str, int] = field(default_factory=dict)
    given: Callable[[Batch], Batch] = lambda batch: batch
    """What the sharded model is given of a batch; the unsharded one gets it as it is."""
    optimizer: str = "SGD"
    in_backward: bool = True
    """Tables are stepped in the backward pass; else by an ordinary optimizer, with everything else."""
    constraints: Mapping[str, ParameterConstraints] | None = None
    """A mix of sharding types where none are stated."""
    topology: Mapping[str, Any] = field(default_factory=dict)
    """Of the devices that are planned for, where it is not as in GPUS."""
    make_topology: Callable[..., Topology] = Topology
    arguments: Callable[[Topology, Model], Mapping[str, Any]] = lambda _topology, _model: {}
    """What else the planner is given."""
    sharders: Callable[[], list[Any]] = get_default_sharders
    placements: Callable[[Any, int], list[Segment]] | None = None
    """Segments of a table's configuration and number, for an exported plan; a mix where they are not said."""
    cut: Callable[[Any, int], list[Segment]] | None = None
    """The same for a plan that needs a remap."""
    changed: Callable[[ShardingPlan], None] | None = None
    """Changes a plan before it is used, as a user may."""
    kept: Callable[[ShardingPlan], bool] | None = None
    """Says whether the plan is what the case is about."""
    device: torch.device = CPU
    """Where the model is built, to be sharded on CPUs."""
    loop: Callable[[torch.nn.Module, KeyedOptimizer, Iterator[Batch]], Iterator[Any]] | None = None
    """What trains: yields loss and logits of every batch; a plain loop unless a pipeline is given."""
    trained: bool = True
    """The loop trains; else it only evaluates."""
    steps: int = STEPS
    atol: float = 2e-6
    managed: bool = False
    """Managed collision says which row is an id's: rows are compared as a set."""
    checkpoint: bool = True


@dataclass
class Sharded:
    """A sharded model with its optimizer, and what it was planned as."""

    model: torch.nn.Module
    optimizer: KeyedOptimizer
    plan: ShardingPlan
    exported: Exported | None


Way = Callable[[Model, Setup], tuple[ShardingPlan, Exported | None]]


def by_planner(model: Model, setup: Setup, *, ask_torchrec: bool = True) -> tuple[ShardingPlan, Exported | None]:
    """Plan with ShardBenchPlanner, in place of TorchRec's planner; a plan for GPUs is placed on CPUs."""
    shape = {"world_size": WORLD, "local_world_size": WORLD, **GPUS, **setup.topology}
    constraints = _mixed(model) if setup.constraints is None else dict(setup.constraints)
    topology = setup.make_topology(**shape)
    more = setup.arguments(topology, model)
    planner = ShardBenchPlanner(
        topology, BATCH // WORLD, constraints=constraints, plan_s=0.2, ask_torchrec=ask_torchrec, **more
    )
    return on_cpus(planner.collective_plan(model, setup.sharders(), dist.group.WORLD)), None


def _mixed(model: Model) -> dict[str, ParameterConstraints]:
    """Ask for every sharding type in turn: left alone, a planner copies tables as small as these on all ranks."""
    kinds = ("table_wise", "row_wise", "column_wise", "data_parallel")
    made = {}
    for number, (config, pooled) in enumerate(_tables(model)):
        made[config.name] = ParameterConstraints(sharding_types=[kinds[number % (4 if pooled else 3)]])
    return made


def on_cpus(plan: ShardingPlan) -> ShardingPlan:
    """Return the plan with its shards on the CPUs of the ranks."""
    for module in plan.plan.values():
        for sharding in module.values():
            for shard in getattr(sharding.sharding_spec, "shards", []):
                shard.placement = torch.distributed._remote_device(f"rank:{shard.placement.rank()}/cpu")
    return plan


def by_export(model: Model, setup: Setup) -> tuple[ShardingPlan, Exported | None]:
    """Export a plan that needs no remap, and make TorchRec's of it."""
    return _exported(model, setup.placements, _whole, in_blocks=True)


def by_remap(model: Model, setup: Setup) -> tuple[ShardingPlan, Exported | None]:
    """Export a plan that cuts and deals rows, with a remap in front of each collection."""
    plan, exported = _exported(model, setup.cut, _cut, in_blocks=False)
    if not exported.remapped:
        raise Wrong("the plan needs no remap")
    return plan, exported


INSIDE: dict[str, Way] = {"planner": by_planner, "alone": partial(by_planner, ask_torchrec=False)}
OUTSIDE: dict[str, Way] = {"exported": by_export, "remapped": by_remap}
WAYS = INSIDE | OUTSIDE


def _exported(
    model: Model,
    own: Callable[[Any, int], list[Segment]] | None,
    mix: Callable[[Any, int, bool], list[Segment]],
    *,
    in_blocks: bool,
) -> tuple[ShardingPlan, Exported]:
    segments = []
    for number, (config, pooled) in enumerate(_tables(model)):
        segments += own(config, number) if own else mix(config, number, pooled)
    exported = export(Plan(world_size=WORLD, segments=tuple(segments)), in_blocks=in_blocks)
    for path, module in _collections(model):
        _replace(model, path, split(exported, module, _orders(exported, module)))
    return sharding_plan(exported, model, device="cpu"), exported


def _tables(model: Model) -> list[tuple[Any, bool]]:
    """Return the configuration of every table, and whether its lookups are summed."""
    return [
        (config, hasattr(module, "embedding_bag_configs"))
        for _, module in _collections(model)
        for config in configs_of(module)
    ]


def _collections(model: Model) -> list[tuple[str, Collection]]:
    """Return path and module of every collection, also of those within others."""
    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    return [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]


def _replace(model: torch.nn.Module, path: str, module: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _orders(exported: Exported, module: Collection) -> dict[str, torch.Tensor]:
    """Return an order of frequency of every remapped table of a module, drawn."""
    orders = {}
    for config in configs_of(module):
        if config.name in exported.remapped:
            generator = torch.Generator().manual_seed(config.num_embeddings)
            orders[config.name] = torch.randperm(config.num_embeddings, generator=generator)
    return orders


def segment(config: Any, placement: Placement, rows: Sequence[int] = (), columns: Sequence[int] = ()) -> Segment:
    """Return a segment of a table: all of it unless rows or columns are named."""
    start, stop = rows or (0, config.num_embeddings)
    left, right = columns or (0, config.embedding_dim)
    return Segment(
        table=config.name, row_start=start, row_stop=stop, column_start=left, column_stop=right, placement=placement
    )


def _whole(config: Any, number: int, pooled: bool) -> list[Segment]:
    """Place a table by one of the ways that need no remap, in turn."""
    half = config.embedding_dim // 2
    ways = [
        [segment(config, OnRank(rank=1))],
        [segment(config, RowWise(ranks=BOTH))],
        [
            segment(config, OnRank(rank=1), columns=(0, half)),
            segment(config, OnRank(rank=0), columns=(half, config.embedding_dim)),
        ],
        [segment(config, Replicated(ranks=BOTH))],
    ]
    return ways[number % (4 if pooled else 3)]


def _cut(config: Any, number: int, pooled: bool) -> list[Segment]:
    """Place a table by one of the ways that need a remap, in turn; the last one needs none and stands beside them."""
    rows, half = config.num_embeddings, config.embedding_dim // 2
    hot: Placement = Replicated(ranks=BOTH) if pooled else OnRank(rank=1)
    columns = [
        segment(config, OnRank(rank=0), rows=(0, 9), columns=(0, half)),
        segment(config, OnRank(rank=1), rows=(0, 9), columns=(half, config.embedding_dim)),
    ]
    ways = [
        [segment(config, hot, rows=(0, 7)), segment(config, RowWise(ranks=BOTH), rows=(7, rows))],
        [segment(config, RowWise(ranks=BOTH))],
        [
            *(columns if pooled else [segment(config, OnRank(rank=0), rows=(0, 9))]),
            segment(config, OnRank(rank=1), rows=(9, rows)),
        ],
        [segment(config, OnRank(rank=0))],
    ]
    return ways[number % 4]


def shard(model: Model, way: Way, setup: Setup, weights: Mapping[str, torch.Tensor]) -> Sharded:
    """Plan and shard a model that has the weights, as a user of either way would; raises Wrong for another plan."""
    kind, options = OPTIMIZERS[setup.optimizer]
    if way in INSIDE.values() and setup.in_backward:
        apply_optimizer_in_backward(kind, table_parameters(model), dict(options))
    plan, exported = way(model, setup)
    if exported is not None and setup.in_backward:
        replicas = {id(parameter) for parameter in parameters_of_replicas(exported, model)}
        fused = [parameter for parameter in table_parameters(model) if id(parameter) not in replicas]
        apply_optimizer_in_backward(kind, fused, dict(options))
    if setup.changed is not None:
        setup.changed(plan)
    if setup.kept is not None and not setup.kept(plan):
        raise Wrong(f"the plan is not as asked: {shown(plan)}")
    return assemble(model, plan, exported, setup, weights)


def assemble(
    model: Model, plan: ShardingPlan, exported: Exported | None, setup: Setup, weights: Mapping[str, torch.Tensor]
) -> Sharded:
    """Shard a planned model, and write the weights into it."""
    kind, options = OPTIMIZERS[setup.optimizer]
    parallel = DistributedModelParallel(
        model, env=ShardingEnv.from_process_group(dist.group.WORLD), device=CPU, plan=plan, sharders=setup.sharders()
    )
    if exported is None or not exported.remapped:
        load(parallel, weights)
    else:
        by_table = {name.split(".")[-2]: weight for name, weight in weights.items() if is_table(name)}
        load_tables(parallel, exported, by_table)
        load(parallel, {name: weight for name, weight in weights.items() if not is_table(name)})
    stepped = set(dict(parallel.fused_optimizer.params))
    # What is stepped in the backward pass though it is no fused table: replicas, under TorchRec's planner.
    rest = {
        name: parameter
        for name, parameter in parallel.named_parameters()
        if name not in stepped and not hasattr(parameter, "_in_backward_optimizers")
    }
    tables = {name: parameter for name, parameter in rest.items() if is_table(name)}
    dense = {name: parameter for name, parameter in rest.items() if not is_table(name)}
    optimizers: list[tuple[str, KeyedOptimizer]] = [("", parallel.fused_optimizer)]
    if tables:
        optimizers.append(("tables", KeyedOptimizerWrapper(tables, lambda given: kind(given, **options))))
    optimizers.append(("dense", KeyedOptimizerWrapper(dense, lambda given: torch.optim.SGD(given, lr=0.5))))
    return Sharded(parallel, CombinedOptimizer(optimizers), plan, exported)


def shown(plan: ShardingPlan) -> str:
    """Return a plan's types and kernels in a line."""
    return ", ".join(
        f"{path}.{name} {how.sharding_type} {how.compute_kernel} {how.ranks}"
        for path, module in plan.plan.items()
        for name, how in module.items()
    )


def is_table(name: str) -> bool:
    """Tell whether a name of a state is of a table's weights."""
    parts = name.split(".")
    return parts[-1] == "weight" and len(parts) > 2 and parts[-3] in ("embedding_bags", "embeddings")


def table_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the weights of tables, of a model that is not sharded."""
    return [parameter for name, parameter in model.named_parameters() if is_table(name)]


def load(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Write whole weights into what a rank holds of them."""
    with torch.no_grad():
        for name, held in model.state_dict().items():
            for part, (row, column) in local_parts(held):
                if name in weights:
                    whole = weights[name]
                    at = (slice(row, row + len(part)), slice(column, column + part.shape[-1]))[: whole.dim()]
                    part.copy_(whole[at])


def local_parts(held: Any) -> list[tuple[torch.Tensor, tuple[int, int]]]:
    """Return a rank's parts of a state's tensor, and the row and column at which each begins."""
    if hasattr(held, "local_shards"):
        return [(one.tensor, (*one.metadata.shard_offsets, 0)[:2]) for one in held.local_shards()]
    if hasattr(held, "to_local"):  # a DTensor
        local = held.to_local()
        offsets = local.local_offsets() if hasattr(local, "local_offsets") else [(0, 0)]
        parts = local.local_shards() if hasattr(local, "local_shards") else [local]
        return [(part, tuple(at)) for part, at in zip(parts, offsets)]
    return [(held, (0, 0))] if isinstance(held, torch.Tensor) else []


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Put the state of a sharded model together on every rank; raises Wrong where ranks differ in what both hold."""
    own = [
        (name, tuple(held.shape), part.detach().clone(), at)
        for name, held in sorted(model.state_dict().items())
        for part, at in local_parts(held)
    ]
    every: list[Any] = [None] * WORLD
    dist.all_gather_object(every, own)
    found: dict[str, torch.Tensor] = {}
    for name, shape, part, (row, column) in (one for rank in every for one in rank):
        if len(shape) < 2:  # what an id's slot is: no weights
            found[name] = part
            continue
        whole = found.setdefault(name, torch.full(shape, math.nan, dtype=torch.float32))
        place = whole[row : row + part.shape[0], column : column + part.shape[1]]
        if not (place.isnan() | (place == part)).all():
            raise Wrong(f"the ranks have different copies of {name}")
        place.copy_(part)
    return found


def whole_tables(sharded: Sharded) -> dict[str, torch.Tensor]:
    """Return the whole tables by the names of the unsharded model, rows in the order of ids."""
    found, exported = whole_state(sharded.model), sharded.exported
    if exported is None or not exported.remapped:
        return {name: weight for name, weight in found.items() if is_table(name)}
    tables = {table.name: table for table in exported.tables}
    made: dict[str, torch.Tensor] = {}
    for name, weight in found.items():
        if not is_table(name):
            continue
        *path, piece_name, _ = name.replace(".collection.", ".").split(".")
        piece = exported.pieces[piece_name]
        table, key = tables[piece.table], ".".join([*path, piece.table, "weight"])
        whole = made.setdefault(key, torch.full((table.rows, table.dim), math.nan))
        order = found.get(f"{'.'.join(path[:-1])}.remap.ranks_{piece.table}", torch.arange(table.rows))
        inside = ((order >= piece.row_start) & (order < piece.row_stop)).nonzero().squeeze(1)
        rows = piece.logical().local_ids(order[inside] - piece.row_start)
        whole[inside, piece.column_start : piece.column_stop] = weight[rows]
    return made


def plain(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch]) -> Iterator[Any]:
    """Train without a pipeline."""
    for batch in batches:
        optimizer.zero_grad()
        loss, found = model(batch)
        loss.backward()
        optimizer.step()
        yield found


def evaluated(model: torch.nn.Module, batches: Iterator[Batch]) -> Iterator[Any]:
    """Yield loss and logits without a step."""
    for batch in batches:
        with torch.no_grad():
            _, found = model(batch)
        yield found


def reference_optimizer(model: Model, setup: Setup) -> torch.optim.Optimizer:
    """Return what steps the unsharded model: its tables by the case's optimizer, the rest by SGD."""
    kind, options = OPTIMIZERS[setup.optimizer]
    dense = {name: p for name, p in model.named_parameters() if not is_table(name)}
    tables = {name: p for name, p in model.named_parameters() if is_table(name)}
    return CombinedOptimizer([
        KeyedOptimizerWrapper(tables, lambda given: kind(given, **options)),
        KeyedOptimizerWrapper(dense, lambda given: torch.optim.SGD(given, lr=0.5)),
    ])  # fmt: skip


def close(found: torch.Tensor, expected: torch.Tensor, what: str, setup: Setup) -> None:
    """Raise Wrong where a tensor is not the expected one."""
    found, expected = found.float(), expected.float()
    if setup.managed and found.dim() == 2:
        found, expected = (t[t.sum(dim=1).argsort()] for t in (found, expected))
    if found.shape != expected.shape:
        raise Wrong(f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}")
    difference = (found - expected).abs()
    if not bool((difference <= setup.atol + 1e-5 * expected.abs()).all()):
        raise Wrong(
            f"{what}: differ from the unsharded model's by up to {difference.nan_to_num(nan=math.inf).max():.3g}"
        )


def compare_step(number: int, found: Any, expected: Any, setup: Setup) -> None:
    """Hold loss and logits of a step, gathered, to the unsharded model's."""
    loss, logits = found
    total = loss.clone() / WORLD
    dist.all_reduce(total)
    every = [torch.empty_like(logits) for _ in range(WORLD)]
    dist.all_gather(every, logits.contiguous())
    close(torch.cat(every), expected[1], f"logits of step {number}", setup)
    close(total, expected[0], f"loss of step {number}", setup)


def compare_tables(sharded: Sharded, reference: Model, setup: Setup) -> None:
    """Hold the tables of all ranks together to the unsharded model's."""
    found = whole_tables(sharded)
    expected = {name: weight.detach() for name, weight in reference.state_dict().items() if is_table(name)}
    if set(found) != set(expected):
        raise Wrong(f"the state has {sorted(found)}, not {sorted(expected)}")
    for name, weight in expected.items():
        close(found[name], weight, name, setup)


def train(way: Way, setup: Setup) -> None:
    """Run a case: returns where all is as in the unsharded model, raises Wrong where something differs."""
    rank = dist.get_rank()
    reference = make_model(setup.build, CPU, seed=1)
    for bag in reference.modules():
        if setup.weighted and isinstance(bag, torch.nn.EmbeddingBag):
            bag.mode = "sum"  # torch has no weighted mean: ``times_length``
    weights = {name: value.detach().clone() for name, value in reference.named_parameters()}
    lookups = Lookups.of(reference, setup.longest, weighted=setup.weighted, managed=setup.managed, given=setup.given)
    sharded = shard(make_model(setup.build, setup.device, seed=1), way, setup, weights)
    sharded.model.train(setup.trained)
    loop, optimizer = setup.loop or plain, reference_optimizer(reference, setup)
    parts = (lookups.part(step, rank) for step in range(setup.steps))
    wholes = (lookups.whole(step) for step in range(setup.steps))
    expected = plain(reference, optimizer, wholes) if setup.trained else evaluated(reference, wholes)
    count = 0
    for number, (found, wanted) in enumerate(zip(loop(sharded.model, sharded.optimizer, parts), expected, strict=True)):
        compare_step(number, found, wanted, setup)
        count += 1
    if count != setup.steps:
        raise Wrong(f"{count} steps were taken, not {setup.steps}")
    compare_tables(sharded, reference, setup)
    same = all(torch.equal(weights[name], value) for name, value in reference.state_dict().items() if is_table(name))
    if same is setup.trained:
        raise Wrong("no step changed a table" if same else "a table changed without a step")
    if setup.checkpoint:
        model = make_model(setup.build, setup.device, seed=2)
        if way in INSIDE.values():
            kind, options = OPTIMIZERS[setup.optimizer]
            if setup.in_backward:
                apply_optimizer_in_backward(kind, table_parameters(model), dict(options))
            fresh = assemble(model, sharded.plan, None, setup, {})
        else:
            fresh = shard(model, way, setup, {})
        carry_over(sharded, fresh, setup)
        go_on(fresh, reference, optimizer, lookups, setup)


def carry_over(sharded: Sharded, fresh: Sharded, setup: Setup, *, optimizer: bool = True) -> None:
    """Save a model with its optimizer, and load it into a fresh one; raises Wrong where the tables differ then."""
    stateful = optimizer and setup.optimizer != "SGD"
    together = stateful and setup.in_backward
    if stateful:
        _begin(fresh)
    if stateful and not together:
        # An ordinary optimizer knows nothing of shards: a rank saves its own part.
        own = BytesIO()
        torch.save(sharded.optimizer.state_dict(), own)
        own.seek(0)
        fresh.optimizer.load_state_dict(torch.load(own, weights_only=True))
    with shared_folder() as folder:
        dcp.save(_state(sharded, optimizer=together), checkpoint_id=folder)
        state = _state(fresh, optimizer=together)
        dcp.load(state, checkpoint_id=folder)
        dist.barrier()
    fresh.model.load_state_dict(state["model"])
    if together:
        fresh.optimizer.load_state_dict(state["optimizer"])
    saved, loaded = whole_tables(sharded), whole_tables(fresh)
    differ = [name for name in saved if not torch.equal(saved[name], loaded[name])]
    if differ:
        raise Wrong(f"loaded from a checkpoint, {differ} are other than what was saved")


def _begin(fresh: Sharded) -> None:
    """Take a step of no gradients: Adam has moments from its first one on, and there must be some to load into."""
    for _, one in fresh.optimizer.optimizers:
        if isinstance(one, KeyedOptimizerWrapper):
            for parameter in one.params.values():
                parameter.grad = torch.zeros_like(parameter) if parameter.numel() else None
            one.step()


def _state(sharded: Sharded, *, optimizer: bool) -> dict[str, Any]:
    state = {"model": sharded.model.state_dict()}
    return {**state, "optimizer": sharded.optimizer.state_dict()} if optimizer else state


class shared_folder:  # noqa: N801 - used as a context
    """A temporary folder that rank 0 makes for both."""

    def __enter__(self) -> str:
        self._made = tempfile.TemporaryDirectory() if dist.get_rank() == 0 else None
        name = [self._made.name if self._made else ""]
        dist.broadcast_object_list(name, src=0)
        return name[0]

    def __exit__(self, *_: Any) -> None:
        if self._made:
            self._made.cleanup()


def go_on(fresh: Sharded, reference: Model, optimizer: torch.optim.Optimizer, lookups: Lookups, setup: Setup) -> None:
    """Take one more step of the loaded model and of the unsharded one: the optimizers' states count in it."""
    number = setup.steps
    fresh.model.train()
    ((found),) = list(plain(fresh.model, fresh.optimizer, iter([lookups.part(number, dist.get_rank())])))
    ((wanted),) = list(plain(reference, optimizer, iter([lookups.whole(number)])))
    compare_step(number, found, wanted, setup)
    compare_tables(fresh, reference, setup)
