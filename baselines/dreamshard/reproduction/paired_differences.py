"""Plans of several strategies for the same tasks: means, and differences task by task."""

import pandas as pd

from shardbench.base.statistics import t_mean

OURS = "dreamshard"
PARTS = ("kernel_ms", "exchange_ms_modelled", "cost_ms_partly_modelled", "modelled_cost_ms")
"""Numbers that a row has of a strategy and a test task."""


def paired_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a strategy, out of rows by ``strategy`` and ``test_task``: means of PARTS over the tasks.

    ``kernel_over_ours_ms`` and ``cost_over_ours_ms`` are means over tasks of what the strategy takes
    longer than DreamShard, with 95 % intervals by t over the tasks; absent where DreamShard is.
    """
    ours = rows[rows["strategy"] == OURS].set_index("test_task")
    lines = []
    for strategy, part in rows.groupby("strategy", sort=False):
        of_task = part.set_index("test_task")
        row: dict[str, object] = {"strategy": strategy, "backend": "measured"}
        row |= {f"{name}_mean": float(part[name].mean()) for name in PARTS}
        row["kernel_ms_sem"] = float(part["kernel_ms"].sem())
        if len(ours):
            for short, name in (("kernel", "kernel_ms"), ("cost", "cost_ms_partly_modelled")):
                difference = t_mean([float(x) for x in of_task[name] - ours[name]])
                row |= {
                    f"{short}_over_ours_ms": difference.value,
                    f"{short}_over_ours_low_ms": difference.low,
                    f"{short}_over_ours_high_ms": difference.high,
                }
        row |= {"tasks": len(part), "training_placements": int(part["training_placements"].max())}
        lines.append(row)
    return pd.DataFrame(lines)
