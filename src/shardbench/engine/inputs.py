"""What the ranks of a measured trial train on: their shares of mixed test batches, or of pure mini-batches."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch

from shardbench.engine.lower import Lowered
from shardbench.engine.processes.job import RankJob
from shardbench.engine.step import LocalBatch
from shardbench.model.plan import BatchSchedule, PhaseKind, Plan
from shardbench.model.table import DenseShape, Table
from shardbench.workloads.hotness import PureBatch, hot_under, pack
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Bags


def seeded_weights(table: Table, index: int, seed: int) -> torch.Tensor:
    """Reproducible fp32 weights [rows, dim] of a table."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    return torch.empty(table.rows, table.dim).uniform_(-0.1, 0.1, generator=generator)


def seeded_inputs(shape: DenseShape, batch_size: int, seed: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reproducible dense features [batch, features] and labels [batch] of a global batch."""
    rng = np.random.default_rng([seed, batch])
    dense = rng.standard_normal((batch_size, shape.features), dtype=np.float32)
    labels = (rng.random(batch_size) < 0.25).astype(np.float32)
    return torch.from_numpy(dense), torch.from_numpy(labels)


def packed(job: RankJob, plan: Plan, store: Batches) -> list[PureBatch]:
    """Pack all test batches into pure mini-batches, as the simulated backend does (``simulate_schedule``)."""
    hot = [
        hot_under(plan, job.tables, lambda i, n=n: store.bags(n, i), store.batch_size)  # type: ignore[misc]
        for n in range(len(store.numbers))
    ]
    return pack(np.concatenate(hot), job.batch_size)


def in_turn(batches: Sequence[PureBatch], kind: PhaseKind, iterations: int) -> list[int]:
    """List the numbers of the mini-batches of one kind that the iterations take; empty where there is none of it.

    Iteration i takes the one that holds sample i x batch size of the kind, whose samples are gone
    through again and again: over many iterations a mini-batch comes up as often as it has fresh
    samples, so that what fills it up counts for nothing.
    """
    numbers = [number for number, batch in enumerate(batches) if batch.kind is kind]
    if not numbers:
        return []
    ends = np.cumsum([batches[number].fresh for number in numbers])
    at = np.arange(iterations) * len(batches[numbers[0]].samples) % ends[-1]
    return [numbers[place] for place in np.searchsorted(ends, at, side="right")]


def in_schedule(schedule: BatchSchedule, kinds: Sequence[PhaseKind]) -> Iterator[int]:
    """Yield the mini-batches of one epoch by their numbers: each kind's in turn, as often as it takes."""
    waiting = {
        kind: cycle(numbers) for kind in PhaseKind if (numbers := [n for n, own in enumerate(kinds) if own is kind])
    }
    for phase in schedule.phases:
        if phase.kind in waiting:
            yield from islice(waiting[phase.kind], phase.batches)


class Inputs:
    """The samples of one rank: [start, stop) of every global batch."""

    def __init__(self, job: RankJob, rank: int, world: int, device: torch.device) -> None:
        """Take the share of rank ``rank`` of ``world`` that divide a batch among them."""
        share = job.batch_size // world
        self.job, self.store, self.device = job, Batches(Path(job.batches)), device
        self.start, self.stop = rank * share, (rank + 1) * share

    def mixed(self, lowered: Lowered) -> list[LocalBatch]:
        """Return its share of every test batch."""
        return [
            self._local(lowered, n, lambda i, n=n: self.store.bags(n, i, self.start, self.stop))  # type: ignore[misc]
            for n in range(len(self.store.numbers))
        ]

    def pure(self, lowered: Lowered, batch: PureBatch, number: int) -> LocalBatch:
        """Return its share of a pure mini-batch, the ``number``-th."""
        samples = batch.samples[self.start : self.stop]
        return self._local(lowered, number, lambda i: self.store.bags_of(i, samples))

    def _local(self, lowered: Lowered, number: int, bags: Callable[[int], Bags]) -> LocalBatch:
        dense, labels = seeded_inputs(self.job.dense, self.job.batch_size, self.job.seed, number)
        own = slice(self.start, self.stop)
        sparse = lowered.local_lookups(bags)
        return LocalBatch(dense=dense[own], sparse=sparse, labels=labels[own]).to(self.device)
