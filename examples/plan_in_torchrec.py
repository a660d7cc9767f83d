"""Plan TorchRec tables for eight GPUs with ShardBench's planner in place of TorchRec's; no GPU is needed to plan.

`python plan_in_torchrec.py`, in an environment with torch, TorchRec, FBGEMM and ShardBench (docs/use_a_plan.md).
"""

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

from shardbench.torchrec import ShardBenchPlanner

ROWS = (40_000_000, 5_000_000, 800_000, 60_000, 3_000, 400)


def main() -> None:
    """Print whose plan is taken, what it comes to, and where it has each table."""
    configs = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=rows, embedding_dim=64, feature_names=[f"f{i}"])
        for i, rows in enumerate(ROWS)
    ]
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    model = torch.nn.ModuleDict({"tables": tables})
    planner = ShardBenchPlanner(
        Topology(world_size=8, compute_device="cuda"),
        batch_size=4096,
        storage_reservation=FixedPercentageStorageReservation(0.15),
    )
    planner.plan(model, [EmbeddingBagCollectionSharder()])
    print(planner.statistics())


if __name__ == "__main__":
    main()
