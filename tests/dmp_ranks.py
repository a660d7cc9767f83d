"""Four gloo ranks that train by TorchRec's 2D parallelism, in two sharding groups, beside the unsharded model."""

import inspect
import json
import os
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import model_parallel
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec_cells.models import BATCH, Batch, Lookups, Model, make_model, several
from torchrec_cells.training import CPU, GPUS, _mixed, load, local_parts, on_cpus, plain, table_parameters

from shardbench.engine.processes.server import FORK_SERVER
from shardbench.torchrec import ShardBenchPlanner

RANKS, SIZE, STEPS = 4, 2, 3


def train_in_groups(folder: Path, *, inter_host: bool) -> list[dict[str, Any]]:
    """Return what each rank saw; ``inter_host`` is DMPCollection's ``use_inter_host_allreduce``."""
    context = FORK_SERVER.context()
    ranks = [context.Process(target=_rank, args=(folder, rank, inter_host)) for rank in range(RANKS)]
    try:
        for process in ranks:
            FORK_SERVER.start(process)
        for process in ranks:
            process.join(200.0)
    finally:
        for process in ranks:
            FORK_SERVER.end(process)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def _rank(folder: Path, rank: int, inter_host: bool) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS))
    store = dist.FileStore(str(folder / "group"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    try:
        seen = _train(rank, inter_host)
    except Exception:
        seen = {"error": traceback.format_exc()}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # peers may wait for one that failed


def _collection_on_cpus() -> type[Any]:
    """Return DMPCollection without its assertion that devices are GPUs, and with its shards where the CPUs' are."""
    without = ModuleType("model_parallel_without_assertions")
    exec(compile(inspect.getsource(model_parallel), model_parallel.__file__, "exec", optimize=1), vars(without))

    class OnCpus(without.DMPCollection):
        def _remap_sharding_plan(self, plan: Any, *arguments: Any, **named: Any) -> None:
            super()._remap_sharding_plan(plan, *arguments, **named)
            on_cpus(plan)

    return OnCpus


def _train(rank: int, inter_host: bool) -> dict[str, Any]:
    reference, model = (make_model(several, CPU, seed=1) for _ in range(2))
    lookups = Lookups.of(reference, {})
    weights = {name: value.detach().clone() for name, value in reference.named_parameters()}
    apply_optimizer_in_backward(torch.optim.SGD, table_parameters(model), {"lr": 0.5})
    planner = ShardBenchPlanner(
        Topology(world_size=RANKS, local_world_size=RANKS, **GPUS), BATCH // RANKS, constraints=_mixed(model),
        plan_s=0.2, ask_torchrec=False, sharding_group_sizes=[SIZE], use_inter_host_allreduce=inter_host,
    )  # fmt: skip
    plan = planner.collective_plan(model, get_default_sharders(), dist.group.WORLD)
    types = {how.sharding_type for module in plan.plan.values() for how in module.values()}

    def average(tensors: list[torch.Tensor]) -> None:  # gloo has no ReduceOp.AVG
        for tensor in tensors:
            dist.all_reduce(tensor, group=parallel._default_ctx.replica_pg)
            tensor.div_(RANKS // SIZE)

    parallel = _collection_on_cpus()(
        model, device=CPU, plan=plan, world_size=RANKS, sharding_group_size=planner.sharding_group_size,
        global_pg=dist.group.WORLD, sharders=get_default_sharders(), use_inter_host_allreduce=inter_host,
        custom_all_reduce=average,
    )  # fmt: skip
    load(parallel, weights)
    fused = set(dict(parallel.fused_optimizer.params))
    rest = [parameter for name, parameter in parallel.named_parameters() if name not in fused]
    in_backward = [hasattr(parameter, "_in_backward_optimizers") for parameter in rest]
    optimizer = torch.optim.SGD([one for one, stepped in zip(rest, in_backward) if not stepped], lr=0.5)
    whole_optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    group = dist.get_process_group_ranks(parallel._default_ctx.sharding_pg)
    seen: dict[str, Any] = {"types": sorted(types), "size": planner.sharding_group_size, "group": group, "off": []}
    for step in range(STEPS + 1):
        _step(parallel, optimizer, _part(lookups, step, rank))
        _step(reference, whole_optimizer, lookups.whole(step))
        if step < STEPS:
            parallel.sync()
        seen["off"].append(_difference(parallel, reference))
    seen["moved"] = max(float((weights[name] - value).abs().max()) for name, value in reference.named_parameters())
    return seen


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    for _ in plain(model, optimizer, iter([batch])):
        pass


def _part(lookups: Lookups, step: int, rank: int) -> Batch:
    """Draw a rank's quarter of a batch."""
    whole, size = lookups.whole(step), BATCH // RANKS
    mine, keys = slice(rank * size, (rank + 1) * size), whole.lookups.keys()
    lengths = whole.lookups.lengths().view(len(keys), BATCH)
    samples = torch.arange(BATCH).repeat(len(keys)).repeat_interleave(lengths.flatten())
    chosen = (samples >= mine.start) & (samples < mine.stop)
    return Batch(lookups._joined(whole.lookups.values()[chosen], lengths[:, mine], None), whole.labels[mine])


def _difference(parallel: torch.nn.Module, reference: Model) -> float:
    """Return by how much what a rank holds of any weights differs from the unsharded model's."""
    whole, most = reference.state_dict(), 0.0
    for name, held in parallel.state_dict().items():
        for part, (row, column) in local_parts(held):
            at = (slice(row, row + len(part)), slice(column, column + part.shape[-1]))[: part.dim()]
            most = max(most, float((part - whole[name][at]).abs().max()))
    return most
