"""Our rows beside the paper's (paper.toml): milliseconds, margins, and the orders of the heuristics."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from shardbench.learned.tasks.pools import DLRM_ROWS, MIXED_ROWS
from shardbench.studies.contests.contest_tasks import best_of, gain_pct, ratios

from .names import BASELINES, GREEDIES, OURS, RANDOM, RNN

DEVICES = {row.name: row.devices for row in (*DLRM_ROWS, *MIXED_ROWS)}
SPLIT = "test"
HEURISTICS = (RANDOM, *GREEDIES)
COMPARED = ("strongest", RANDOM, RNN)
"""What DreamShard's gain is over: the strongest baseline of each row, and two by name."""


@cache
def paper_rows() -> dict[tuple[str, str], dict[str, Any]]:
    """Read the rows by task and split: by strategy the mean and standard deviation in milliseconds."""
    text = (resources.files("shardbench.baselines.dreamshard.reproduction") / "paper.toml").read_text(encoding="ascii")
    return {(row["task"], row["split"]): row for row in tomllib.loads(text)["rows"]}


def published_ms(task: str, split: str, strategy: str) -> float | None:
    """Give the paper's mean for a cell of its table; None for strategies that it does not have."""
    cell = paper_rows()[task, split].get(strategy)
    return None if cell is None else float(cell[0])


def published_as(task: str) -> str:
    """Name the paper's row beside which ours stands: another one where the paper's tables are not public."""
    return str(paper_rows()[task, SPLIT]["published_as"])


def row_table(tasks: pd.DataFrame) -> pd.DataFrame:
    """Make one row a set of test tasks: our milliseconds and gains in percent, and the paper's.

    ``gain_*_pct`` are 100 (theirs / ours - 1), the geometric mean over the tasks with its 95 % interval by t over the
    tasks, seeds averaged; the paper's are quotients of its printed means. The strongest baseline is the one with the
    smallest mean on the row, ours of ours and the paper's of the paper's.
    """
    rows = []
    for name, part in tasks.groupby("task", sort=False):
        task = str(name)
        if OURS not in part or part[OURS].isna().all():
            continue
        ours_ms, paper_ms = float(part[OURS].mean()), published_ms(task, SPLIT, OURS)
        row: dict[str, object] = {
            "task": task,
            "published_as": published_as(task),
            "devices": DEVICES[task],
            "backend": "simulated",
            "ours_ms": ours_ms,
            "paper_ms": paper_ms,
            "ours_over_paper": ours_ms / paper_ms if paper_ms else None,
            "strongest": best_of(part, BASELINES),
            "strongest_paper": strongest_published(task),
        }
        for rival in COMPARED:
            own, published = (row["strongest"], row["strongest_paper"]) if rival == "strongest" else (rival,) * 2
            row |= _gain(part, str(own), rival)
            theirs_ms = published_ms(task, SPLIT, str(published))
            row[f"gain_{rival}_paper_pct"] = 100.0 * (theirs_ms / paper_ms - 1.0) if theirs_ms and paper_ms else None
        rows.append(row)
    return pd.DataFrame(rows)


def strongest_published(task: str) -> str:
    """Name the paper's baseline with the smallest mean on a row's test tasks."""
    means_ms = {name: ms for name in BASELINES if (ms := published_ms(task, SPLIT, name)) is not None}
    return min(means_ms, key=means_ms.__getitem__)


def _gain(part: pd.DataFrame, baseline: str, rival: str) -> dict[str, object]:
    value, low, high, tasks = gain_pct(ratios(part, baseline, OURS))
    names = (f"gain_{rival}_{ending}" for ending in ("pct", "low_pct", "high_pct", "tasks"))
    return dict(zip(names, (value, low, high, tasks or None)))


def order_table(tasks: pd.DataFrame) -> pd.DataFrame:
    """Make one row a set of test tasks: our order of the five heuristics by mean cost, and the paper's measured one.

    They learn nothing, so that their plans are the rule's on both sides, of other tables; ``tau`` is Kendall's tau-b.
    """
    from scipy.stats import kendalltau  # noqa: PLC0415 - takes a second to import, and every page imports all studies

    rows = []
    for name, part in tasks.groupby("task", sort=False):
        task = str(name)
        paper = {each: ms for each in HEURISTICS if (ms := published_ms(task, SPLIT, each)) is not None}
        ours = {each: float(part[each].mean()) for each in paper if each in part and part[each].notna().any()}
        if len(ours) < 2:
            continue
        rows.append(
            {
                "task": task,
                "published_as": published_as(task),
                "devices": DEVICES[task],
                "backend": "simulated",
                "heuristics": len(ours),
                "tau": float(kendalltau([ours[each] for each in ours], [paper[each] for each in ours]).statistic),
                "ours": " ".join(sorted(ours, key=ours.__getitem__)),
                "paper": " ".join(sorted(ours, key=paper.__getitem__)),
            }
        )
    return pd.DataFrame(rows)


def spearman(ours: Sequence[float], paper: Sequence[float]) -> float | None:
    """Compute the rank correlation, ties at their mean rank; None where either does not vary."""
    ranks = [pd.Series(values).rank().to_numpy() for values in (ours, paper)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])
