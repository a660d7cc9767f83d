"""Plan time and plan quality of the heuristics, and what importing the suite costs."""

import subprocess
import sys

import numpy as np

from shardbench.cost.costmodel import estimate
from shardbench.model.discovery import strategies
from shardbench.model.machine import load_machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Table

# asv needs the parameters without running anything; strategies that appear later add rows of their own.
HEURISTICS = ["shuffle", "greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup", "search"]


def make_problem(tables: int, seed: int = 0) -> Problem:
    """Random tables of mixed widths on 16x A100; the same for every commit."""
    rng = np.random.default_rng(seed)
    shapes, profiles = [], []
    for i in range(tables):
        rows = int(np.exp(rng.uniform(np.log(1e3), np.log(1e7))))
        counts = np.unique(rng.zipf(1.3, 100).clip(1, 10**6))[::-1]
        each = np.minimum(rng.integers(1, 50, len(counts)), max(1, rows // len(counts)))
        shapes.append(Table(name=f"table{i}", rows=rows, dim=int(rng.choice([16, 32, 64, 128]))))
        profiles.append(
            AccessProfile(
                rows=rows,
                samples=65_536,
                present=65_536,
                counts=tuple(counts.tolist()),
                row_counts=tuple(each.tolist()),
            )
        )
    machine = load_machine("a100-40gb-2x8")
    return Problem.of("regression", tuple(shapes), tuple(profiles), machine, batch_size=65_536)


class Planning:
    """Seconds of a plan, and the plan's slowest rank in milliseconds under the cost model."""

    params = (HEURISTICS, [20, 200])
    param_names = ("strategy", "tables")
    timeout = 120

    def setup(self, strategy: str, tables: int) -> None:
        """A problem, seen as the strategy may see it."""
        self.strategy = strategies()[strategy]
        self.problem = make_problem(tables)
        self.seen = self.problem.restricted_to(self.strategy.sees)

    def time_plan(self, strategy: str, tables: int) -> None:
        """Wall seconds."""
        self.strategy.plan(self.seen, Budget(), 0)

    def track_slowest_rank_ms(self, strategy: str, tables: int) -> float:
        """Plan quality: lower is better."""
        plan = self.strategy.plan(self.seen, Budget(), 0)
        return float(estimate(plan, self.problem).embedding_ms.max())

    track_slowest_rank_ms.unit = "ms"


class Importing:
    """A fresh interpreter that imports the command line."""

    def time_import_cli(self) -> None:
        """Wall seconds, interpreter start included."""
        subprocess.run([sys.executable, "-c", "import shardbench.cli.main"], check=True)
