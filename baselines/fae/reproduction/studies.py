"""Studies of FAE: the skew of accesses, one published run, what its gain depends on, and what its order does."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from shardbench.base.statistics import Average, t_mean
from shardbench.datasets.criteo_kaggle import NOTE
from shardbench.studies.study import Cell, Plot, Row, Study, Tables, grid

from .recorded_clicks import FOLDER, recorded_clicks
from .region import REGION
from .skew import skew_rows, tutorial_row

TUTORIAL_SEEDS = range(8)
SEEDS = range(6)
TEACHER, RECORDED = "teacher", "criteo_kaggle"
"""The clicks that ``accuracy`` learns: a hidden teacher's, or the real ones where the user has prepared them."""
SIZES = {TEACHER: (131_072, 65_536), RECORDED: (1_048_576, 262_144)}
"""Inputs to train on and to test with."""
EPOCHS = 4
RATE_COLUMNS = ("rate_pct_first", "rate_pct_last", "rate_pct_min", "rate_pct_max", "rate_changes")


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
    from .clicks import click_data  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    data = recorded_clicks(FOLDER, train, test, seed) if clicks == RECORDED else click_data(seed, train, test)
    run = trained(data, order, seed=seed, epochs=epochs)
    return [
        {
            "is_last": point is run.curve[-1],
            **asdict(point),
            "hot_inputs_pct": 100.0 * run.hot_inputs_share,
            "hot_rows_pct": 100.0 * run.hot_rows_share,
            **rate_columns(run.rates_pct),
        }
        for point in run.curve
    ]


def rate_columns(rates: Sequence[float]) -> Row:
    """Return the course of a training's rate, percent, and how often it changed; nothing for mixed mini-batches."""
    if not rates:
        return dict.fromkeys(RATE_COLUMNS)
    return {
        "rate_pct_first": rates[0],
        "rate_pct_last": rates[-1],
        "rate_pct_min": min(rates),
        "rate_pct_max": max(rates),
        "rate_changes": sum(a != b for a, b in zip(rates, rates[1:])),
    }


def results_frame(last: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order: mean AUC and log-loss over seeds, and paired distances from shuffled training."""
    lines = []
    shuffled = last[last["order"] == "shuffled"].set_index(["clicks", "seed"])
    for (clicks, order), rows in last.groupby(["clicks", "order"], sort=False):
        own = rows.set_index(["clicks", "seed"])
        row: dict[str, object] = {
            "clicks": clicks, "order": order, "backend": "measured", "seeds": len(rows),
            "batches": rows["batches"].mean(), "hot_inputs_pct": rows["hot_inputs_pct"].mean(),
            "switches": rows["switches"].mean(),
            "rate_pct_first": rows["rate_pct_first"].mean(), "rate_pct_last": rows["rate_pct_last"].mean(),
            "rate_pct_min": rows["rate_pct_min"].min(), "rate_pct_max": rows["rate_pct_max"].max(),
            "rate_changes": rows["rate_changes"].mean(),
            "seeds_with_changes": int((rows["rate_changes"] > 0).sum()),
        }  # fmt: skip
        for metric in ("auc", "log_loss"):
            row[metric] = rows[metric].mean()
            row[f"{metric}_std"] = rows[metric].std(ddof=1)
            paired = (own[metric] - shuffled[metric]).dropna().tolist()
            if paired and order != "shuffled":
                estimate = t_mean(paired)
                row |= {
                    f"{metric}_difference": estimate.value,
                    f"{metric}_difference_low": estimate.low,
                    f"{metric}_difference_high": estimate.high,
                    f"{metric}_is_same": _holds_nothing(estimate),
                }
        lines.append(row)
    return pd.DataFrame(lines)


def _holds_nothing(difference: Average) -> bool | None:
    """Return True where the interval holds no difference; None for one number, which has no interval."""
    if difference.low is None or difference.high is None:
        return None
    return difference.low <= 0.0 <= difference.high


def seeds_frame(last: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order and seed: its distance from shuffled training and the course of its rate."""
    lines: list[dict[str, object]] = []
    for clicks, rows in last.groupby("clicks", sort=False):
        shuffled = rows[rows["order"] == "shuffled"].set_index("seed")
        for row in rows[rows["order"] != "shuffled"].sort_values(["order", "seed"]).to_dict("records"):
            if row["seed"] not in shuffled.index:
                continue
            base = shuffled.loc[row["seed"]]
            lines.append(
                {"clicks": clicks, "order": row["order"], "seed": row["seed"], "backend": "measured"}
                | {f"{metric}_difference": row[metric] - base[metric] for metric in ("auc", "log_loss")}
                | {name: row[name] for name in (*RATE_COLUMNS, "switches")}
            )
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
        for metric in ("auc", "log_loss"):
            estimate = t_mean(group[metric].tolist())
            row |= {metric: estimate.value, f"{metric}_low": estimate.low, f"{metric}_high": estimate.high}
        lines.append(row)
    return pd.DataFrame(lines)


def accuracy_tables(rows: pd.DataFrame) -> Tables:
    """Make tables of results with their distance from shuffled training, and of learning curves over seeds."""
    last = rows[rows["is_last"]]
    return {
        "accuracy": results_frame(last), "accuracy_seeds": seeds_frame(last), "accuracy_curves": curves_frame(rows)
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
