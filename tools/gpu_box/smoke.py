"""Whether the engine runs here at all: each optimizer forward and backward in each tier, and one step of each kind.

It times nothing: its notes say what the other parts can hope for.
"""

import torch
from box import Box
from drawing import draw
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from steps import Bench, release, time_steps
from tbe import TIERS, even_bags, fused_tables
from tiers import config_of
from torchrec_loop import TorchRecLoop

from shardbench.model.plan import Host, OnRank, Placement, Tier

OPTIMIZERS = (
    EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.ADAM,
)  # fmt: skip
TABLES, ROWS, WIDTH, BATCH, POOLING = 4, 10_000, 64, 256, 5


def measure(box: Box) -> None:
    """Try the kernels one by one, then a step of TorchRec's, then steps of plans with tables in each memory."""
    for tier in TIERS:
        if box.cpu and tier != "hbm":
            box.skip(f"tables in {tier}", "a CPU has one memory")
            continue
        for optimizer in OPTIMIZERS:
            for pooled in (True, False):
                with box.attempt(f"{optimizer.value} in {tier}, {'pooled' if pooled else 'unpooled'}"):
                    _try_kernels(box, tier, optimizer, pooled=pooled)
    with box.attempt("a step of TorchRec's"):
        loop = TorchRecLoop(box, tables=4, rows=ROWS, batch=64)
        loss = [float(loop.step()) for _ in range(3)][-1]
        box.note(torchrec_step="runs", loss=loss)
    with box.attempt("steps of plans"):
        _try_plans(box)


def _try_plans(box: Box) -> None:
    config = config_of(tables=3, seed=12632, dim=16, batch=128, profile=1024, batches=2)
    bench = Bench(box, "smoke", draw(config, processes=1), config.test_batches)
    whole_bytes = sum(4 * table.rows * table.dim for table in bench.workload.tables)
    problem = bench.problem(box.machine(hbm_bytes=whole_bytes, uvm_bytes=whole_bytes))
    places: dict[str, Placement] = {
        "a host": Host(node=0), "uvm": OnRank(rank=0, tier=Tier.UVM),
        "a cache": OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.2),
    }  # fmt: skip
    for name, place in places.items():
        with box.attempt(f"a step of tables in {name}"):
            asked = bench.judge(name, bench.all_at(problem, place), problem, 0.0)
            time_steps(box, bench.build(asked, bench.timed, threads=1), range(3))
            box.note(step="runs", tables_in=name)
        release(box)


def _try_kernels(box: Box, tier: str, optimizer: EmbOptimType, *, pooled: bool) -> None:
    tables = fused_tables(box, [(ROWS, WIDTH)] * TABLES, tier=tier, optimizer=optimizer, pooled=pooled)
    ids, offsets = even_bags(box, TABLES, ROWS, BATCH, POOLING)
    vectors = tables(ids, offsets)
    right = 0.01 * POOLING if pooled else 0.01
    wrong = float((vectors.detach() - right).abs().max())
    if wrong > 1e-5:
        raise ValueError(f"vectors of equal weights are off by {wrong}")
    vectors.backward(torch.ones_like(vectors))
    box.clock.settle()
    changed = float((tables.split_embedding_weights()[0] - 0.01).abs().max()) if tier != "cached" else 1.0
    if not changed:
        raise ValueError("the backward pass changed no weight")
    box.note(kernels="run", tier=tier, optimizer=optimizer.value, pooled=pooled)
