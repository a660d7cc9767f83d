"""The loop that a user of TorchRec writes: pooled tables, a dense layer, a fused optimizer, one rank."""

import os

import torch
import torch.distributed as dist
from box import Box
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.engine.rank import join_group
from shardbench.model.machine import Topology

WIDTH = 16
ALONE = Topology(nodes=1, devices_per_node=1, hbm_bytes=1, uvm_bytes=1, host_bytes=1)


def join_alone(box: Box) -> None:
    """Make the process group of this one rank, unless it is there."""
    if not dist.is_initialized():
        # A process before this one may have left its file, in which nobody would be met.
        meeting = (box.data / f"rendezvous-{os.getpid()}").resolve()
        join_group(box.device.type, 0, ALONE, f"file://{meeting}", 120.0)


class TorchRecLoop:
    """A small model on one rank, all its tables whole in HBM; a step is forward, backward and update.

    TorchRec's own planner would take seconds for a hundred tables, and may deal rows: a step that waits for lengths.
    """

    def __init__(self, box: Box, *, tables: int, rows: int, batch: int) -> None:
        join_alone(box)
        names = [f"t{number}" for number in range(tables)]
        configs = [
            EmbeddingBagConfig(name=name, embedding_dim=WIDTH, num_embeddings=rows, feature_names=[name])
            for name in names
        ]
        self._labels = torch.zeros(batch, device=box.device)
        draw = torch.Generator(device=box.device).manual_seed(tables)
        values = torch.randint(0, rows, (tables * batch,), device=box.device, generator=draw)
        lengths = torch.ones(tables * batch, dtype=torch.int32, device=box.device)
        self._lookups = KeyedJaggedTensor(keys=names, values=values, lengths=lengths)
        model = _Model(configs)
        apply_optimizer_in_backward(torch.optim.SGD, model.embeddings.parameters(), {"lr": 0.01})
        sharder = EmbeddingBagCollectionSharder()
        whole = {name: table_wise(rank=0, compute_kernel="fused") for name in names}
        plan = construct_module_sharding_plan(
            model.embeddings, whole, sharder, local_size=1, world_size=1, device_type=box.device.type
        )
        self.model = DistributedModelParallel(
            model, device=box.device, plan=ShardingPlan({"embeddings": plan}), sharders=[sharder]
        )
        self._optimizer = torch.optim.SGD(self.model.module.dense.parameters(), lr=0.01)
        self._loss = torch.nn.BCEWithLogitsLoss()

    def step(self) -> torch.Tensor:
        """Train on the batch; return the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self._loss(self.model(self._lookups), self._labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


class _Model(torch.nn.Module):
    def __init__(self, configs: list[EmbeddingBagConfig]) -> None:
        super().__init__()
        self.embeddings = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = torch.nn.Linear(WIDTH * len(configs), 1)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return the logits [batch]."""
        logits: torch.Tensor = self.dense(self.embeddings(lookups).values()).squeeze(1)
        return logits
