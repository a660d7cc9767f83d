"""Ids made distinct before they are looked up: what it costs, and what it saves.

TorchRec's ``use_index_dedup`` sends and looks up each id once, and puts the vectors back in the places of all lookups.
It calls FBGEMM's ``jagged_unique_indices``, which CPUs lack; ``torch.unique`` does the same. The cost model predicts
the lookups, and the copy of vectors into another order; it has no term for making ids distinct, nor for the sum of the
gradients of equal ids, so that nothing is predicted of them.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from box import Box
from cases import BEHIND, IDLE, Lookups, Stopwatch, predicted_ms
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from shardbench.calibrate.kernels import fused_tables
from shardbench.cost.load import segment_load
from shardbench.model.plan import Tier
from shardbench.model.table import Optimizer, Precision

NUMBERS = (1_000_000, 100_000, 3_000_000, 300_000)
SHARES = (0.024, 0.2, 0.006, 0.9)
"""Distinct ids over all."""
DIMS = (128, 512)
ROWS = 3_000_000
SPREAD = 7919
"""A prime: its multiples modulo the number of rows are all different, and lie far apart."""
BAG = 10
WARMUPS, RUNS = 2, 6


@dataclass(frozen=True)
class Ids:
    """Ids of one table, those that are distinct, and where each of all is among them."""

    all: torch.Tensor
    distinct: torch.Tensor
    inverse: torch.Tensor
    share: float

    def what(self) -> dict[str, Any]:
        """Return what the ids are, as a row of numbers states it."""
        return {"ids": len(self.all), "distinct": len(self.distinct), "share": self.share}


def measure(box: Box) -> None:
    """Measure the making first, of every size, then the lookups of narrow tables, then of wide ones."""
    stopwatch, rows = Stopwatch(box), ROWS // 100 if box.cpu else ROWS
    for number, share in _sizes(box):
        if box.over(0.5):
            return
        with box.attempt(f"{number} ids, {share:g} of them distinct"):
            _make_distinct(box, stopwatch, _draw_ids(box, number, share, rows), rows)
    for dim in DIMS[: 1 if box.cpu else None]:
        with box.attempt(f"lookups of distinct ids, {dim} columns"):
            box.check_room(4 * rows * dim)
            tables = fused_tables(box.device, [(rows, dim)], pooled=False)
            for number, share in _sizes(box):
                if box.over(1.5):
                    return
                with box.attempt(f"lookups of {number} ids of {dim} columns, {share:g} of them distinct"):
                    _look_up(box, stopwatch, tables, _draw_ids(box, number, share, rows), rows, dim)
            del tables


def _sizes(box: Box) -> Iterator[tuple[int, float]]:
    return product((NUMBERS[0] // 1000,), SHARES[:2]) if box.cpu else product(NUMBERS, SHARES)


def _draw_ids(box: Box, number: int, share: float, rows: int) -> Ids:
    """Draw ids of which exactly a share is distinct, in random order, spread over all rows."""
    generator = torch.Generator(device=box.device).manual_seed(zlib.crc32(repr((number, share)).encode()))
    distinct = max(1, round(share * number))
    once = torch.arange(distinct, device=box.device)
    again = torch.randint(0, distinct, (number - distinct,), device=box.device, generator=generator)
    order = torch.randperm(number, device=box.device, generator=generator)
    ids = (torch.cat([once, again])[order] * SPREAD) % rows
    unique, inverse = torch.unique(ids, return_inverse=True)
    return Ids(ids, unique, inverse, share)


def _make_distinct(box: Box, stopwatch: Stopwatch, ids: Ids, rows: int) -> None:
    """Time both ways of making ids distinct."""
    what: dict[str, Any] = ids.what() | {"rows": rows, "phase": "make distinct"}
    with box.attempt(f"torch.unique, {ids.what()}"):
        _keep(box, stopwatch, lambda: torch.unique(ids.all, return_inverse=True), None, of="torch.unique", **what)
    if box.cpu:
        box.skip(f"jagged_unique_indices, {ids.what()}", "FBGEMM has it for GPUs alone")
        return
    with box.attempt(f"jagged_unique_indices, {ids.what()}"):
        # As TorchRec calls it for one feature: where rows of a feature begin, its number, offsets of bags, and ids.
        starts = torch.tensor([0, rows], device=box.device)
        features = torch.tensor([0, 1], device=box.device)
        offsets = _offsets(box, len(ids.all))

        def unique() -> Any:
            return torch.ops.fbgemm.jagged_unique_indices(starts, features, offsets, ids.all)

        _, _, distinct, inverse = unique()
        if len(distinct) != len(ids.distinct) or not torch.equal(distinct[inverse], ids.all):
            box.note(wrong="jagged_unique_indices", distinct=len(distinct), **ids.what())
        _keep(box, stopwatch, unique, None, of="jagged_unique_indices", **what)


def _keep(
    box: Box, stopwatch: Stopwatch, work: Callable[[], object], predicted: float | None, *, how: str = IDLE, **what: Any
) -> None:
    """Time one piece of work and keep it."""
    times, marks = stopwatch.of(work, how=how, **_often(box))
    box.add("dedup", times, predicted, how=how, **what, **marks)


def _look_up(
    box: Box, stopwatch: Stopwatch, tables: SplitTableBatchedEmbeddingBagsCodegen, ids: Ids, rows: int, dim: int
) -> None:
    """Time a lookup of all ids, one of the distinct ids, and the vectors' way back to the places of all."""
    # Four times the vectors, and the ids.
    box.check_room((16 * dim + 100) * len(ids.all))
    what = ids.what() | {"rows": rows, "dim": dim, "optimizer": "sgd", "tier": "hbm", "pooled": "none"}
    for how in (IDLE,) if box.cpu else (IDLE, BEHIND):
        for name, looked_up in (("all ids", ids.all), ("distinct ids", ids.distinct)):
            lookups = Lookups(looked_up, _offsets(box, len(looked_up)), ())
            load = segment_load(
                lookups=np.array([len(looked_up)], dtype=float), distinct=float(len(ids.distinct)),
                bags=float(len(looked_up)), rows=rows, columns=dim, unpooled=True, tier=Tier.HBM,
                precision=Precision.FP32, state=Optimizer.SGD.state_bytes(dim),
            )  # fmt: skip
            predicted = predicted_ms(load, box.whole_machine)
            times = stopwatch.times(tables, lookups, how=how, **_often(box))
            own = what | {"of": f"lookup of {name}", "how": how} | stopwatch.marks(times)
            for phase in ("forward", "backward"):
                box.add("dedup", times[phase], predicted[phase, how], phase=phase, **own)
        _put_back(box, stopwatch, ids, dim, what | {"of": "index_select of the vectors", "how": how})


