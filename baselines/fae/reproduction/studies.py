"""Studies of FAE: hot shares, what its gain depends on, what its order does to accuracy, and its phases for real."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.statistics import Average, t_mean
from shardbench.datasets.criteo_kaggle import NOTE
from shardbench.studies.study import Cell, Plot, Row, Study

from ..calibrator import CHUNK_ROWS, CHUNKS, CONFIDENCE, estimate_hot_rows
from .conditions import CPU_ONLY, HYBRID, choice_gains
from .hot_shares import AccessLog, logged_counts, workload
from .recorded_clicks import FOLDER, recorded_clicks
from .region import FaeRegion
from .skew import skew_rows, tutorial_row

BUDGETS_MIB = (16, 64, 128, 256, 512)
RATES_PCT = (1.0, 5.0, 20.0, 100.0)
INPUTS = {"kaggle": 1_048_576, "terabyte-one-hot": 1_048_576, "terabyte-multi-hot": 65_536, "taobao": 690_000}
"""Train inputs of which a share is logged; a multi-hot one has 214 lookups. Taobao's are all there are."""

CHOICES = (
    ("kaggle", 5.0, False), ("kaggle", 5.0, True), ("taobao", 5.0, False), ("taobao", 5.0, True),
    ("taobao", 20.0, False), ("taobao", 20.0, True),
)  # fmt: skip
"""Workload, the log's rate in percent, and whether the budget is filled: the public scripts' choices, and ours."""
TUTORIAL_SEEDS = tuple(range(8))
SEEDS = tuple(range(6))
TEACHER, RECORDED = "teacher", "criteo_kaggle"
"""The clicks that ``accuracy`` learns: a hidden teacher's, or the real ones where the user has prepared them."""
SIZES = {TEACHER: (131_072, 65_536), RECORDED: (1_048_576, 262_144)}
"""Inputs to train on and to test with."""
EPOCHS = 4
RATE_COLUMNS = ("rate_pct_first", "rate_pct_last", "rate_pct_min", "rate_pct_max", "rate_changes")


class Hotness(Study):
    """Share of hot rows, accesses and inputs by budget and sample rate, counted on 65,536 held-out inputs."""

    name = "hotness"
    version = 2

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each workload and sample rate."""
        names, rates = (("kaggle",), RATES_PCT[:2]) if quick else (tuple(INPUTS), RATES_PCT)
        return [
            {"workload": name, "inputs": INPUTS[name], "rate_pct": rate, "seed": 0} for name in names for rate in rates
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return a row for each budget."""
        rate, inputs = float(cell["rate_pct"] or 0), int(cell["inputs"] or 0)
        log = AccessLog.of(workload(str(cell["workload"])), inputs, rate / 100.0, int(cell["seed"] or 0))
        return [{"budget_mib": mib, "backend": "counted", **log.shares(mib * 2**20)} for mib in BUDGETS_MIB]

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the hot inputs by budget."""
        return (
            Plot(
                title="Share of hot inputs (%) by budget (MiB) and sample rate (%)",
                table=self.name, x="budget_mib", y="hot_inputs_pct", series="rate_pct", facet="workload", log_x=True,
            ),
        )  # fmt: skip


class Chunks(Study):
    """The share of random draws of chunks in which the estimate's interval holds the true number of hot rows."""

    name = "chunks"
    columns = (
        "table",
        "backend",
        "rows",
        "rows_read_pct",
        "hot_rows",
        "bias_pct",
        "half_width_pct",
        "wanted_pct",
        "held_pct",
    )
    DRAWS = 2000
    TABLES = (2, 3, 9, 11, 15, 20, 23, 25)
    """Kaggle's tables of more than 1 MB, which all have more rows than the chunks read."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each threshold."""
        counts = (1, 8) if quick else (1, 2, 4, 8, 32)
        return [{"workload": "kaggle", "inputs": 1_048_576, "least_count": least, "seed": 0} for least in counts]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return a row for each table."""
        seed, least = int(cell["seed"] or 0), int(cell["least_count"] or 0)
        rows: list[Row] = []
        for table, counts in zip(self.TABLES, logged_counts(int(cell["inputs"] or 0), self.TABLES, seed)):
            rng = np.random.default_rng([seed, table, least])
            exact = int(np.count_nonzero(counts >= least))
            found = [estimate_hot_rows(counts, least, rng) for _ in range(self.DRAWS)]
            width = float(np.mean([e.high - e.low for e in found]))
            middle = float(np.mean([e.rows for e in found]))
            rows.append(
                {
                    "table": f"C{table + 1}", "rows": len(counts), "backend": "counted", "draws": self.DRAWS,
                    "rows_read_pct": 100.0 * CHUNKS * CHUNK_ROWS / len(counts),
                    "hot_rows": exact,
                    "bias_pct": 100.0 * (middle / exact - 1.0) if exact else None,
                    "half_width_pct": 100.0 * width / 2.0 / exact if exact else None,
                    "wanted_pct": 100.0 * CONFIDENCE,
                    "held_pct": 100.0 * float(np.mean([e.low <= exact <= e.high for e in found])),
                }
            )  # fmt: skip
        return rows


class Choices(Study):
    """Hot inputs and gains by the log's rate, with the budget filled and not (deviations 14 and 15; simulated)."""

    name = "choices"
    uses = (HYBRID, CPU_ONLY)
    columns = ("backend", "hot_inputs_pct", "expected_hot_inputs_pct", "over_hybrid_x", "over_cpu_only_x")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each choice."""
        chosen = CHOICES[2:4] if quick else CHOICES
        return [{"workload": name, "sample_pct": rate, "fill": fill} for name, rate, fill in chosen]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return the one row of the choice."""
        found = choice_gains(str(cell["workload"]), float(cell["sample_pct"] or 0), fill=bool(cell["fill"]))
        return [{"backend": "simulated", **found}]


