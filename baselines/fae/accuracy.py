"""Training the click model in FAE's order and in shuffled order: learning curves on held-out inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from shardbench.execute.phased import GlobalBatch, PhasedModel, PhasedTrainer
from shardbench.execute.wire import Wire
from shardbench.hotness import HotPrefix, hot_samples
from shardbench.plan import PhaseKind
from shardbench.table import DenseShape, Optimizer

from .calibrator import HotChoice, calibrate
from .clicks import DIM, FEATURES, ClickData, Inputs, auc, log_loss
from .scheduler import RateRule, next_turn

Ints = NDArray[np.int64]

BATCH_SIZE = 512
LEARNING_RATE = 0.05
BUDGET_SHARE = 0.5
"""L as a share of the bytes of all rows that were seen: hot rows then need two lookups, the most but all."""
ORDERS = ("shuffled", "fae", "fae-r1", "fae-r100")
"""Mixed mini-batches; FAE with the loss-driven rate; FAE with one rate throughout, 1 % and 100 %."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Held-out quality after some mini-batches; ``rate_pct`` is FAE's rate then, NaN for mixed mini-batches."""

    batches: int
    auc: float
    log_loss: float
    rate_pct: float
    switches: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Learning curve of one training, and what was hot."""

    curve: tuple[Checkpoint, ...]
    hot_inputs_share: float
    hot_rows_share: float


def choose_hot(data: ClickData) -> HotChoice:
    """The hot rows, by the calibrator."""
    row_bytes = [4 * DIM + 4] * len(data.tables)
    budget = round(BUDGET_SHARE * sum(table.rows * size for table, size in zip(data.tables, row_bytes)))
    return calibrate(data.profiles, row_bytes, budget)


def train(data: ClickData, order: str, *, seed: int, epochs: int, checks: int = 8) -> Run:
    """Train for some epochs with ``checks`` checkpoints in each; the same for the same seed.

    The first half of the held-out inputs steers the rate, the second half is reported.
    """
    choice = choose_hot(data)
    model = PhasedModel(
        tables=data.tables,
        hot=choice.rows,
        dense=DenseShape(features=FEATURES, bottom=(32, DIM), top=(64, 32, 1)),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        learning_rate=LEARNING_RATE,
        dense_seed=seed,
    )
    rows = sum(table.rows for table in data.tables)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(rows, DIM).uniform_(-0.05, 0.05, generator=generator)
    trainer = PhasedTrainer(model, weights, Wire())
    tests = [HotPrefix(hot=hot, rows=table.rows) for hot, table in zip(choice.rows, data.tables)]
    hot = hot_samples(data.train.tables.__getitem__, tests, len(data.train))
    half = len(data.test) // 2
    steering, reported = data.test.at(np.arange(half)), data.test.at(np.arange(half, len(data.test)))
    curve: list[Checkpoint] = []
    every = max(1, len(data.train) // BATCH_SIZE // checks)
    rule = _first_rule(order)
    done = 0
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, 5, epoch])
        turns = _Epoch(data.train, hot, rng, mixed=order == "shuffled")
        while not turns.over:
            for batch in turns.run(rule.rate_pct):
                trainer(batch)
                done += 1
                if done % every == 0:
                    curve.append(_check(trainer, reported, done, rule, mixed=turns.mixed))
            if order == "fae":
                rule = rule.after(_loss(trainer, steering))
    if not curve or curve[-1].batches != done:
        curve.append(_check(trainer, reported, done, rule, mixed=order == "shuffled"))
    return Run(curve=tuple(curve), hot_inputs_share=float(hot.mean()), hot_rows_share=sum(choice.rows) / rows)


def _first_rule(order: str) -> RateRule:
    fixed = {"fae-r1": 1.0, "fae-r100": 100.0}
    return RateRule(rate_pct=fixed[order]) if order in fixed else RateRule()


class _Epoch:
    """Mini-batches of one epoch: each sample once, shuffled within its kind; taken turn by turn."""

    def __init__(self, inputs: Inputs, hot: NDArray[np.bool_], rng: np.random.Generator, *, mixed: bool) -> None:
        self._inputs, self.mixed = inputs, mixed
        kinds = {PhaseKind.COLD: np.arange(len(inputs))} if mixed else {
            PhaseKind.COLD: np.flatnonzero(~hot), PhaseKind.HOT: np.flatnonzero(hot)
        }  # fmt: skip
        self._left = {kind: _batches(rng.permutation(samples)) for kind, samples in kinds.items() if len(samples)}
        self._totals = {kind: len(batches) for kind, batches in self._left.items()}

    @property
    def over(self) -> bool:
        return not any(self._left.values())

    def run(self, rate_pct: float) -> Iterator[GlobalBatch]:
        """The next turn of both kinds; mixed mini-batches all at once."""
        for kind, left in self._left.items():
            count = len(left) if self.mixed else next_turn(self._totals[kind], len(left), rate_pct)
            now, self._left[kind] = left[:count], left[count:]
            for samples in now:
                yield _global(self._inputs.at(samples), kind)


def _batches(samples: Ints) -> list[Ints]:
    return np.split(samples, range(BATCH_SIZE, len(samples), BATCH_SIZE))


def _global(inputs: Inputs, kind: PhaseKind) -> GlobalBatch:
    return GlobalBatch(kind=kind, tables=inputs.tables, dense=inputs.dense, labels=inputs.labels)


def _check(trainer: PhasedTrainer, inputs: Inputs, done: int, rule: RateRule, *, mixed: bool) -> Checkpoint:
    kind, switches = trainer.kind, trainer.switches
    logits = trainer.predict(_global(inputs, PhaseKind.COLD)).numpy().astype(np.float64)
    # Looking at a curve is no part of the schedule: its copies are exact and not counted.
    trainer.switch(kind)
    trainer.switches = switches
    return Checkpoint(
        batches=done,
        auc=auc(logits, inputs.labels),
        log_loss=log_loss(logits, inputs.labels),
        rate_pct=float("nan") if mixed else rule.rate_pct,
        switches=switches,
    )


def _loss(trainer: PhasedTrainer, inputs: Inputs) -> float:
    logits = trainer.predict(_global(inputs, PhaseKind.COLD)).numpy().astype(np.float64)
    return log_loss(logits, inputs.labels)
