"""DreamShard's contests: its result table on open tables, and on mixed widths in place of the production tables."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from shardbench.studies.contest import BEST_FOUND, JUDGED_SPLIT
from shardbench.studies.contest_study import SEEDS, ContestStudy
from shardbench.studies.contest_tasks import task_table
from shardbench.studies.study import Plot
from shardbench.tasks.pools import DLRM_ROWS, MIXED_ROWS

from .beside_paper import agreement_table, row_table
from .names import AUTOSHARD, COST_GREEDY, GREEDIES, OURS, RANDOM, RNN, UNTRAINED
from .paper_table import published_as, published_ms

STRATEGIES = (OURS, RANDOM, *GREEDIES, UNTRAINED, COST_GREEDY, BEST_FOUND, AUTOSHARD, RNN)
"""The paper's, and controls: untrained networks, greedy on single-table costs, AutoShard, the best found."""
ASKING = (COST_GREEDY, BEST_FOUND)
"""Learn nothing, but ask the cost model about every task that they place: their calls are left empty."""
DRAWN = ("greedy-dim", "greedy-lookup", "greedy-size-lookup", UNTRAINED, OURS, COST_GREEDY, BEST_FOUND)
"""In plots; a strategy far below random would flatten all others."""
ROWS = {row.name: row for row in (*DLRM_ROWS, *MIXED_ROWS)}
RNN_ROWS = tuple(row.name for row in DLRM_ROWS if row.tables <= 40)
SMALLER_ROWS = tuple(row.name for row in DLRM_ROWS if row.tables <= 100)
QUICK_ROWS = ("DLRM-20 (4)", "DLRM-40 (4)", "Mixed-20 (2)")


class Contest(ContestStudy):
    """Every strategy on the paper's rows: mean cost over 50 tasks, mean and spread over seeds, beside the paper's."""

    quick_rows = QUICK_ROWS
    strategies: tuple[str, ...] = STRATEGIES
    seeded = frozenset({RANDOM, RNN, OURS, UNTRAINED, AUTOSHARD})
    # Their trainings take three to ten times ours. What is compared are tasks, on which seeds are averaged.
    seeds: Mapping[str, Sequence[int]] = MappingProxyType({RNN: SEEDS[:1], AUTOSHARD: SEEDS[:1]})

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a task set, split and strategy; every task; rows beside the paper's, and how they agree."""
        of_tasks = task_table(rows)
        beside = row_table(of_tasks[of_tasks["split"] == JUDGED_SPLIT])
        return {
            self.name: contest_table(rows),
            f"{self.name}_tasks": of_tasks,
            f"{self.name}_rows": beside,
            f"{self.name}_agreement": agreement_table(beside),
        }

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Gain over random and distance to the bound of the strategies that matter, all of them in the table."""
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


class EqualWidths(Contest):
    """The paper's rows on open tables (width 16): mean cost over 50 tasks, mean and std over seeds."""

    name = "table"
    task_rows = MappingProxyType({row.name: row for row in DLRM_ROWS})
    strategies = tuple(name for name in STRATEGIES if name != AUTOSHARD)
    seeds = MappingProxyType(dict.fromkeys((RNN, RANDOM, UNTRAINED), SEEDS[:1]))
    # With more tables they take as long as all others together. AutoShard stands beside them in its own study `equal`.
    only = MappingProxyType({RNN: RNN_ROWS, BEST_FOUND: SMALLER_ROWS})


class MixedWidths(Contest):
    """Stand-ins for the paper's production rows: widths 16 to 128 drawn for every open table."""

    name = "mixed"
    task_rows = MappingProxyType({row.name: row for row in MIXED_ROWS})


def contest_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, the relation to random and to the bound, and the paper's numbers."""
    made = []
    random_ms = rows[rows["strategy"] == RANDOM].groupby(["task", "split"])["cost_ms"].mean().to_dict()
    for (task, split, strategy), part in rows.groupby(["task", "split", "strategy"], sort=False):
        mean_ms = float(part["cost_ms"].mean())
        ours = random_ms.get((task, split))
        paper = published_ms(task, split, strategy)
        paper_random = published_ms(task, split, RANDOM)
        bound = float(part["bound_ms"].mean())
        made.append(
            {
                "task": task,
                "devices": ROWS[task].devices,
                "split": split,
                "strategy": strategy,
                "backend": "simulated",
                "cost_ms_mean": mean_ms,
                "cost_ms_std": float(part["cost_ms"].std(ddof=1)),
                "n": len(part),
                "vs_random_pct": 100.0 * (ours / mean_ms - 1.0) if ours else None,
                "published_as": published_as(task),
                "paper_ms": paper,
                "paper_vs_random_pct": 100.0 * (paper_random / paper - 1.0) if paper and paper_random else None,
                "bound_ms": bound,
                "over_bound_pct": 100.0 * (mean_ms / bound - 1.0),
                "kernel_ms_mean": float(part["kernel_ms"].mean()),
                "balance_mean": float(part["balance"].mean()),
                "tasks": int(part["tasks"].min()),
                "infeasible": int(part["infeasible"].max()),
                "oracle_calls": None if strategy in ASKING else int(part["oracle_calls"].max()),
                "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                "plan_cpu_s": float(part["plan_cpu_s"].mean()),
            }
        )
    order = {name: number for number, name in enumerate(ROWS)}
    return pd.DataFrame(made).sort_values(
        ["task", "split", "cost_ms_mean"], key=lambda c: c.map(order) if c.name == "task" else c, kind="stable"
    )
