"""Train with an exported plan, in TorchRec's own DistributedModelParallel.

    shardbench export PLAN.json --out plan.torchrec.json
    torchrun --standalone --nproc-per-node 2 examples/train_with_plan.py plan.torchrec.json
    python examples/train_with_plan.py plan.torchrec.json --unsharded    # the same steps in one process

Prints the loss of every step. The tables are the plan's, and the model is made up. So are the clicks,
unless --profile names the folder that shardbench profile made, and --clicks the log: a .csv with a
column for each table, whose texts are hashed, and a column label of 0 and 1. What a trainer of yours
needs is marked with numbers.
"""

import argparse
import csv
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.torchrec import Exported, hash_ids, load_tables, parameters_of_replicas, ranks_of, sharding_plan, split

BATCH, STEPS, RATE = 64, 5, 0.5
Batch = tuple[list[list[torch.Tensor]], torch.Tensor]
"""The ids of each sample by table, and labels."""


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


def check_group(exported: Exported) -> None:
    """Exit where torchrun started other ranks than the plan is for, before anything large is made."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != exported.world_size:
        raise SystemExit(f"the plan is for {exported.world_size} ranks, this is a group of {world}: start as many")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if local != exported.devices_per_node:
        raise SystemExit(
            f"the plan is for nodes of {exported.devices_per_node} ranks, this one has {local}: "
            f"export it with --devices-per-node {local}"
        )


def make_model(exported: Exported) -> Model:
    """Make the model, the same on every rank."""
    torch.manual_seed(0)
    configs = [
        EmbeddingBagConfig(name=t.name, feature_names=[f"f_{t.name}"], num_embeddings=t.rows, embedding_dim=t.dim)
        for t in exported.tables
    ]
    return Model(EmbeddingBagCollection(tables=configs, device=torch.device("cpu")))


def read_batches(exported: Exported, log: Path, note: dict[str, Any]) -> list[Batch]:
    """Return whole batches of a log's first rows: a rank takes its part of each."""
    if note["mode"] != "hash":
        raise SystemExit(f"the profile was made with --mode {note['mode']}: only hashed values are read here")
    with log.open(newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file), BATCH * STEPS))
    if len(rows) < BATCH * STEPS:
        raise SystemExit(f"{log} has {len(rows)} rows, {STEPS} batches need {BATCH * STEPS}")
    batches = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        ids = []
        for table in exported.tables:
            # 1. The rows of the raw values, as the profile numbered them; a missing value is no lookup.
            values = [row[table.name] for row in part]
            there = [value for value in values if value or note["missing"] == "row"]
            hashed = hash_ids(there, table=table.name, rows=table.rows, seed=note["seed"], missing=note["missing"])
            lengths = [int(bool(value) or note["missing"] == "row") for value in values]
            ids.append(list(torch.from_numpy(hashed).split(lengths)))
        batches.append((ids, torch.tensor([float(row["label"]) for row in part])))
    return batches


def drawn_batch(exported: Exported, step: int) -> Batch:
    """Draw a whole batch."""
    generator = torch.Generator().manual_seed(step)
    ids = [
        [
            (t.rows * torch.rand(int(n), generator=generator) ** 3).long()  # a few ids are asked for often
            for n in torch.randint(0, 6, (BATCH,), generator=generator)
        ]
        for t in exported.tables
    ]
    return ids, torch.randint(0, 2, (BATCH,), generator=generator).float()


def places(exported: Exported, folder: Path, note: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return each id's place in the order of frequency, int64 [rows], of the tables whose ids are remapped."""
    numbers = {table["name"]: number for number, table in enumerate(note["tables"])}
    return {
        table.name: ranks_of(np.load(folder / f"t{numbers[table.name]}_order.npy"), table.rows)
        for table in exported.tables
        if table.name in exported.remapped
    }


def part(exported: Exported, whole: Batch, rank: int, world: int) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    """Return a rank's part of a batch."""
    ids, labels = whole
    mine = range(rank * BATCH // world, (rank + 1) * BATCH // world)
    bags = [table[sample] for table in ids for sample in mine]
    lookups = KeyedJaggedTensor(
        keys=[f"f_{t.name}" for t in exported.tables],
        values=torch.cat(bags),
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int32),
    )
    return lookups, labels[mine.start : mine.stop]


def sharded(model: Model, exported: Exported, ranks: dict[str, Any]) -> tuple[torch.nn.Module, list]:
    """Return the model in DistributedModelParallel, and what an ordinary optimiser steps."""
    weights = {t.name: model.tables.embedding_bags[t.name].weight.detach().clone() for t in exported.tables}
    # 2. The collection of the plan's pieces takes the place of yours; ranks: id -> place in the order of frequency.
    model.tables = split(exported, model.tables, ranks)
    # 3. Tables that all ranks hold are stepped by an ordinary optimiser, the others in the backward pass.
    replicas = {id(p) for p in parameters_of_replicas(exported, model)}
    fused = [p for p in model.tables.parameters() if id(p) not in replicas]
    apply_optimizer_in_backward(torch.optim.SGD, fused, {"lr": RATE})
    # 4. The plan as TorchRec's object.
    plan = sharding_plan(exported, model, device="cpu")
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=plan,
        sharders=[EmbeddingBagCollectionSharder()],
    )
    # 5. Weights of yours: TorchRec draws new ones for tables that it shards.
    load_tables(parallel, exported, weights)
    stepped_in_backward = set(dict(parallel.fused_optimizer.params))
    return parallel, [p for name, p in parallel.named_parameters() if name not in stepped_in_backward]


def main() -> None:
    """Train as one rank, or with --unsharded the whole model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=Path, help="what shardbench export wrote")
    parser.add_argument("--profile", type=Path, help="folder that shardbench profile made, of which the plan is")
    parser.add_argument("--clicks", type=Path, help="its log: a .csv with a column for each table, and label")
    parser.add_argument("--unsharded", action="store_true")
    arguments = parser.parse_args()
    if arguments.clicks and not arguments.profile:
        parser.error("--clicks needs --profile, which says how its values became rows")
    exported = Exported.from_json(arguments.exported.read_bytes(), str(arguments.exported))
    if not arguments.unsharded:
        check_group(exported)
    # Made-up ids are places by frequency already.
    ranks: dict[str, Any] = dict.fromkeys(exported.remapped)
    batches = [drawn_batch(exported, step) for step in range(STEPS)]
    if arguments.profile:
        note = json.loads((arguments.profile / "prepared.json").read_text())
        ranks = places(exported, arguments.profile, note)
        if arguments.clicks:
            batches = read_batches(exported, arguments.clicks, note)
    model: torch.nn.Module = make_model(exported)
    if arguments.unsharded:
        rank, world, ordinary = 0, 1, list(model.parameters())
    else:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        model, ordinary = sharded(model, exported, ranks)
    optimizer = torch.optim.SGD(ordinary, lr=RATE)
    losses = []
    for whole in batches:
        lookups, labels = part(exported, whole, rank, world)
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
