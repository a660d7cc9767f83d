"""Phased training on local ranks: each a process of its own with a deadline, over gloo; or by one with a GPU."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from shardbench.base.errors import Unsupported
from shardbench.engine.inputs import seeded_weights
from shardbench.engine.phased.exchange import Wire
from shardbench.engine.phased.training import GlobalBatch, PhasedModel, PhasedTrainer
from shardbench.model.plan import PhaseKind
from shardbench.processes.launch import call_in_child
from shardbench.workloads.trace import Bags


@dataclass(frozen=True, kw_only=True, eq=False)
class PhasedResult:
    """What one rank trained and took.

    ``step_ms[i]`` is mini-batch i without the copies before it, which are in ``switch_ms[i]`` (0
    where the kind stays). ``sent[i]`` are bytes by collective, ``copied[i]`` bytes of copied hot
    rows (see Wire). Weights and moments (empty for SGD) of the replica as the last hot mini-batch
    left it, and on the host's rank of the master.
    """

    rank: int
    step_ms: tuple[float, ...]
    switch_ms: tuple[float, ...]
    sent: tuple[dict[str, float], ...]
    copied: tuple[dict[str, float], ...]
    logits: tuple[np.ndarray, ...]
    replica: np.ndarray
    replica_moments: np.ndarray
    master: np.ndarray
    master_moments: np.ndarray


def train_in_phases(
    model: PhasedModel,
    batches: Sequence[GlobalBatch],
    world: int,
    folder: Path,
    *,
    seed: int = 0,
    timeout_s: float = 120.0,
    device: Literal["cpu", "cuda"] = "cpu",
) -> list[PhasedResult]:
    """Train on the mini-batches in order from seeded weights, on ``world`` local ranks; raises TrialFailed.

    With ``device`` cuda, replica and dense model are on a GPU and the master in host memory, looked
    up by the CPU; one process only (Unsupported for more: their exchanges are gloo's, between CPUs).
    Ends with the hot rows back on the host. ``folder`` (made, and left to the caller) holds the
    mini-batches and the ranks' logs.
    """
    if device == "cuda" and world > 1:
        raise Unsupported(f"phases run with a GPU in one process, not on {world} ranks")
    folder = folder.resolve()  # a file:// address needs the whole path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    save_batches(batches, folder / "batches.npz")

    def run(rank: int) -> PhasedResult:
        log = folder / f"rank{rank}.log"
        return call_in_child(
            train_rank,
            (model, folder, (rank, world, device), seed, timeout_s),
            timeout_s=timeout_s,
            phase="time",
            log=log,
        )

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def train_rank(
    model: PhasedModel, folder: Path, place: tuple[int, int, str], seed: int, timeout_s: float
) -> PhasedResult:
    """One rank's process; ``place`` is (rank, ranks in all, device)."""
    rank, world, device = place
    torch.set_num_threads(1)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", f"file://{folder / 'rendezvous'}", rank=rank, world_size=world, timeout=timeout)
    wire = Wire()
    weights = None
    if wire.is_host:
        weights = torch.cat([seeded_weights(table, i, seed) for i, table in enumerate(model.tables)])
    trainer = PhasedTrainer(model, weights, wire, torch.device(device))
    step_ms, switch_ms, sent, copied, logits = [], [], [], [], []
    for batch in load_batches(folder / "batches.npz"):
        dist.barrier()
        start = time.perf_counter()
        trainer.switch(batch.kind)
        _finish(device)
        dist.barrier()
        middle = time.perf_counter()
        logits.append(trainer(batch).cpu().numpy())
        _finish(device)
        step_ms.append(1e3 * (time.perf_counter() - middle))
        switch_ms.append(1e3 * (middle - start))
        sent.append(dict(wire.sent))
        copied.append(dict(wire.copied))
        wire.sent.clear()
        wire.copied.clear()
    trainer.switch(PhaseKind.COLD)
    result = PhasedResult(
        rank=rank,
        step_ms=tuple(step_ms),
        switch_ms=tuple(switch_ms),
        sent=tuple(sent),
        copied=tuple(copied),
        logits=tuple(logits),
        replica=_numbers(trainer.replica.weights),
        replica_moments=_numbers(trainer.replica.moments),
        master=_numbers(trainer.master.weights if trainer.master else None),
        master_moments=_numbers(trainer.master.moments if trainer.master else None),
    )
    dist.barrier()
    dist.destroy_process_group()
    return result


def _numbers(tensor: torch.Tensor | None) -> np.ndarray:
    return np.empty(0, dtype=np.float32) if tensor is None else tensor.cpu().numpy()


def _finish(device: str) -> None:
    """Wait for what a GPU was told to do, so that clocks see it."""
    if device == "cuda":
        torch.cuda.synchronize()


def save_batches(batches: Sequence[GlobalBatch], path: Path) -> None:
    """Write mini-batches as one .npz."""
    arrays: dict[str, np.ndarray] = {"kinds": np.array([batch.kind.value for batch in batches])}
    for i, batch in enumerate(batches):
        arrays[f"{i}.values"] = np.concatenate([bags.values for bags in batch.tables])
        arrays[f"{i}.lengths"] = np.stack([bags.lengths for bags in batch.tables])
        arrays[f"{i}.dense"], arrays[f"{i}.labels"] = batch.dense, batch.labels
    np.savez(path, allow_pickle=False, **arrays)


def load_batches(path: Path) -> list[GlobalBatch]:
    """Read what ``save_batches`` wrote."""
    with np.load(path) as file:
        return [
            GlobalBatch(
                kind=PhaseKind(str(kind)),
                tables=_bags(file[f"{i}.values"], file[f"{i}.lengths"]),
                dense=file[f"{i}.dense"],
                labels=file[f"{i}.labels"],
            )
            for i, kind in enumerate(file["kinds"])
        ]


def _bags(values: np.ndarray, lengths: np.ndarray) -> tuple[Bags, ...]:
    offsets = [np.concatenate([[0], np.cumsum(row, dtype=np.int64)]) for row in lengths]
    ends = np.cumsum([row[-1] for row in offsets])
    return tuple(Bags(values=part, offsets=row) for part, row in zip(np.split(values, ends[:-1]), offsets))
