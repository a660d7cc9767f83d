"""Strategies beside one of them, task by task."""

import numpy as np
import pandas as pd

from shardbench.base.statistics import log_mean
from shardbench.studies.contests.contest_tasks import gain_pct, ratios

from .names import OURS


def compare(rows: pd.DataFrame, tasks: pd.DataFrame, ours: str = OURS) -> pd.DataFrame:
    """Make one row a strategy, cheapest first: means over the tasks that it placed, and against ``ours``.

    ``over_ours_pct`` is 100 (its cost / ours - 1), the geometric mean over the ``pairs`` tasks that both placed, with
    its 95 % interval by t over them; seeds are averaged first. ``over_bound_pct`` is the same over the proven bound on
    column shards, in the mean of the tasks that it placed.
    """
    lines = []
    for name, part in rows.groupby("strategy", sort=False):
        strategy = str(name)
        own = np.asarray(tasks[strategy], dtype=np.float64)
        value, low, high, pairs = gain_pct(ratios(tasks, strategy, ours) if strategy != ours else ())
        bounds = np.array(part["task_bound_ms"].iloc[0], dtype=np.float64)
        lines.append(
            {
                "strategy": strategy,
                "backend": "simulated",
                "cost_ms": float(np.nanmean(own)),
                "kernel_ms": float(part["kernel_ms"].mean()),
                "balance_min_over_max": float(part["balance"].mean()),
                "over_ours_pct": value,
                "low_pct": low,
                "high_pct": high,
                "pairs": pairs,
                "over_bound_pct": 100.0 * (log_mean((own / bounds)[~np.isnan(own)].tolist()).value - 1.0),
                "tasks": int((~np.isnan(own)).sum()),
                "infeasible": int(np.isnan(own).sum()),
                "seeds": len(part),
                "segments_a_table": float(part["segments_a_table"].mean()),
                "oracle_calls": int(part["oracle_calls"].max()),
                "fit_cpu_s": float(part["fit_cpu_s"].mean()),
                "plan_cpu_s": float(part["plan_cpu_s"].mean()),
            }
        )
    return pd.DataFrame(lines).sort_values("over_ours_pct", kind="stable", na_position="first")
