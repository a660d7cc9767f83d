"""FAE's phases on local CPU ranks."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardbench.execute.phased import GlobalBatch, PhasedModel
from shardbench.execute.phased_ranks import PhasedResult, train_in_phases
from shardbench.hotness import HotPrefix, hot_samples, pack
from shardbench.plan import PhaseKind
from shardbench.study import Row
from shardbench.table import DenseShape, Optimizer

from .accuracy import choose_hot
from .clicks import DIM, FEATURES, click_data

WARMUP = 3
"""Mini-batches after a switch that are not timed: a rank's first ones set buffers up."""
EACH = 20
"""Timed mini-batches of a kind."""


def measure_phases(ranks: int, batch_size: int, seed: int, folder: Path) -> Sequence[Row]:
    """Cold, hot, cold and hot mini-batches of the click model's inputs on ``ranks`` ranks."""
    data = click_data(seed, 262_144, 4096)
    choice = choose_hot(data)
    model = PhasedModel(
        tables=data.tables,
        hot=choice.rows,
        dense=DenseShape(features=FEATURES, bottom=(32, DIM), top=(64, 32, 1)),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        learning_rate=0.05,
    )
    tests = [HotPrefix(hot=hot, rows=table.rows) for hot, table in zip(choice.rows, data.tables)]
    hot = hot_samples(data.train.tables.__getitem__, tests, len(data.train))
    packed = pack(hot, batch_size)
    batches: list[GlobalBatch] = []
    for kind in (PhaseKind.COLD, PhaseKind.HOT) * 2:
        for pure in [b for b in packed if b.kind is kind][: WARMUP + EACH]:
            chosen = data.train.at(pure.samples)
            batches.append(GlobalBatch(kind=kind, tables=chosen.tables, dense=chosen.dense, labels=chosen.labels))
    with tempfile.TemporaryDirectory(dir=folder, prefix="phases-") as work:
        results = train_in_phases(model, batches, ranks, Path(work), seed=seed)
    return [_row(kind, batches, results, float(hot.mean())) for kind in PhaseKind]


def _row(kind: PhaseKind, batches: Sequence[GlobalBatch], results: Sequence[PhasedResult], hot_share: float) -> Row:
    kinds = [batch.kind for batch in batches]
    begins = [i for i, k in enumerate(kinds) if k is kind and (i == 0 or kinds[i - 1] is not kind)]
    chosen = [i for i, k in enumerate(kinds) if k is kind and all(not b <= i < b + WARMUP for b in begins)]
    steps = np.max([r.step_ms for r in results], axis=0)[chosen]
    sent = [sum(v for n, v in r.sent[i].items() if n != "synchronise") for r in results for i in chosen]
    switches = [i for i in begins if i > 0]
    copied = np.max([r.switch_ms for r in results], axis=0)[switches]
    return {
        "kind": kind.value,
        "backend": "measured",
        "steps": len(chosen),
        "step_ms": float(np.median(steps)),
        "step_ms_low": float(np.percentile(steps, 25.0)),
        "step_ms_high": float(np.percentile(steps, 75.0)),
        "sent_bytes_a_step": float(np.sum(sent) / len(chosen)),
        "switch_ms": float(np.median(copied)),
        "hot_rows": len(results[0].replica),
        "replicas_equal": all(r.replica.tobytes() == results[0].replica.tobytes() for r in results),
        "hot_inputs_pct": 100.0 * hot_share,
    }
