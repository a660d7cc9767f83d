"""DreamShard's contests: its result table on open tables, and on mixed widths in place of the production tables."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from shardbench.studies.contests.contest import BEST_FOUND, JUDGED_SPLIT
from shardbench.studies.contests.contest_study import SEEDS, ContestStudy
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.study import Plot
from shardbench.tasks.pools import DLRM_ROWS, MIXED_ROWS

from .beside_paper import agreement_table, order_table, row_table
from .names import AUTOSHARD, COST_GREEDY, GREEDIES, OURS, RANDOM, RNN, UNTRAINED
from .paper_table import published_as, published_ms

STRATEGIES = (OURS, RANDOM, *GREEDIES, UNTRAINED, COST_GREEDY, BEST_FOUND, AUTOSHARD, RNN)
"""The paper's, and controls: untrained networks, greedy on single-table costs, AutoShard, the best found."""
DRAWN = ("greedy-dim", "greedy-lookup", "greedy-size-lookup", UNTRAINED, OURS, COST_GREEDY, BEST_FOUND)
"""Plots show these; a strategy far below random would flatten all others."""
ROWS = {row.name: row for row in (*DLRM_ROWS, *MIXED_ROWS)}
RNN_ROWS = tuple(row.name for row in DLRM_ROWS if row.tables <= 40)
SMALLER_ROWS = tuple(row.name for row in DLRM_ROWS if row.tables <= 100)
QUICK_ROWS = ("DLRM-20 (4)", "DLRM-40 (4)", "Mixed-20 (2)")


class PaperContest(ContestStudy):
    """Every strategy on the paper's rows: mean cost over 50 tasks, mean and spread over seeds, beside the paper's."""

    quick_rows = QUICK_ROWS
    strategies: tuple[str, ...] = STRATEGIES
    seeded = frozenset({RANDOM, RNN, OURS, UNTRAINED, AUTOSHARD})
    # Their trainings take several times ours. What is compared are tasks, on which seeds are averaged.
    seeds: Mapping[str, Sequence[int]] = MappingProxyType({RNN: SEEDS[:1], AUTOSHARD: SEEDS[:1]})

    random = RANDOM
    asking = (COST_GREEDY, BEST_FOUND)

    def own_columns(self, task: str, split: str, strategy: str, part: pd.DataFrame) -> Mapping[str, object]:
        """Give the paper's numbers, and the relation to the bound."""
        paper, paper_random = published_ms(task, split, strategy), published_ms(task, split, RANDOM)
        cost_ms, bound_ms = float(part["cost_ms"].mean()), float(part["bound_ms"].mean())
        return {
            "published_as": published_as(task),
            "paper_ms": paper,
            "paper_vs_random_pct": 100.0 * (paper_random / paper - 1.0) if paper and paper_random else None,
            "bound_ms": bound_ms,
            "over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0),
            "kernel_ms_mean": float(part["kernel_ms"].mean()),
            "balance_mean": float(part["balance"].mean()),
        }

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Make tables of means, of every task, and of rows beside the paper's and how they agree."""
        of_tasks = task_table(rows)
        tests = of_tasks[of_tasks["split"] == JUDGED_SPLIT]
        beside = row_table(tests)
        return {
            self.name: self.means(rows),
            f"{self.name}_tasks": of_tasks,
            f"{self.name}_rows": beside,
            f"{self.name}_agreement": agreement_table(beside),
            f"{self.name}_order": order_table(tests),
        }

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot gain over random and distance to the bound of the strategies that matter; all are in the table."""
        return [
            Plot(
                title="Speed-up over random placement on test and training tasks, in percent.",
                table=self.name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=DRAWN,
            ),
            Plot(
                title="Cost over the proven lower bound on test and training tasks, in percent.",
                table=self.name, x="task", y="over_bound_pct", series="strategy", facet="split", shown=DRAWN,
            ),
        ]  # fmt: skip


class EqualWidths(PaperContest):
    """The paper's rows on open tables (width 16): mean cost over 50 tasks, mean and std over seeds."""

    name = "table"
    task_rows = MappingProxyType({row.name: row for row in DLRM_ROWS})
    strategies = tuple(name for name in STRATEGIES if name != AUTOSHARD)
    seeds = MappingProxyType(dict.fromkeys((RNN, RANDOM, UNTRAINED), SEEDS[:1]))
    # They take long with more tables. AutoShard stands beside them in its own study `equal`.
    only = MappingProxyType({RNN: RNN_ROWS, BEST_FOUND: SMALLER_ROWS})


class MixedWidths(PaperContest):
    """Stand-ins for the paper's production rows: widths 16 to 128 drawn for every open table."""

    name = "mixed"
    task_rows = MappingProxyType({row.name: row for row in MIXED_ROWS})
