"""Studies of FAE: what is hot, what its gain depends on, what its order does to accuracy, and its phases for real."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.discovery import get_strategy
from shardbench.statistics import mean
from shardbench.study import Cell, Plot, Row, Study

from .calibrator import CHUNK_ROWS, CHUNKS, CONFIDENCE, estimate_hot_rows
from .conditions import CPU_ONLY, HYBRID, Condition
from .hot_shares import Log, logged_counts, workload

BUDGETS_MIB = (16, 64, 128, 256, 512)
RATES_PCT = (1.0, 5.0, 20.0, 100.0)
INPUTS = {"kaggle": 4_194_304, "terabyte-one-hot": 4_194_304, "terabyte-multi-hot": 65_536}
"""Train inputs of which a share is logged; a multi-hot one has 214 lookups."""

FACTORS: dict[str, tuple[float | str, ...]] = {
    "workload": (
        "kaggle", "terabyte-one-hot", "kaggle-exponent-0.8", "kaggle-exponent-1", "kaggle-exponent-1.2",
        "kaggle-exponent-1.5",
    ),
    "budget_mib": (16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    "sample_pct": (0.1, 0.5, 1.0, 5.0, 10.0),
    "batch_size": (1024, 4096, 16384),
    "rate_pct": (1.0, 50.0, 100.0),
    "host_link_gb_per_s": (6.0, 12.0, 48.0),
    "intra_gb_per_s": (10.0, 75.0, 150.0),
}  # fmt: skip
"""One is varied at a time; the others stay at the base."""

SEEDS = tuple(range(6))
TRAIN, TEST = 262_144, 65_536


class Hotness(Study):
    """Share of hot rows, accesses and inputs by budget and sample rate, counted on 65,536 held-out inputs."""

    name = "hotness"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each workload and sample rate."""
        names, rates = (("kaggle",), RATES_PCT[:2]) if quick else (tuple(INPUTS), RATES_PCT)
        return [
            {"workload": name, "inputs": INPUTS[name], "rate_pct": rate, "seed": 0} for name in names for rate in rates
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """A row for each budget."""
        rate, inputs = float(cell["rate_pct"] or 0), int(cell["inputs"] or 0)
        log = Log.of(workload(str(cell["workload"])), inputs, rate / 100.0, int(cell["seed"] or 0))
        return [{"budget_mib": mib, "backend": "counted", **log.shares(mib * 2**20)} for mib in BUDGETS_MIB]

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Hot inputs by budget."""
        return (
            Plot(
                title="Share of hot inputs (%) by budget (MiB) and sample rate (%)",
                table=self.name, x="budget_mib", y="hot_inputs_pct", series="rate_pct", facet="workload", log_x=True,
            ),
        )  # fmt: skip


class Chunks(Study):
    """How often the interval of the chunk estimate holds the hot rows' true number, over random draws of chunks."""

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
    """Kaggle's tables of more than 1 MB, all of more rows than the chunks read."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each threshold."""
        counts = (1, 8) if quick else (1, 2, 4, 8, 32)
        return [{"workload": "kaggle", "inputs": 1_048_576, "least_count": least, "seed": 0} for least in counts]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """A row for each table."""
        seed, least = int(cell["seed"] or 0), int(cell["least_count"] or 0)
        rows: list[Row] = []
        for table, counts in zip(self.TABLES, logged_counts("kaggle", int(cell["inputs"] or 0), self.TABLES, seed)):
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


class Sensitivity(Study):
    """How FAE's speed-up moves with skew, budget, sample rate, batch, schedule rate and links (simulated)."""

    name = "sensitivity"
    columns = ("backend", "over_hybrid_x", "over_cpu_only_x", "fae_ms", "hybrid_ms", "cpu_only_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each value of each factor."""
        factors = {"budget_mib": (16.0, 256.0)} if quick else FACTORS
        return [{"factor": factor, "value": str(value)} for factor, values in factors.items() for value in values]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """One row."""
        factor, text = str(cell["factor"]), str(cell["value"])
        kind = type(FACTORS[factor][0])
        others = {name: get_strategy(name) for name in (HYBRID, CPU_ONLY)}
        return [Condition().with_factor(factor, kind(text)).row(others)]

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """FAE over hybrid by factor."""
        return (
            Plot(
                title="Speed-up of FAE over the hybrid (times) by factor, simulated",
                table=self.name, x="value", y=f"over_{HYBRID}_x", facet="factor", bars=True,
            ),
        )  # fmt: skip


class Accuracy(Study):
    """AUC and log-loss of a learned click model by order of training, over seeds (really trained, in one process)."""

    name = "accuracy"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each order and seed."""
        from .accuracy import ORDERS  # noqa: PLC0415 - torch is imported where it trains

        seeds, orders = (SEEDS[:2], ORDERS[:2]) if quick else (SEEDS, ORDERS)
        return [{"order": order, "train": TRAIN, "test": TEST, "seed": seed} for seed in seeds for order in orders]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """The learning curve, a row a checkpoint; the last one is the result."""
        import torch  # noqa: PLC0415 - as above

        from .accuracy import train  # noqa: PLC0415 - as above
        from .clicks import click_data  # noqa: PLC0415 - as above

        torch.set_num_threads(1)
        seed = int(cell["seed"] or 0)
        data = click_data(seed, int(cell["train"] or 0), int(cell["test"] or 0))
        run = train(data, str(cell["order"]), seed=seed, epochs=1)
        return [
            {
                "backend": "measured",
                "batches": point.batches,
                "is_last": point is run.curve[-1],
                "auc": point.auc,
                "log_loss": point.log_loss,
                "rate_pct": None if math.isnan(point.rate_pct) else point.rate_pct,
                "switches": point.switches,
                "hot_inputs_pct": 100.0 * run.hot_inputs_share,
                "hot_rows_pct": 100.0 * run.hot_rows_share,
            }
            for point in run.curve
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Results with their distance from shuffled training, and learning curves over seeds."""
        if rows.empty:
            return {self.name: rows}
        last = rows[rows["is_last"]]
        return {
            self.name: results_frame(last), "accuracy_seeds": seeds_frame(last), "accuracy_curves": curves_frame(rows)
        }  # fmt: skip

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """Learning curves."""
        return tuple(
            Plot(
                title=f"{title} by mini-batches, mean of the seeds and its 95 % interval",
                table="accuracy_curves", x="batches", y=y, low=f"{y}_low", high=f"{y}_high", series="order",
            )
            for y, title in (("auc", "Held-out AUC"), ("log_loss", "Held-out log-loss (nats)"))
        )  # fmt: skip


def differences(last: pd.DataFrame, metric: str) -> dict[str, list[float]]:
    """Order -> its metric less that of shuffled training with the same seed, seed by seed."""
    by_order = last.pivot(index="seed", columns="order", values=metric)
    if "shuffled" not in by_order:
        return {}
    return {
        str(order): (by_order[order] - by_order["shuffled"]).dropna().tolist()
        for order in by_order.columns
        if order != "shuffled"
    }


def results_frame(last: pd.DataFrame) -> pd.DataFrame:
    """One row an order: mean AUC and log-loss over seeds, and the paired distance from shuffled training."""
    found = []
    for order, rows in last.groupby("order", sort=False):
        row: dict[str, object] = {
            "order": order, "backend": "measured", "seeds": len(rows), "batches": rows["batches"].mean(),
            "hot_inputs_pct": rows["hot_inputs_pct"].mean(), "switches": rows["switches"].mean(),
        }  # fmt: skip
        for metric in ("auc", "log_loss"):
            row[metric] = rows[metric].mean()
            row[f"{metric}_std"] = rows[metric].std(ddof=1)
            paired = differences(last, metric).get(str(order))
            if paired:
                estimate = mean(paired)
                row |= {
                    f"{metric}_difference": estimate.value,
                    f"{metric}_difference_low": estimate.low,
                    f"{metric}_difference_high": estimate.high,
                    f"{metric}_is_same": estimate.holds(0.0),
                }
        found.append(row)
    return pd.DataFrame(found)


def seeds_frame(last: pd.DataFrame) -> pd.DataFrame:
    """One row an order and seed with its distance from shuffled training."""
    found = [
        {"order": order, "seed": seed, "backend": "measured", "auc_difference": auc, "log_loss_difference": loss}
        for order, of_auc in differences(last, "auc").items()
        for seed, auc, loss in zip(sorted(last["seed"].unique()), of_auc, differences(last, "log_loss")[order])
    ]
    return pd.DataFrame(found)


def curves_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """One row an order and checkpoint: means over seeds and their intervals; unequal last checkpoints are left out."""
    found = []
    seeds = rows["seed"].nunique()
    for (order, batches), group in rows.groupby(["order", "batches"], sort=True):
        if group["seed"].nunique() < seeds:
            continue
        row: dict[str, object] = {"order": order, "batches": batches, "backend": "measured", "seeds": seeds}
        for metric in ("auc", "log_loss"):
            estimate = mean(group[metric].tolist())
            row |= {metric: estimate.value, f"{metric}_low": estimate.low, f"{metric}_high": estimate.high}
        found.append(row)
    return pd.DataFrame(found)


class Phases(Study):
    """Hot and cold mini-batches and switches on local CPU ranks: phases and collectives are real, devices are not.

    Master and replicas are the same memory, so what a GPU would gain on hot mini-batches does not show.
    """

    name = "phases"
    columns = ("kind", "backend", "step_ms", "step_ms_low", "step_ms_high", "steps", "sent_bytes_a_step", "switch_ms")
    exclusive = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each number of ranks."""
        return [{"ranks": ranks, "batch_size": 2048, "seed": 0} for ranks in ((1, 2) if quick else (1, 2, 4))]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """A row for each kind of mini-batch: median step of the slowest rank, and what it sent."""
        from .measured import measure_phases  # noqa: PLC0415 - torch is imported where it trains

        return measure_phases(int(cell["ranks"] or 0), int(cell["batch_size"] or 0), int(cell["seed"] or 0), folder)


def studies() -> Iterable[Study]:
    """All of them."""
    return (Hotness(), Chunks(), Sensitivity(), Accuracy(), Phases())