class Skew(Study):
    """The skew of accesses, table by table and over all: counted."""

    name = "skew"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one number of inputs, which a quick run has no time for."""
        return [] if quick else [{"inputs": 1_048_576, "seed": 0}]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return a row for each large table, and one for all tables."""
        return skew_rows(int(cell["inputs"] or 0), int(cell["seed"] or 0))


class Tutorial(Study):
    """Hot inputs by the public code's rule in the setting of its one published run, over draws of inputs: counted."""

    name = "tutorial"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return cells for each draw, with columns that depend on each other and, beside them, independent ones."""
        seeds = TUTORIAL_SEEDS[:2] if quick else TUTORIAL_SEEDS
        return [{"column_dependence": scale, "seed": seed} for scale in (1.0, 0.0) for seed in seeds]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return the one row of the draw."""
        return [tutorial_row(int(cell["seed"] or 0), float(cell["column_dependence"] or 0))]


class Accuracy(Study):
    """AUC and log-loss of a learned click model by order of training, over seeds (really trained, in one process)."""

    name = "accuracy"
    version = 2

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each order and seed; real clicks are among them where the user has prepared them."""
        from .accuracy import ORDERS  # noqa: PLC0415 - torch is imported where it trains

        seeds, orders = (SEEDS[:2], ORDERS[:2]) if quick else (SEEDS, ORDERS)
        sources = (TEACHER, RECORDED) if (FOLDER / NOTE).is_file() else (TEACHER,)
        return [
            {
                "clicks": clicks, "order": order, "train": SIZES[clicks][0], "test": SIZES[clicks][1],
                "epochs": EPOCHS, "seed": seed,
            }
            for clicks in sources
            for seed in seeds
            for order in orders
        ]  # fmt: skip

    def optional(self, cell: Cell) -> bool:
        """Return True for cells of real clicks, which not every user has prepared."""
        return cell["clicks"] == RECORDED

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return the learning curve, a row a checkpoint; the last one is the result."""
        import torch  # noqa: PLC0415 - as above

        from .accuracy import train  # noqa: PLC0415 - as above
        from .clicks import click_data  # noqa: PLC0415 - as above

        torch.set_num_threads(1)
        seed, inputs, tests = (int(cell[name] or 0) for name in ("seed", "train", "test"))
        if cell["clicks"] == RECORDED:
            data = recorded_clicks(FOLDER, inputs, tests, seed)
        else:
            data = click_data(seed, inputs, tests)
        run = train(data, str(cell["order"]), seed=seed, epochs=int(cell["epochs"] or 0))
        rates = rate_columns([turn.rate_pct for turn in run.turns])
        return [
            {
                "backend": "measured",
                "batches": point.batches,
                "is_last": point is run.curve[-1],
                **asdict(point),
                "hot_inputs_pct": 100.0 * run.hot_inputs_share,
                "hot_rows_pct": 100.0 * run.hot_rows_share,
                **rates,
            }
            for point in run.curve
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return results with their distance from shuffled training, and learning curves over seeds."""
        if rows.empty:
            return {self.name: rows}
        last = rows[rows["is_last"]]
        return {
            self.name: results_frame(last), "accuracy_seeds": seeds_frame(last), "accuracy_curves": curves_frame(rows)
        }  # fmt: skip

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Plot the learning curves by order."""
        return tuple(
            Plot(
                title=f"{title} by mini-batches, mean of the seeds and its 95 % interval",
                table="accuracy_curves", x="batches", y=y, low=f"{y}_low", high=f"{y}_high", series="order",
                facet="clicks",
            )
            for y, title in (("auc", "Held-out AUC"), ("log_loss", "Held-out log-loss (nats)"))
        )  # fmt: skip


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
    found = []
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
        found.append(row)
    return pd.DataFrame(found)


def _holds_nothing(difference: Average) -> bool | None:
    """Return True where the interval holds no difference; None for one number, which has no interval."""
    if difference.low is None or difference.high is None:
        return None
    return difference.low <= 0.0 <= difference.high


def seeds_frame(last: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order and seed: its distance from shuffled training and the course of its rate."""
    found: list[dict[str, object]] = []
    for clicks, rows in last.groupby("clicks", sort=False):
        shuffled = rows[rows["order"] == "shuffled"].set_index("seed")
        for row in rows[rows["order"] != "shuffled"].sort_values(["order", "seed"]).to_dict("records"):
            if row["seed"] not in shuffled.index:
                continue
            base = shuffled.loc[row["seed"]]
            found.append(
                {"clicks": clicks, "order": row["order"], "seed": row["seed"], "backend": "measured"}
                | {f"{metric}_difference": row[metric] - base[metric] for metric in ("auc", "log_loss")}
                | {name: row[name] for name in (*RATE_COLUMNS, "switches")}
            )
    return pd.DataFrame(found)


def curves_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each order and checkpoint: means over seeds and intervals; unequal last ones are left out."""
    found = []
    everyone = rows.groupby("clicks")["seed"].nunique()
    for (clicks, order, batches), group in rows.groupby(["clicks", "order", "batches"], sort=True):
        seeds = int(everyone[clicks])
        if group["seed"].nunique() < seeds:
            continue
        row: dict[str, object] = {
            "clicks": clicks, "order": order, "batches": batches, "backend": "measured", "seeds": seeds
        }  # fmt: skip
        for metric in ("auc", "log_loss"):
            estimate = t_mean(group[metric].tolist())
            row |= {metric: estimate.value, f"{metric}_low": estimate.low, f"{metric}_high": estimate.high}
        found.append(row)
    return pd.DataFrame(found)


class Phases(Study):
    """Hot and cold mini-batches and switches for real, beside the hybrid's: on local CPU ranks, or with one GPU.

    On CPU ranks phases and collectives are real, devices are not: master and replicas are the same
    memory, so what a GPU would gain on hot mini-batches does not show.
    """

    name = "phases"
    version = 2
    columns = (
        "kind", "backend", "step_ms", "step_ms_low", "step_ms_high", "steps", "sent_bytes_a_step",
        "counted_bytes_a_step", "switch_ms", "copied_bytes_a_switch", "counted_bytes_a_switch",
    )  # fmt: skip
    exclusive = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each number of ranks, and one with a GPU where there is one."""
        import torch  # noqa: PLC0415 - torch is imported where it trains

        settings: list[tuple[int, str]] = [(ranks, "cpu") for ranks in ((1, 2) if quick else (1, 2, 4))]
        if torch.cuda.is_available() and not quick:
            settings.append((1, "cuda"))
        return [{"device": device, "ranks": ranks, "batch_size": 2048, "seed": 0} for ranks, device in settings]

    def optional(self, cell: Cell) -> bool:
        """Return True for the cell with a GPU, which not every machine has."""
        return cell["device"] == "cuda"

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return a row for each kind of mini-batch: median step of the slowest rank; bytes sent, copied and counted."""
        from .phases import measure_phases  # noqa: PLC0415 - torch is imported where it trains

        ranks, batch_size, seed = (int(cell[name] or 0) for name in ("ranks", "batch_size", "seed"))
        return measure_phases(ranks, "cuda" if cell["device"] == "cuda" else "cpu", batch_size, seed, folder)


def studies() -> Iterable[Study]:
    """Return all studies of FAE in the order that they run."""
    return (Hotness(), Chunks(), Skew(), Tutorial(), Choices(), FaeRegion(), Accuracy(), Phases())
