"""A study of deviation 8: the published unroll on tasks that are longer than it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Ints
from shardbench.model.discovery import get_strategy
from shardbench.model.strategy import Budget
from shardbench.studies.contest import Placed, cheapest, judge, place_all, tasks_of
from shardbench.studies.contest_study import FIT_S
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.pools import DLRM_ROWS

from .. import AutoShard

if TYPE_CHECKING:
    from ..settings import Settings

PUBLISHED, LONGEST = "published", "longest task"
GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
RANDOM = "shuffle"
ROWS = MappingProxyType({row.name: row for row in DLRM_ROWS if row.tables > 100})
"""Where the two differ: rows of more tables than the published unroll has steps."""
SEEDS = range(5)


class Unroll(Study):
    """Rows of more than 100 tables: unrolls of 100 steps, as published, beside unrolls as long as the longest task."""

    name = "unroll"
    uses = ("autoshard", *GREEDIES, RANDOM)
    columns = ("backend", "steps", "kernel_ms", "largest_share_pct", "random_ms", "best_greedy", "best_greedy_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a row, unroll and seed; none in a quick run, which is for minutes."""
        names = () if quick else tuple(ROWS)
        return [
            {"task": name, "unroll": unroll, "seed": seed}
            for name in names
            for unroll in (PUBLISHED, LONGEST)
            for seed in SEEDS
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Train, all else as published; kernel time of the plans for test tasks."""
        from ..training import AutoShardTraining  # noqa: PLC0415 - needs torch, which listing does not

        row, seed = ROWS[str(cell["task"])], int(cell["seed"] or 0)
        tasks = {split: tasks_of(row, split, folder) for split in ("train", "test")}
        settings = settings_of(str(cell["unroll"]), row.devices, row.tables)
        training = AutoShardTraining(tasks["train"], SimulatedOracle(), seed, settings)
        trained = training.train(folder=folder / "training")
        placements = AutoShard().place(trained, tasks["test"])
        ours = judge(Placed(placements=tuple(placements), plan_cpu_s=0.0), tasks["test"])
        shuffled = place_all(get_strategy(RANDOM), tasks["test"], Budget(fit_s=FIT_S), seed)
        best, best_ms = cheapest(GREEDIES, tasks["test"], "kernel_ms")
        return [
            {
                "backend": "simulated",
                "steps": settings.unroll,
                "kernel_ms": ours["kernel_ms"],
                "balance": ours["balance"],
                "largest_share_pct": float(np.mean([_largest_share_pct(placed) for placed in placements])),
                "random_ms": judge(shuffled, tasks["test"])["kernel_ms"],
                "best_greedy": best,
                "best_greedy_ms": best_ms,
            }
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a task and unroll; ``worse_than_random`` counts seeds whose mean is above random placement's."""
        made = []
        for (task, unroll), part in rows.groupby(["task", "unroll"], sort=False):
            made.append(
                {
                    "task": task,
                    "unroll": unroll,
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

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Median, with the least and the most."""
        return [
            Plot(
                title="Kernel time (ms) of the slowest device by length of the unrolls: median and range of seeds.",
                table=self.name, x="task", y="kernel_ms_median", low="kernel_ms_min", high="kernel_ms_max",
                series="unroll", bars=True,
            )
        ]  # fmt: skip


def settings_of(unroll: str, devices: int, tables: int) -> "Settings":
    """The published settings, or those that ``fit`` takes for tasks of so many tables (deviation 8)."""
    from ..settings import Settings, settings_for  # noqa: PLC0415

    return Settings() if unroll == PUBLISHED else settings_for(Budget(fit_s=FIT_S), devices, tables)


def _largest_share_pct(placement: Ints) -> float:
    """Of a task's tables, those on the device that has most of them, in per cent."""
    return 100.0 * float(np.bincount(placement).max()) / len(placement)
