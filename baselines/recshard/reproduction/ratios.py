"""What RecShard gains over the greedies, as ratios; and numbers over draws of the features."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats

from .scaled import GREEDIES, RECSHARD, UNSEEN

RATIOS = {"throughput": "slowest_ms", "balance": "std_ms", "balance_cv": "cv", "slow_accesses": "off_hbm_lookups"}
"""The column of each ratio, whose greedy value is divided by RecShard's."""
DRAW = "features_seed"
ONE_MORE = frozenset({"off_hbm_lookups"})
"""Counts that may be zero: one is added to theirs and to ours, so that a ratio to nothing is the count itself."""


def ratio(theirs: Floats | float, ours: Floats | float, column: str) -> Floats:
    """Return theirs over ours, broadcast; of counts that may be zero with one added to both."""
    more = 1.0 if column in ONE_MORE else 0.0
    return np.asarray((np.asarray(theirs) + more) / (np.asarray(ours) + more))


def ratios_of(rows: pd.DataFrame, keys: Sequence[str], ours: str, greedies: Sequence[str] = GREEDIES) -> pd.DataFrame:
    """Return the smallest of ``greedies`` over ``ours``, by ``keys`` (index), one column a ratio."""
    theirs = rows[rows["strategy"].isin(greedies)].groupby(list(keys))[list(RATIOS.values())].min()
    own = rows[rows["strategy"] == ours].set_index(list(keys)).loc[theirs.index]
    columns = {name: ratio(theirs[column], own[column], column) for name, column in RATIOS.items()}
    return pd.DataFrame(columns, index=theirs.index)


def geometric_mean(numbers: pd.Series) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.log(numbers).mean()))


def ratio_table(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the best greedy over RecShard, and over the variant, by ``keys``: mean, least and most over draws."""
    lines = []
    for name in (RECSHARD, UNSEEN):
        ratios = ratios_of(rows, (*keys, DRAW), name)
        share = rows[rows["strategy"] == name].set_index([*keys, DRAW])["off_hbm_lookups_pct"]
        for key, part in ratios.groupby(list(keys), sort=False):
            row: dict[str, object] = dict(zip(keys, key, strict=True))
            row |= {"strategy": name, "backend": "simulated", "draws": len(part)}
            for metric in RATIOS:
                numbers = part[metric]
                spread = {"": geometric_mean(numbers), "_low": numbers.min(), "_high": numbers.max()}
                row |= {f"{metric}{end}_x": number for end, number in spread.items()}
            lines.append({**row, "off_hbm_lookups_pct": share.loc[part.index].mean()})
    return pd.DataFrame(lines)


def summary(rows: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return mean, least and most of each metric over draws, by ``keys``; ``n`` is the number of draws."""
    spread = {"": "mean", "_low": "min", "_high": "max"}
    columns = {f"{metric}{end}": (metric, aggregate) for metric in metrics for end, aggregate in spread.items()}
    grouped = rows.groupby(list(keys), sort=False, as_index=False)
    return grouped.agg(backend=("backend", "first"), n=(metrics[0], "size"), **columns)
