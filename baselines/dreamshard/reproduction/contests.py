"""DreamShard's contests: its result table on open tables, and on mixed widths in place of the production tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pandas as pd

from shardbench.datasets.dlrm_datasets import CONFIG as PUBLIC_FILE
from shardbench.learned.tasks.pools import DATA, DLRM_ROWS, MIXED_ROWS, PUBLIC_ROWS, TaskRow
from shardbench.studies.contests.contest import BEST_FOUND, JUDGED_SPLIT
from shardbench.studies.contests.contest_study import contest_means, contest_study
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.study import Plot, Study, Tables

from .beside_paper import order_table, published_as, published_ms, row_table
from .names import AUTOSHARD, BASELINES, COST_GREEDY, GREEDIES, OURS, RANDOM, RNN, UNTRAINED

STRATEGIES = (OURS, RANDOM, *GREEDIES, UNTRAINED, COST_GREEDY, BEST_FOUND, AUTOSHARD, RNN)
"""The paper's, and controls: untrained networks, greedy on single-table costs, AutoShard, the best found."""
DRAWN = ("greedy-dim", "greedy-lookup", "greedy-size-lookup", UNTRAINED, OURS, COST_GREEDY, BEST_FOUND)
"""Plots show these; a strategy far below random would flatten all others."""
ROWS = {row.name: row for row in (*DLRM_ROWS, *MIXED_ROWS)}
SMALLER_ROWS = tuple(row.name for row in DLRM_ROWS if row.tables <= 100)


def _beside_paper(task: str, split: str, strategy: str, part: pd.DataFrame) -> Mapping[str, object]:
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


def _contest(
    *,
    name: str,
    title: str,
    task_rows: Sequence[TaskRow],
    quick_rows: Collection[str],
    strategies: Sequence[str],
    seeded: Collection[str],
    only: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Study:
    """Make a contest on some of the paper's rows, with tables of means, of every task, and beside the paper's."""
    by_name = {row.name: row for row in task_rows}

    def tables(rows: pd.DataFrame) -> Tables:
        of_tasks = task_table(rows)
        tests = of_tasks[of_tasks["split"] == JUDGED_SPLIT]
        return {
            name: contest_means(rows, by_name, RANDOM, _beside_paper, asking=(COST_GREEDY, BEST_FOUND)),
            f"{name}_tasks": of_tasks,
            f"{name}_rows": row_table(tests),
            f"{name}_order": order_table(tests),
        }

    # All strategies are in the table.
    plots = tuple(
        Plot(title=title, table=name, x="task", y=y, series="strategy", facet="split", shown=DRAWN)
        for y, title in (
            ("vs_random_pct", "Speed-up over random placement on test and training tasks, in percent."),
            ("over_bound_pct", "Cost over the proven lower bound on test and training tasks, in percent."),
        )
    )
    return contest_study(
        name=name, title=title, task_rows=by_name, quick_rows=quick_rows, strategies=strategies, seeded=seeded,
        only=only, summary=tables, plots=plots,
    )  # fmt: skip


# Training AutoShard or the RNN takes several times as long as ours, so that both have one seed. What is compared are
# tasks, on which seeds are averaged.
EQUAL_WIDTHS = _contest(
    name="table",
    title="The paper's rows on open tables (width 16): mean cost over 50 tasks, mean and std over seeds.",
    task_rows=DLRM_ROWS,
    quick_rows=("DLRM-20 (4)", "DLRM-40 (4)"),
    # AutoShard stands beside them in its own study `equal`.
    strategies=tuple(name for name in STRATEGIES if name != AUTOSHARD),
    seeded=(OURS,),
    # It takes long with more tables.
    only={BEST_FOUND: SMALLER_ROWS},
)
MIXED_WIDTHS = _contest(
    name="mixed",
    title="Stand-ins for the paper's production rows: widths 16 to 128 drawn for every open table.",
    task_rows=MIXED_ROWS,
    quick_rows=("Mixed-20 (2)",),
    strategies=STRATEGIES,
    seeded=(OURS, RANDOM, UNTRAINED),
)
_ON_PUBLIC_TABLES = _contest(
    name="public",
    title="The paper's rows on the very tables that it drew from, where the user has Meta's file of their lookups.",
    task_rows=PUBLIC_ROWS,
    quick_rows=("DLRM-20 (4)",),
    strategies=(OURS, *BASELINES),
    seeded=(OURS,),
)
PUBLIC_TABLES = replace(
    _ON_PUBLIC_TABLES,
    cells=lambda quick: _ON_PUBLIC_TABLES.cells(quick) if (DATA / PUBLIC_FILE().file).is_file() else [],
    optional=lambda cell: True,
)
