"""How well pre-trained networks predict what they were not fitted to: sets and exchanges of unseen tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from shardbench.base.arrays import Floats
from shardbench.learned.tasks.column_shards import augmented
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.records.cell import Row

from ..cost_data import SET_TABLES, WIDTHS
from ..training import NETWORKS, collect

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

SAMPLES = 5000


def unseen_errors(trained: "AnyTrained", tasks: Sequence[Task]) -> Row:
    """Give each network's error on fresh samples of the tasks' tables at all widths, under training profiles.

    ``*_ms2`` mean squared, ``*_error_pct`` mean absolute over mean, ``*_spearman`` rank correlation over all samples
    and devices.
    """
    tables, rng = augmented(tasks, WIDTHS), np.random.default_rng(7)
    data = collect(tables, trained.scaling, SimulatedOracle(), most=SET_TABLES, count=SAMPLES, rng=rng)
    with torch.no_grad():
        predictions = data.predict(trained.networks, np.arange(SAMPLES))
    row: Row = {}
    for name in NETWORKS:
        ours, truth = (values.numpy().astype(np.float64).reshape(-1) for values in predictions[name])
        row[f"{name}_ms2"] = float(np.square(ours - truth).mean())
        row[f"{name}_error_pct"] = 100.0 * float(np.abs(ours - truth).mean() / truth.mean())
        row[f"{name}_spearman"] = spearman(ours, truth)
    return row


def spearman(ours: Floats, truth: Floats) -> float:
    """Compute the rank correlation of numbers without ties to speak of."""
    first, second = (np.argsort(np.argsort(values)).astype(np.float64) for values in (ours, truth))
    return float(np.corrcoef(first, second)[0, 1])
