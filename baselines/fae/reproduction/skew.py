"""Counts the skew of Criteo-like accesses, and the hot inputs of the public code's one published run."""

from pathlib import Path

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.datasets.criteo_like import CriteoLikeConfig
from shardbench.studies.study import Row
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import one_hot_values

LARGE_ROWS = 1_000_000
"""Tables of more rows are large: five of Kaggle's 26."""
TOP_ROWS = 0.068
"""Share of all rows whose accesses the paper is said to state."""
TUTORIAL_INPUTS = 100_001
TUTORIAL_BUDGET = 512 * 2**20
TUTORIAL_RATE = 0.1


def skew_rows(_: Path, inputs: int, seed: int) -> list[Row]:
    """Return rows of skew: hottest over median seen row of every large table, and the share of the top rows.

    Rows are ordered by the first ``inputs`` train inputs; the top rows' share is of held-out accesses.
    """
    config = CriteoLikeConfig(batch_size=4096, test_batches=16, profile_samples=inputs, seed=seed)
    source = config.build(Path())
    lines: list[Row] = []
    counts, test_counts = [], []
    for i, table in enumerate(source.tables):
        profile = source.profile(i)
        counts.append(np.repeat(profile.counts, profile.row_counts))
        values = np.concatenate([source.bags(Split.TEST, b, i).values for b in range(source.test_batches)])
        test_counts.append(profile.counts_of(values))
        if table.rows > LARGE_ROWS:
            lines.append(_skew_row(table.name, table.rows, counts[i], None))
    rows = sum(table.rows for table in source.tables)
    all_counts = np.concatenate(counts)
    top = top_share(all_counts, np.concatenate(test_counts), round(TOP_ROWS * rows))
    return [*lines, _skew_row("all", rows, all_counts, 100.0 * top)]


def _skew_row(table: str, rows: int, counts: Ints, top_pct: float | None) -> Row:
    return {
        "table": table, "rows": rows, "seen_rows": len(counts),
        "hottest_over_median_x": float(counts.max() / np.median(counts)), "top_rows_accesses_pct": top_pct,
    }  # fmt: skip


def top_share(counts: Ints, accesses: Floats, top: int) -> float:
    """Return share of ``accesses`` (logged counts of their rows) that go to the ``top`` rows of most ``counts``, 0..1.

    Where some of the rows with one count are among the top, an access to any of them counts by the share that is; rows
    that were never seen are not among the top.
    """
    values, rows = np.unique(counts, return_counts=True)
    values, rows = values[::-1], rows[::-1]
    before = np.cumsum(rows) - rows
    inside = np.clip((top - before) / rows, 0.0, 1.0)
    weight = np.interp(accesses, np.concatenate([[0], values[::-1]]), np.concatenate([[0.0], inside[::-1]]))
    return float(weight.mean())


def tutorial_row(_: Path, column_dependence: float, seed: int) -> Row:
    """Return the share of hot inputs by the public code's rule in its published run's setting, with our own inputs.

    A log of 10 % of the inputs, drawn with replacement; as many rows as 512 MB hold are hot, those of most accesses
    first; never-seen ones, of which about a quarter is, at random. All inputs are classified, logged ones too.
    """
    source = CriteoLikeConfig(
        batch_size=TUTORIAL_INPUTS, test_batches=1, profile_samples=1, seed=seed, column_dependence=column_dependence
    ).build(Path())
    values = one_hot_values(source, Split.TEST, 0)
    rng = np.random.default_rng([seed, 1])
    logged = rng.integers(0, TUTORIAL_INPUTS, round(TUTORIAL_RATE * TUTORIAL_INPUTS))
    rows = sum(table.rows for table in source.tables)
    room = TUTORIAL_BUDGET // (4 * source.tables[0].dim)
    seen_rows = sum(len(np.unique(values[logged, c][values[logged, c] >= 0])) for c in range(values.shape[1]))
    share = (room - seen_rows) / (rows - seen_rows)
    hot, logged_alone = np.ones(len(values), dtype=np.bool_), np.ones(len(values), dtype=np.bool_)
    for column in range(values.shape[1]):
        is_logged = np.isin(values[:, column], values[logged, column])
        logged_alone &= is_logged
        hot &= is_logged | _chosen(values[:, column], share, rng)
    return {
        "hot_inputs_pct": 100.0 * float(hot.mean()),
        "hot_without_filling_pct": 100.0 * float(logged_alone.mean()), "seen_rows": seen_rows, "hot_rows": room,
    }  # fmt: skip


def _chosen(values: Ints, share: float, rng: np.random.Generator) -> Bools:
    """Choose a share of all values at random, the same for equal values; True for those chosen, bool [n]."""
    distinct, of_input = np.unique(values, return_inverse=True)
    return np.asarray((rng.random(len(distinct)) < share)[of_input])
