"""Studies of FAE: the skew of accesses, one published run, what its gain depends on, and what its order does."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.base.statistics import t_mean
from shardbench.datasets.criteo_kaggle import NOTE
from shardbench.datasets.criteo_like import CriteoLikeConfig
from shardbench.studies.study import Cell, Plot, Row, Study, Tables, grid
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import one_hot_values

from .clicks import FOLDER, click_data, recorded_clicks
from .region import REGION

TUTORIAL_SEEDS = range(8)
SEEDS = range(6)
TEACHER, RECORDED = "teacher", "criteo_kaggle"
"""The clicks that ``accuracy`` learns: a hidden teacher's, or the real ones where the user has prepared them."""
SIZES = {TEACHER: (131_072, 65_536), RECORDED: (1_048_576, 262_144)}
"""Inputs to train on and to test with."""
EPOCHS = 4
METRICS = ("auc", "log_loss")
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


SKEW = Study(
    name="skew",
    title="The skew of accesses, table by table and over all: counted.",
    # A quick run has no time for it.
    cells=lambda quick: [] if quick else [{"inputs": 1_048_576, "seed": 0}],
    judge=skew_rows,
    backend="counted",
)
TUTORIAL = Study(
    name="tutorial",
    title="Hot inputs by the public code's rule in the setting of its one published run, over draws of inputs, with "
    "columns that depend on each other and, beside them, independent ones: counted.",
    cells=lambda quick: grid(column_dependence=(1.0, 0.0), seed=TUTORIAL_SEEDS[: 2 if quick else None]),
    judge=tutorial_row,
    backend="counted",
)


def _orders(quick: bool) -> list[Cell]:
    """List one cell for each order and seed; real clicks are among them where the user has prepared them."""
    from .accuracy import ORDERS  # noqa: PLC0415 - torch is imported where it trains

    few = 2 if quick else None
    sources = (TEACHER, RECORDED) if (FOLDER / NOTE).is_file() else (TEACHER,)
    return [
        {
            "clicks": clicks, "order": order, "train": SIZES[clicks][0], "test": SIZES[clicks][1], "epochs": EPOCHS,
            "seed": seed,
        }
        for clicks in sources
        for seed in SEEDS[:few]
        for order in ORDERS[:few]
    ]  # fmt: skip


def _learning_curve(_: Path, *, clicks: str, order: str, train: int, test: int, epochs: int, seed: int) -> list[Row]:
    """Return a row a checkpoint; the last one is the result."""
    import torch  # noqa: PLC0415 - as above

    from .accuracy import train as trained  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    data = recorded_clicks(FOLDER, train, test, seed) if clicks == RECORDED else click_data(seed, train, test)
    run = trained(data, order, seed=seed, epochs=epochs)
    return [
        {
            "is_last": point is run.curve[-1],
            **asdict(point),
            "hot_inputs_pct": 100.0 * run.hot_inputs_share,
            "hot_rows_pct": 100.0 * run.hot_rows_share,
        }
        for point in run.curve
    ]


def seeds_frame(last: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order and seed: its distance from shuffled training."""
    rows = last.sort_values(["order", "seed"])
    shuffled = rows.loc[rows["order"] == "shuffled", ["clicks", "seed", *METRICS]]
    paired = rows[rows["order"] != "shuffled"].merge(shuffled, on=["clicks", "seed"], suffixes=("", "_shuffled"))
    differences = {f"{metric}_difference": paired[metric] - paired[f"{metric}_shuffled"] for metric in METRICS}
    return paired[["clicks", "order", "seed", "backend"]].assign(**differences, switches=paired["switches"])


def results_frame(last: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order: mean AUC and log-loss over seeds, and paired distances from shuffled training."""
    lines = []
    for (clicks, order), rows in last.groupby(["clicks", "order"], sort=False):
        row: dict[str, object] = {
            "clicks": clicks, "order": order, "backend": "measured", "seeds": len(rows),
            "batches": rows["batches"].mean(), "hot_inputs_pct": rows["hot_inputs_pct"].mean(),
            "switches": rows["switches"].mean(),
        }  # fmt: skip
        own = differences[(differences["clicks"] == clicks) & (differences["order"] == order)]
        for metric in METRICS:
            row[metric] = rows[metric].mean()
            row[f"{metric}_std"] = rows[metric].std(ddof=1)
            if len(own):
                name = f"{metric}_difference"
                estimate = t_mean(own[name].tolist())
                row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        lines.append(row)
    return pd.DataFrame(lines)


def curves_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order and checkpoint: means over seeds and intervals; unequal last ones are left out."""
    lines = []
    seed_counts = rows.groupby("clicks")["seed"].nunique()
    for (clicks, order, batches), group in rows.groupby(["clicks", "order", "batches"], sort=True):
        seeds = int(seed_counts[clicks])
        if group["seed"].nunique() < seeds:
            continue
        row: dict[str, object] = {
            "clicks": clicks, "order": order, "batches": batches, "backend": "measured", "seeds": seeds
        }  # fmt: skip
        for metric in METRICS:
            estimate = t_mean(group[metric].tolist())
            row |= {metric: estimate.value, f"{metric}_low": estimate.low, f"{metric}_high": estimate.high}
        lines.append(row)
    return pd.DataFrame(lines)


def accuracy_tables(rows: pd.DataFrame) -> Tables:
    """Make tables of results with their distance from shuffled training, and of learning curves over seeds."""
    last = rows[rows["is_last"]]
    seeds = seeds_frame(last)
    return {
        "accuracy": results_frame(last, seeds), "accuracy_seeds": seeds, "accuracy_curves": curves_frame(rows)
    }  # fmt: skip


ACCURACY = Study(
    name="accuracy",
    title="AUC and log-loss of a learned click model by order of training, over seeds (really trained, in one "
    "process).",
    version=2,
    cells=_orders,
    optional=lambda cell: cell["clicks"] == RECORDED,
    judge=_learning_curve,
    summary=accuracy_tables,
    backend="measured",
    plots=tuple(
        Plot(
            title=f"{title} by mini-batches, mean of the seeds and its 95 % interval",
            table="accuracy_curves", x="batches", y=y, low=f"{y}_low", high=f"{y}_high", series="order",
            facet="clicks",
        )
        for y, title in (("auc", "Held-out AUC"), ("log_loss", "Held-out log-loss (nats)"))
    ),
)  # fmt: skip


def studies() -> Sequence[Study]:
    """Return all studies of FAE in the order that they run."""
    return (SKEW, TUTORIAL, REGION, ACCURACY)
