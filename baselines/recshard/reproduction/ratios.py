"""What RecShard gains over the greedies, as ratios; and numbers averaged over draws of the features."""

from collections.abc import Sequence

import pandas as pd

from .scaled import GREEDIES, RECSHARD, UNSEEN

RATIOS = {"throughput": "slowest_ms", "balance": "std_ms", "off_hbm": "off_hbm_lookups"}
"""Name of a ratio -> the column whose greedy value is divided by RecShard's."""
DRAW = "features_seed"


def ratios_of(rows: pd.DataFrame, keys: Sequence[str], ours: str, greedies: Sequence[str] = GREEDIES) -> pd.DataFrame:
    """Smallest of ``greedies`` over ``ours``, by ``keys`` (index), one column a ratio.

    NaN where our own number is zero: a ratio to nothing is none.
    """
    theirs = rows[rows["strategy"].isin(greedies)].groupby(list(keys))
    own = rows[rows["strategy"] == ours].set_index(list(keys))
    return pd.DataFrame(
        {ratio: theirs[column].min() / own[column].where(own[column] > 0) for ratio, column in RATIOS.items()}
    )


def ratio_table(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Ratios of the best greedy to RecShard, to the variant too, by ``keys``: mean, least, most over draws.

    Each ratio has the number of draws that it is the mean of (``n``) and of those in which our own
    number is zero, which have none (``zero``).
    """
    made = []
    for name in (RECSHARD, UNSEEN):
        ratios = ratios_of(rows, (*keys, DRAW), name)
        share = rows[rows["strategy"] == name].set_index([*keys, DRAW])["off_hbm_lookups_pct"]
        for key, part in ratios.groupby(list(keys), sort=False):
            row: dict[str, object] = dict(zip(keys, key, strict=True))
            row |= {"strategy": name, "backend": "simulated", "draws": len(part)}
            for ratio in RATIOS:
                spread = {"": part[ratio].mean(), "_low": part[ratio].min(), "_high": part[ratio].max()}
                row |= {f"{ratio}{which}_x": number for which, number in spread.items()}
                row |= {f"{ratio}_n": int(part[ratio].count()), f"{ratio}_zero": int(part[ratio].isna().sum())}
            made.append({**row, "off_hbm_lookups_pct": share.loc[part.index].mean()})
    return pd.DataFrame(made)


def summary(rows: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Mean, least and most of each metric over draws, by ``keys``; ``n`` of draws."""
    made = []
    for key, part in rows.groupby(list(keys), sort=False):
        row: dict[str, object] = dict(zip(keys, key, strict=True))
        row |= {"backend": "simulated", "n": len(part)}
        for metric in metrics:
            values = part[metric]
            row |= {metric: values.mean(), f"{metric}_low": values.min(), f"{metric}_high": values.max()}
        made.append(row)
    return pd.DataFrame(made)
