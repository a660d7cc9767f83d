"""The measured backend's step against the hand-written loop, in one process group.

``torchrun --nproc-per-node 2 tools/micro/harness_overhead.py OUT.json``: every rank
takes the two steps in turn on the same batch, which of them comes first alternating; rank 0
writes the ratio (harness / handwritten) of each pair, each step being the slowest rank's.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.engine.clock import CpuClock
from shardbench.engine.lower import lower
from shardbench.engine.step import LocalBatch, StepSettings, TrainingStep
from shardbench.model.machine import Topology
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.table import DenseShape, Optimizer, Precision, Table
from shardbench.workloads.trace import Bags

TABLES, ROWS, DIM, POOLING, LOCAL_BATCH = 20, 100_000, 16, 10, 512
SHAPE = DenseShape(features=13, bottom=(64, DIM), top=(64, 1))
WARMUP, PAIRS = 20, 200


class HandwrittenLoop:
    """A plain TorchRec loop, as a user would write it: whole tables on ``homes``, and DLRM."""

    def __init__(self, homes: Sequence[int]) -> None:
        names = [f"t{i}_s0" for i in range(TABLES)]
        tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
                for name in names
            ],
            device=torch.device("meta"),
        )
        apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": 0.01})
        model = DLRM(tables, SHAPE.features, list(SHAPE.bottom), list(SHAPE.top))
        world = dist.get_world_size()
        sharding = construct_module_sharding_plan(
            tables,
            {name: table_wise(rank=home, compute_kernel="fused") for name, home in zip(names, homes)},
            EmbeddingBagCollectionSharder(),
            local_size=world,
            world_size=world,
            device_type="cpu",
        )
        self.model = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=ShardingPlan(plan={"sparse_arch.embedding_bag_collection": sharding}),
            sharders=[EmbeddingBagCollectionSharder()],
        )
        dense = [p for name, p in self.model.named_parameters() if "embedding_bags" not in name]
        self.optimizer = torch.optim.SGD(dense, lr=0.01)
        self.loss = torch.nn.BCEWithLogitsLoss()

    def __call__(self, dense: torch.Tensor, sparse: KeyedJaggedTensor, labels: torch.Tensor) -> None:
        """Take one training step."""
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(dense, sparse).squeeze(1)
        self.loss(logits, labels).backward()
        self.optimizer.step()


def make_steps(world: int) -> tuple[TrainingStep, HandwrittenLoop]:
    """Make both models, with the same tables on the same ranks."""
    tables = tuple(Table(name=f"table{i}", rows=ROWS, dim=DIM) for i in range(TABLES))
    homes = [i % world for i in range(TABLES)]
    plan = Plan(world_size=world, segments=whole_tables(tables, homes))
    topology = Topology(nodes=1, devices_per_node=world, hbm_bytes=10**9, uvm_bytes=0, host_bytes=0)
    lowered = lower(plan, tables, topology, Precision.FP32)
    settings = StepSettings(dense=SHAPE, optimizer=Optimizer.SGD, learning_rate=0.01, dense_seed=0)
    harness = TrainingStep(lowered, settings, torch.device("cpu"), CpuClock())
    return harness, HandwrittenLoop(homes)


def make_batches(step: TrainingStep, number: int) -> list[LocalBatch]:
    """Draw local batches of this rank."""
    rng = np.random.default_rng(dist.get_rank())
    offsets = np.arange(LOCAL_BATCH + 1) * POOLING
    batches = []
    for _ in range(number):
        bags = [Bags(values=rng.integers(0, ROWS, offsets[-1]), offsets=offsets) for _ in range(TABLES)]
        batches.append(
            LocalBatch(
                dense=torch.randn(LOCAL_BATCH, SHAPE.features),
                sparse=step.lowered.local_lookups(lambda i, b=bags: b[i]),
                labels=torch.randint(0, 2, (LOCAL_BATCH,)).float(),
            )
        )
    return batches


def slowest(seconds: float) -> float:
    """Return the seconds of the slowest rank."""
    tensor = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


def main(out: Path) -> None:
    """Take the steps on this rank, and write the ratios on rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    harness, hand = make_steps(dist.get_world_size())
    batches = make_batches(harness, 4)

    def run(which: str, batch: LocalBatch) -> float:
        dist.barrier()
        start = time.perf_counter()
        if which == "harness":
            harness(batch)
        else:
            (sparse,) = batch.sparse.jagged.values()
            hand(batch.dense, sparse, batch.labels)
        return slowest(time.perf_counter() - start)

    ratios = []
    for pair in range(-WARMUP, PAIRS):
        order = ("harness", "hand") if pair % 2 else ("hand", "harness")
        seconds = {which: run(which, batches[pair % len(batches)]) for which in order}
        if pair >= 0:
            ratios.append(seconds["harness"] / seconds["hand"])
    if dist.get_rank() == 0:
        out.write_text(json.dumps(ratios) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
