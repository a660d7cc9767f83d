"""Trains the click model in FAE's order and in shuffled order: learning curves on held-out inputs.

The click model has summed bags only: no Taobao (deviation 11).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardbench.base.arrays import Floats, Ints
from shardbench.engine.phased.training import GlobalBatch, PhasedModel, PhasedTrainer
from shardbench.model.plan import PhaseKind
from shardbench.model.table import DenseShape, Optimizer
from shardbench.workloads.hotness import HotPrefix, HotRows, hot_samples, pack

from ..calibrator import HotChoice, calibrate
from ..scheduler import RateRule, next_turn
from .clicks import DIM, ClickData, ClickInputs, auc, log_loss

BATCH_SIZE = 512
LEARNING_RATE = 0.015
"""The rate at which shuffled training learns through the study's four epochs; at 0.05 it overfits after the first."""
BUDGET_SHARE = 0.5
"""L as a share of the bytes of all rows that were seen: room for every row that the log has (deviation 13)."""
ORDERS = ("shuffled", "fae", "shuffled-again")
"""Orders of training: mixed mini-batches; FAE with the loss-driven rate; mixed ones in another random order.

The last shows the difference that the order alone makes with one seed.
"""
MIXED = {"shuffled": 5, "shuffled-again": 6}
"""The stream of each mixed order's random numbers; FAE's is that of ``shuffled``."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Held-out quality after some mini-batches."""

    batches: int
    auc: float
    log_loss: float
    switches: int


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Learning curve of one training, and what was hot."""

    curve: tuple[CurvePoint, ...]
    hot_inputs_share: float
    hot_rows_share: float


def choose_hot(data: ClickData) -> HotChoice:
    """Choose the hot rows by the calibrator, from the sampled log."""
    row_bytes = [4 * DIM + 4] * len(data.tables)
    budget = round(BUDGET_SHARE * sum(table.rows * size for table, size in zip(data.tables, row_bytes)))
    return calibrate(data.profiles, row_bytes, budget)


def train(data: ClickData, order: str, *, seed: int, epochs: int, checks: int = 4) -> TrainingRun:
    """Train for some epochs with ``checks`` checkpoints in each; the same for the same seed.

    The first half of the held-out inputs steers the rate, the second half is reported.
    """
    choice = choose_hot(data)
    model = PhasedModel(
        tables=data.tables,
        hot=choice.rows,
        dense=DenseShape(features=data.train.dense.shape[1], bottom=(32, DIM), top=(64, 32, 1)),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        learning_rate=LEARNING_RATE,
        dense_seed=seed,
    )
    rows = sum(table.rows for table in data.tables)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(rows, DIM).uniform_(-0.05, 0.05, generator=generator)
    trainer = PhasedTrainer(model, weights)
    tests = [HotPrefix(hot=hot, rows=table.rows) for hot, table in zip(choice.rows, data.tables)]
    half = len(data.test) // 2
    steering, reported = data.test.at(np.arange(half)), data.test.at(np.arange(half, len(data.test)))
    curve: list[CurvePoint] = []
    share = 0.0
    every = max(1, len(data.train) // BATCH_SIZE // checks)
    rule = RateRule()
    batches = 0
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, MIXED.get(order, MIXED["shuffled"]), epoch])
        epoch_batches = _Epoch(data.train, tests, rng, mixed=order in MIXED)
        share = epoch_batches.hot_share
        while not epoch_batches.over:
            for batch in epoch_batches.run(rule.rate_pct):
                trainer(batch)
                batches += 1
                if batches % every == 0:
                    curve.append(_check(trainer, reported, batches))
            if order == "fae":
                rule = rule.after(log_loss(_logits(trainer, steering), steering.labels))
    if not curve or curve[-1].batches != batches:
        curve.append(_check(trainer, reported, batches))
    return TrainingRun(curve=tuple(curve), hot_inputs_share=share, hot_rows_share=sum(choice.rows) / rows)


class _Epoch:
    """Mini-batches of one epoch, each sample once: mixed ones, or pure ones taken turn by turn.

    Inputs are packed in a new random order every epoch (deviation 12).
    """

    def __init__(self, inputs: ClickInputs, rows: Sequence[HotRows], rng: np.random.Generator, *, mixed: bool) -> None:
        self._inputs, self.mixed = inputs, mixed
        self._order = rng.permutation(len(inputs))
        hot = hot_samples(inputs.tables.__getitem__, rows, len(inputs))[self._order]
        self.hot_share = int(np.count_nonzero(hot)) / len(hot)
        self._queues: dict[PhaseKind, list[Ints]] = {}
        if mixed:
            self._queues[PhaseKind.COLD] = np.split(self._order, range(BATCH_SIZE, len(inputs), BATCH_SIZE))
        else:
            for batch in pack(hot, BATCH_SIZE):
                self._queues.setdefault(batch.kind, []).append(self._order[batch.samples[: batch.fresh]])
        self._totals = {kind: len(batches) for kind, batches in self._queues.items()}

    @property
    def over(self) -> bool:
        return not any(self._queues.values())

    def run(self, rate_pct: float) -> Iterator[GlobalBatch]:
        """Yield the next turn of both kinds, cold first; mixed mini-batches all at once."""
        for kind in (PhaseKind.COLD, PhaseKind.HOT):
            queue = self._queues.get(kind, [])
            count = len(queue) if self.mixed else next_turn(self._totals.get(kind, 0), len(queue), rate_pct)
            now, self._queues[kind] = queue[:count], queue[count:]
            for samples in now:
                yield global_batch(self._inputs.at(samples), kind)


def global_batch(inputs: ClickInputs, kind: PhaseKind) -> GlobalBatch:
    """Return the inputs as one mini-batch."""
    return GlobalBatch(kind=kind, tables=inputs.tables, dense=inputs.dense, labels=inputs.labels)


def _check(trainer: PhasedTrainer, inputs: ClickInputs, batches: int) -> CurvePoint:
    kind, switches = trainer.kind, trainer.switches
    logits = _logits(trainer, inputs)
    # Looking at a curve is no part of the schedule: its copies are exact and not counted.
    trainer.switch(kind)
    trainer.switches = switches
    return CurvePoint(
        batches=batches,
        auc=auc(logits, inputs.labels),
        log_loss=log_loss(logits, inputs.labels),
        switches=switches,
    )


def _logits(trainer: PhasedTrainer, inputs: ClickInputs) -> Floats:
    return trainer.predict(global_batch(inputs, PhaseKind.COLD)).numpy().astype(np.float64)
