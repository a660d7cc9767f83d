"""Studies of RecShard: what its statistics are worth, what its gains depend on, how well a sample profiles."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.datasets.rm import RmConfig
from shardbench.studies.study import Cell, Plot, Row, Study
from shardbench.workloads.profiling import count_samples, profile_error

from .full import Draws, Memory, Solve
from .ratios import ratio_table, summary
from .scaled import DEVICES, GREEDIES, PROFILE_SAMPLES, RECSHARD, TABLES, UNSEEN, Condition, ask, metrics

ABLATIONS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", RECSHARD, UNSEEN)
SEEDS = (0, 1, 2)
"""Draws of the features."""

FACTORS: dict[str, tuple[float, ...]] = {
    "exponent_scale": (0.5, 0.75, 1.0, 1.25),
    "off_hbm_share": (0.0, 0.25, 0.5, 0.75),
    "uvm_gb_per_s": (4.0, 8.0, 16.0, 32.0),
    "sample_pct": (0.01, 0.1, 1.0, 10.0),
}
"""One is varied at a time; the others stay at the base."""


class Ablation(Study):
    """RecShard with fewer statistics, on a quarter of rm1 to rm3: simulated embedding time of the slowest device."""

    name = "ablation"
    uses = (*GREEDIES, *ABLATIONS)
    version = 3
    columns = (
        "tables",
        "devices",
        "strategy",
        "backend",
        "slowest_ms",
        "mean_ms",
        "std_ms",
        "max_over_mean",
        "over_best_greedy_x",
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each model and draw of features."""
        forms, seeds = (("rm2",), SEEDS[:1]) if quick else (("rm1", "rm2", "rm3"), SEEDS)
        return [{"workload": form, "features_seed": seed} for form in forms for seed in seeds]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """All variants on the same problem, and the best greedy for scale."""
        question = Condition(form=str(cell["workload"]), features=int(cell["features_seed"] or 0)).question()
        best = min(float(ask(question, name).judged.embedding_ms.max()) for name in GREEDIES)
        rows: list[Row] = []
        for name in ABLATIONS:
            answer = ask(question, name)
            rows.append(
                {
                    "tables": TABLES,
                    "devices": DEVICES,
                    "strategy": name,
                    **metrics(answer.judged),
                    "over_best_greedy_x": best / float(answer.judged.embedding_ms.max()),
                    "gap_pct": float(answer.plan.notes["gap_pct"]),
                    "status": answer.plan.notes["status"],
                    "plan_s": answer.spent.plan_s,
                }
            )
        return rows

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """All rows, and a summary: mean, least and most over draws of the features by model and variant."""
        metrics = ("slowest_ms", "over_best_greedy_x", "off_hbm_lookups_pct")
        keys = ("workload", "tables", "devices", "strategy")
        return {self.name: rows, f"{self.name}_summary": summary(rows, keys, metrics)}


class Sensitivity(Study):
    """How RecShard's gains over the best greedy move with skew, capacity, host bandwidth and sample rate."""

    name = "sensitivity"
    uses = (*GREEDIES, RECSHARD, UNSEEN)
    version = 3
    columns = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One factor at a time departs from the base: rm2, 1 % of the train split, the machine's own rates.

        Cells whose lookups are the same follow one another: a process draws them once.
        """
        seeds = SEEDS[:1] if quick else SEEDS
        factors = {name: FACTORS[name] for name in (("off_hbm_share",) if quick else FACTORS)}
        return [
            {"factor": name, "value": value, "features_seed": seed}
            for name, values in factors.items()
            for seed in seeds
            for value in values
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """RecShard and every greedy on the same problem."""
        varied: dict[str, Any] = {str(cell["factor"]): float(cell["value"] or 0)}
        question = replace(Condition(features=int(cell["features_seed"] or 0)), **varied).question()
        return [{"strategy": name, **metrics(ask(question, name).judged)} for name in (*GREEDIES, RECSHARD, UNSEEN)]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a factor's value: the three ratios, their mean, least and most over draws of the features."""
        return {self.name: ratio_table(rows, ("factor", "value"))}

    def plots(self, tables: Mapping[str, pd.DataFrame]) -> Sequence[Plot]:
        """The ratios over each factor."""
        return [
            Plot(
                title=f"{what}: best greedy over RecShard (mean, least and most over draws of the features)",
                table=self.name,
                x="value",
                y=f"{ratio}_x",
                low=f"{ratio}_low_x",
                high=f"{ratio}_high_x",
                series="strategy",
                facet="factor",
                log_y=ratio == "off_hbm",
            )
            for ratio, what in (
                ("throughput", "Embedding throughput (slowest device)"),
                ("balance", "Imbalance (standard deviation of embedding time over devices)"),
                ("off_hbm", "Lookups off HBM"),
            )
        ]


class Profiling(Study):
    """How far the profile of a sample of the train split is from the full one, by sample rate.

    The full profile here is of ten times the suite's samples, so that its 10 % are as many samples
    as the suite's profiles have (which are 1 % of 105 million: that many cannot be counted here).
    """

    name = "profiling"
    version = 2
    SAMPLES = 10 * PROFILE_SAMPLES
    RATES = (0.001, 0.01, 0.1)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Groups of tables of rm2."""
        return [{"workload": "rm2", "table": table} for table in range(4 if quick else 24)]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """The errors of one table's profile at each rate."""
        config = RmConfig.model_validate({"name": "rm2", "form": "rm2", "tables": 24, "batch_size": 16_384})
        workload, table = config.build(Path()), int(cell["table"] or 0)
        full, *sampled = count_samples(workload, table, samples=self.SAMPLES, rates=(1.0, *self.RATES))
        rows: list[Row] = []
        for rate, counts in zip(self.RATES, sampled):
            error = profile_error(counts, full)
            rows.append(
                {
                    "backend": "counted",
                    "sample_pct": 100.0 * rate,
                    "samples": counts.samples,
                    "full_lookups": full.profile.lookups,
                    "claim_error": error.claim_error,
                    "order_error": error.order_error,
                    "cdf_error": error.cdf_error,
                    "pooling_error": error.pooling_error,
                    "coverage_error": error.coverage_error,
                    "unseen_rows_share": error.unseen_rows,
                    "unseen_accesses_share": error.unseen_accesses,
                }
            )
        return rows

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a rate: median and worst, over the tables, of every error without its sign."""
        made = []
        errors = [name for name in rows.columns if name.endswith(("_error", "_share"))]
        for rate, part in rows.groupby("sample_pct"):
            row: dict[str, object] = {
                "workload": "rm2", "sample_pct": rate, "samples": round(part["samples"].mean()),
                "full_samples": self.SAMPLES, "backend": "counted", "tables": len(part),
            }  # fmt: skip
            for name in errors:
                row |= {f"{name}_median": part[name].abs().median(), f"{name}_max": part[name].abs().max()}
            made.append(row)
        return {self.name: pd.DataFrame(made)}


def studies() -> Iterable[Study]:
    """In the order they run."""
    return (Draws(), Ablation(), Sensitivity(), Profiling(), Memory(), Solve())