def _put_back(box: Box, stopwatch: Stopwatch, ids: Ids, dim: int, what: dict[str, Any]) -> None:
    """Time the copy of the distinct ids' vectors to the places of all ids, and the sum of gradients on the way back."""
    copied_ms = 4e3 * dim * len(ids.all) / box.whole_machine.constants.vector_copy_bytes_per_s
    vectors = torch.full((len(ids.distinct), dim), 0.01, device=box.device, requires_grad=True)
    with torch.no_grad():
        _keep(box, stopwatch, lambda: vectors.index_select(0, ids.inverse), copied_ms, phase="forward", **what)
    all_vectors = vectors.index_select(0, ids.inverse)
    gradient = torch.ones_like(all_vectors)

    def sum_gradients() -> object:
        return torch.autograd.grad(all_vectors, vectors, gradient, retain_graph=True)

    _keep(box, stopwatch, sum_gradients, None, phase="backward", **what)


def _often(box: Box) -> dict[str, Any]:
    return {"warmups": 1, "runs": 1} if box.cpu else {"warmups": WARMUPS, "runs": RUNS}


def _offsets(box: Box, ids: int) -> torch.Tensor:
    """Return the offsets of bags of ten ids each, the last of which may be shorter."""
    bags = -(-ids // BAG)
    return (torch.arange(bags + 1, device=box.device) * BAG).clamp_(max=ids)
