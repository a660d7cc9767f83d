"""A study of deviation 5: a table's GiB z-scored like its other scalars, or raw as published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from shardbench.studies.contests.contest import SPLITS, judge, tasks_of, trained_with
from shardbench.studies.study import Cell, Row, Study
from shardbench.tasks.pools import DLRM_ROWS

from .. import AutoShard
from .rows import JUDGED, ROWS

COMPARED = MappingProxyType({"DLRM-20 (4)": DLRM_ROWS[0], JUDGED[0]: ROWS[JUDGED[0]]})
"""The row on which kernels were longer than the original's, and one of two widths: sizes differ more there."""
SCORED, RAW = "z-scored", "raw"
SEEDS = range(8)


class SizeFeature(Study):
    """AutoShard with a table's GiB z-scored and raw: the reward that it learns by, and the slowest device's kernels.

    The form is chosen by the plans for training tasks; those for test tasks stand beside them.
    """

    name = "size_feature"
    columns = ("backend", "form", "split", "balance", "kernel_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Give one cell a row, form and seed; where quick, a seed of the first row."""
        rows, seeds = (tuple(COMPARED)[:1], SEEDS[:1]) if quick else (tuple(COMPARED), SEEDS)
        return [{"task": name, "size": form, "seed": seed} for name in rows for form in (SCORED, RAW) for seed in seeds]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train by the published settings; one row a split of tasks."""
        row, seed = COMPARED[str(cell["task"])], int(cell["seed"] or 0)
        tasks = {split: tasks_of(row, split, folder) for split in SPLITS}
        trained, _ = trained_with(AutoShard(), tasks["train"], seed, folder, size_scored=cell["size"] == SCORED)
        rows: list[Row] = []
        for split, given in tasks.items():
            judged = judge(AutoShard().place(trained, given), given)
            rows.append(
                {
                    "backend": "simulated",
                    "split": split,
                    "balance": judged["balance"],
                    "kernel_ms": judged["kernel_ms"],
                }
            )
        return rows

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make one row a row of tasks, form and split: means over seeds, and the spread of the kernels."""
        made = []
        for (task, form, split), part in rows.groupby(["task", "size", "split"], sort=False):
            made.append(
                {
                    "task": task,
                    "size": form,
                    "split": split,
                    "backend": "simulated",
                    "n": len(part),
                    "balance_mean": float(part["balance"].mean()),
                    "kernel_ms_mean": float(part["kernel_ms"].mean()),
                    "kernel_ms_min": float(part["kernel_ms"].min()),
                    "kernel_ms_max": float(part["kernel_ms"].max()),
                }
            )
        return {self.name: pd.DataFrame(made)}
