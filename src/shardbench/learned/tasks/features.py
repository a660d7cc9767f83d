"""The 21 numbers by which learned strategies know a table, and their normalisation over a pool."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Floats32
from shardbench.base.memory import GIB
from shardbench.model.problem import Problem
from shardbench.model.profile import REUSE_BINS

SCALARS = ("dim", "rows", "pooling", "size_gib")
FEATURES = (*SCALARS, *(f"reuse{i}" for i in range(REUSE_BINS)))
"""Names of the columns: the four scalars, then the share of touched rows by reuse bin."""


def table_features(problem: Problem) -> Floats:
    """Give raw features of every table of a problem, float64 [tables, 21], as AutoShard and DreamShard define them.

    Width, rows, mean pooling factor (lookups per sample, absent features counted as zero; not
    truncated to an integer as the published code does), GiB of weights, and the profile's 17 reuse bins.
    """
    values, number_bytes = np.zeros((len(problem.tables), len(FEATURES))), problem.precision.bytes
    for row, table, profile in zip(values, problem.tables, problem.profiles):
        row[:4] = (table.dim, table.rows, profile.mean_pooling, table.rows * table.dim * number_bytes / GIB)
        row[4:] = profile.reuse_bins()
    return values


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Mean and spread of every feature over the tables a strategy was trained on.

    The scalars that a strategy scores are z-scored; the others, and the bins, which are shares already,
    pass unchanged. Fitted once and kept with the networks, so that one table looks the same in every task.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def fit(cls, features: Floats, scored: Collection[str] = SCALARS) -> "Scaling":
        """Fit the constants to ``features`` float64 [tables, 21]; ``scored`` names the columns to z-score.

        A feature that does not vary keeps spread 1.
        """
        mean, spread = features.mean(axis=0), features.std(axis=0)
        # Rounding may leave a tiny spread where all values are equal.
        varies = spread > 1e-9 * np.maximum(np.abs(mean), 1.0)
        is_scored = np.isin(FEATURES, list(scored))
        return cls(
            mean=tuple(np.where(is_scored, mean, 0.0).tolist()),
            spread=tuple(np.where(is_scored & varies, spread, 1.0).tolist()),
        )

    def __call__(self, features: Floats) -> Floats32:
        """Normalise features; gives float32 of the same shape."""
        scaled = (features - np.asarray(self.mean)) / np.asarray(self.spread)
        return np.asarray(scaled, dtype=np.float32)
