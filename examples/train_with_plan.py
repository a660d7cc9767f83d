"""Train with an exported plan, in TorchRec's own DistributedModelParallel.

    shardbench export PLAN.json --out plan.torchrec.json
    torchrun --standalone --nproc-per-node 2 examples/train_with_plan.py plan.torchrec.json
    python examples/train_with_plan.py plan.torchrec.json --unsharded    # the same steps in one process

Prints the loss of every step. The model and the clicks are made up; the tables are the plan's. What
a trainer of yours needs is marked with numbers.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.torchrec import Exported, load_tables, parameters_of_replicas, sharding_plan, split

BATCH, STEPS, RATE = 64, 5, 0.5


class Model(torch.nn.Module):
    """A model of tables, and a layer on their vectors."""

    def __init__(self, tables: EmbeddingBagCollection) -> None:
        super().__init__()
        self.tables: torch.nn.Module = tables
        width = sum(config.embedding_dim for config in tables.embedding_bag_configs())
        self.top = torch.nn.Linear(width, 1)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return the logits float32 [batch]."""
        return self.top(self.tables(lookups).values()).squeeze(1)


def make_model(exported: Exported) -> Model:
    """Make the model, the same on every rank."""
    torch.manual_seed(0)
    configs = [
        EmbeddingBagConfig(name=t.name, feature_names=[f"f_{t.name}"], num_embeddings=t.rows, embedding_dim=t.dim)
        for t in exported.tables
    ]
    return Model(EmbeddingBagCollection(tables=configs, device=torch.device("cpu")))


def batch(exported: Exported, step: int) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Draw the ids of each sample by table, and labels, of the whole batch: a rank takes its part of it."""
    generator = torch.Generator().manual_seed(step)
    ids = [
        [
            (t.rows * torch.rand(int(n), generator=generator) ** 3).long()  # a few ids are asked for often
            for n in torch.randint(0, 6, (BATCH,), generator=generator)
        ]
        for t in exported.tables
    ]
    return ids, torch.randint(0, 2, (BATCH,), generator=generator).float()


def part(exported: Exported, step: int, rank: int, world: int) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    """Return a rank's part of the lookups and labels."""
    ids, labels = batch(exported, step)
    mine = range(rank * BATCH // world, (rank + 1) * BATCH // world)
    bags = [table[sample] for table in ids for sample in mine]
    lookups = KeyedJaggedTensor(
        keys=[f"f_{t.name}" for t in exported.tables],
        values=torch.cat(bags),
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int32),
    )
    return lookups, labels[mine.start : mine.stop]


def sharded(model: Model, exported: Exported, ranks: dict[str, torch.Tensor]) -> tuple[torch.nn.Module, list]:
    """Return the model in DistributedModelParallel, and what an ordinary optimiser steps."""
    weights = {t.name: model.tables.embedding_bags[t.name].weight.detach().clone() for t in exported.tables}
    # 1. The collection of the plan's pieces takes the place of yours; ranks: id -> place in the order of frequency.
    model.tables = split(exported, model.tables, ranks)
    # 2. Tables that all ranks hold are stepped by an ordinary optimiser, the others in the backward pass.
    replicas = {id(p) for p in parameters_of_replicas(exported, model)}
    fused = [p for p in model.tables.parameters() if id(p) not in replicas]
    apply_optimizer_in_backward(torch.optim.SGD, fused, {"lr": RATE})
    # 3. The plan as TorchRec's object.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    if local != exported.devices_per_node:
        raise SystemExit(f"the plan is for nodes of {exported.devices_per_node} ranks, this one has {local}")
    plan = sharding_plan(exported, model, device="cpu")
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=plan,
        sharders=[EmbeddingBagCollectionSharder()],
    )
    # 4. Weights of yours: TorchRec draws new ones for tables that it shards.
    load_tables(parallel, exported, weights)
    stepped_in_backward = set(dict(parallel.fused_optimizer.params))
    return parallel, [p for name, p in parallel.named_parameters() if name not in stepped_in_backward]


def main() -> None:
    """Train as one rank, or with --unsharded the whole model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=Path, help="what shardbench export wrote")
    parser.add_argument("--ranks", type=Path, help="torch file: by table, int64 [rows], each id's place by frequency")
    parser.add_argument("--unsharded", action="store_true")
    arguments = parser.parse_args()
    exported = Exported.from_json(arguments.exported.read_bytes(), str(arguments.exported))
    model: torch.nn.Module = make_model(exported)
    if arguments.unsharded:
        rank, world, ordinary = 0, 1, list(model.parameters())
    else:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        if world != exported.world_size:
            raise SystemExit(f"the plan is for {exported.world_size} ranks, this is a group of {world}")
        ranks = torch.load(arguments.ranks, weights_only=True) if arguments.ranks else {}
        model, ordinary = sharded(model, exported, ranks)
    optimizer = torch.optim.SGD(ordinary, lr=RATE)
    losses = []
    for step in range(STEPS):
        lookups, labels = part(exported, step, rank, world)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(lookups), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach() / world
        if world > 1:
            dist.all_reduce(total)
        losses.append(total.item())
    if rank == 0:
        print(json.dumps({"losses": losses}))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
