"""A plain TorchRec training loop, as a user would write it: DistributedModelParallel and DLRM.

Nothing of the suite's executor is used here: it is what the executor is compared with.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward


class HandwrittenLoop:
    """Whole tables ``(rows, dim)`` on ``homes``; call with dense features, lookups and labels."""

    def __init__(
        self, shapes: Sequence[tuple[int, int]], homes: Sequence[int], bottom: list[int], top: list[int], features: int
    ) -> None:
        names = [f"t{i}_s0" for i in range(len(shapes))]
        tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name])
                for name, (rows, dim) in zip(names, shapes)
            ],
            device=torch.device("meta"),
        )
        apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": 0.01})
        model = DLRM(tables, features, bottom, top)
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
