"""A study of deviation 8: the published unroll on tasks that are longer than it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from shardbench.base.arrays import Ints
from shardbench.studies.contests.contest import SPLITS, beside, judge, tasks_of, trained_with
from shardbench.studies.study import Cell, Row, Study
from shardbench.tasks.pools import DLRM_ROWS

from .. import AutoShard
from .names import GREEDIES, OURS, RANDOM

ROWS = MappingProxyType({row.name: row for row in DLRM_ROWS if row.tables > 100})
"""Rows of more tables than the published unroll has steps; study ``equal`` has them with longer unrolls."""
SEEDS = range(1)
"""A training takes a minute; what is looked for happens to some of them only, so that none here does not mean never."""


class Unroll(Study):
    """AutoShard with unrolls of 100 steps, as published, on rows of more than 100 tables; ``equal`` has longer ones."""

    name = "unroll"
    uses = (OURS, *GREEDIES, RANDOM)
    columns = ("backend", "steps", "kernel_ms", "largest_share_pct", "random_ms", "best_greedy", "best_greedy_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a row and seed; none in a quick run, which is for minutes."""
        return [{"task": name, "seed": seed} for name in (() if quick else ROWS) for seed in SEEDS]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train by the published settings as they are; kernel time of the plans for test tasks."""
        row, seed = ROWS[str(cell["task"])], int(cell["seed"] or 0)
        tasks = {split: tasks_of(row, split, folder) for split in SPLITS}
        trained, _ = trained_with(AutoShard(), tasks["train"], seed, folder)
        placements = AutoShard().place(trained, tasks["test"])
        ours = judge(placements, tasks["test"])
        return [
            {
                "backend": "simulated",
                "steps": trained.settings.unroll,
                "kernel_ms": ours["kernel_ms"],
                "balance": ours["balance"],
                "largest_share_pct": float(np.mean([_largest_share_pct(placed) for placed in placements])),
                **beside(RANDOM, GREEDIES, tasks["test"], "kernel_ms", seed),
            }
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a row of tasks; ``worse_than_random`` counts seeds whose mean is above random placement's."""
        made = []
        for task, part in rows.groupby("task", sort=False):
            made.append(
                {
                    "task": task,
                    "backend": "simulated",
                    "steps": int(part["steps"].iloc[0]),
                    "n": len(part),
                    "kernel_ms_mean": float(part["kernel_ms"].mean()),
                    "kernel_ms_min": float(part["kernel_ms"].min()),
                    "kernel_ms_median": float(part["kernel_ms"].median()),
                    "kernel_ms_max": float(part["kernel_ms"].max()),
                    "worse_than_random": int((part["kernel_ms"] > part["random_ms"]).sum()),
                    "largest_share_pct": float(part["largest_share_pct"].mean()),
                    "random_ms": float(part["random_ms"].mean()),
                    "best_greedy_ms": float(part["best_greedy_ms"].mean()),
                }
            )
        return {self.name: pd.DataFrame(made)}


def _largest_share_pct(placement: Ints) -> float:
    """Give the share of a task's tables that the device with most of them has, in per cent."""
    return 100.0 * float(np.bincount(placement).max()) / len(placement)
