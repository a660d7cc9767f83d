"""Studies of RecShard: what its statistics are worth, what its gains depend on, how well a sample profiles."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shardbench.datasets.rm import RmConfig
from shardbench.discovery import get_strategy
from shardbench.machine import load_machine
from shardbench.problem import Problem
from shardbench.profiling import count_samples, profile_error
from shardbench.reproduction.compare import Compared
from shardbench.strategy import Budget
from shardbench.study import Cell, Plot, Row, Study

from .scaled import GREEDIES, MACHINE, Condition, asked, max_over_mean

RECSHARD = "recshard"
PROFILE_SAMPLES = 1 << 20
"""Of the full models, 1 % of 105 million as in the suite."""
UNSEEN = "recshard-unseen"
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


def metrics(compared: Compared) -> Row:
    """What a plan is judged on; milliseconds are of embedding kernels, forward and backward."""
    return {
        "backend": "simulated",
        "slowest_ms": compared.slowest_ms,
        "mean_ms": float(np.mean(compared.time.embedding_ms)),
        "std_ms": compared.spread_ms,
        "max_over_mean": max_over_mean(compared),
        "off_hbm_lookups_pct": 100.0 * compared.off_hbm_share,
        "off_hbm_lookups": compared.totals.off_hbm_lookups,
    }


class Ablation(Study):
    """RecShard with fewer statistics, on a quarter of rm1 to rm3: simulated embedding time of the slowest device."""

    name = "ablation"
    columns = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "max_over_mean", "over_best_greedy_x")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One for each model and draw of features."""
        forms, seeds = (("rm2",), SEEDS[:1]) if quick else (("rm1", "rm2", "rm3"), SEEDS)
        return [{"workload": form, "features_seed": seed} for form in forms for seed in seeds]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """All variants on the same problem, and the best greedy for scale."""
        question = Condition(form=str(cell["workload"]), features=int(cell["features_seed"] or 0)).question()
        best = min(asked(question, name).slowest_ms for name in GREEDIES)
        rows: list[Row] = []
        for name in ABLATIONS:
            answer = asked(question, name)
            rows.append(
                {
                    "strategy": name,
                    **metrics(answer),
                    "over_best_greedy_x": best / answer.slowest_ms,
                    "gap_pct": float(answer.plan.notes["gap_pct"]),
                    "plan_s": answer.plan_s,
                }
            )
        return rows


class Sensitivity(Study):
    """How RecShard's gains over the best greedy move with skew, capacity, host bandwidth and sample rate."""

    name = "sensitivity"
    columns = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One factor at a time departs from the base: rm2, 1 % of the train split, the machine's own rates."""
        seeds = SEEDS[:1] if quick else SEEDS
        factors = {name: FACTORS[name] for name in (("off_hbm_share",) if quick else FACTORS)}
        return [
            {"factor": name, "value": value, "features_seed": seed}
            for name, values in factors.items()
            for value in values
            for seed in seeds
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """RecShard and every greedy on the same problem."""
        varied: dict[str, Any] = {str(cell["factor"]): float(cell["value"] or 0)}
        question = replace(Condition(features=int(cell["features_seed"] or 0)), **varied).question()
        return [{"strategy": name, **metrics(asked(question, name))} for name in (*GREEDIES, RECSHARD, UNSEEN)]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """One row a factor's value: the three ratios, their mean, least and most over draws of the features."""
        return {self.name: sensitivity_table(rows)}

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


RATIOS = {"throughput": "slowest_ms", "balance": "std_ms", "off_hbm": "off_hbm_lookups"}
"""Name of a ratio -> the column whose smallest greedy value is divided by RecShard's."""


def sensitivity_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Ratios of the best greedy to RecShard by factor and value; a ratio to nothing is left out."""
    keys = ["factor", "value", "features_seed"]
    theirs = rows[rows["strategy"].isin(GREEDIES)].groupby(keys)
    made = []
    for name in (RECSHARD, UNSEEN):
        ours = rows[rows["strategy"] == name].set_index(keys)
        ratios = pd.DataFrame(
            {ratio: theirs[column].min() / ours[column].where(ours[column] > 0) for ratio, column in RATIOS.items()}
        )
        ratios["off_hbm_pct"] = ours["off_hbm_lookups_pct"]
        for (factor, value), part in ratios.groupby(["factor", "value"], sort=False):
            row: dict[str, object] = {
                "factor": factor, "value": value, "strategy": name, "backend": "simulated", "n": len(part),
            }  # fmt: skip
            for ratio in RATIOS:
                spread = {"": part[ratio].mean(), "_low": part[ratio].min(), "_high": part[ratio].max()}
                row |= {f"{ratio}{which}_x": number for which, number in spread.items()}
            made.append({**row, "off_hbm_lookups_pct": part["off_hbm_pct"].mean()})
    return pd.DataFrame(made)


class Profiling(Study):
    """How far the profile of a sample of the train split is from the full one, by sample rate."""

    name = "profiling"
    SAMPLES = 1_638_400
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
            row: dict[str, object] = {"workload": "rm2", "sample_pct": rate, "backend": "counted", "tables": len(part)}
            for name in errors:
                row |= {f"{name}_median": part[name].abs().median(), f"{name}_max": part[name].abs().max()}
            made.append(row)
        return {self.name: pd.DataFrame(made)}


class Solve(Study):
    """Time to a plan of rm1 to rm3 (397 tables, 16 devices) and the gap to the bound that is proven with it."""

    name = "solve"
    columns = ("backend", "plan_wall_s", "plan_cpu_s", "gap_pct", "status", "predicted_slowest_ms", "proven_bound_ms")
    exclusive = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """One a model and seed of the search."""
        if quick:
            return [{"workload": "rm1", "seed": 0}]
        return [{"workload": form, "seed": seed} for form in ("rm1", "rm2", "rm3") for seed in SEEDS]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Wall and CPU seconds of planning, the plan's own estimate, its bound and their gap."""
        problem = _full_problem(str(cell["workload"]))
        wall, cpu = time.perf_counter(), time.process_time()
        plan = get_strategy(RECSHARD).plan(problem, Budget(plan_s=60.0), int(cell["seed"] or 0))
        return [
            {
                "backend": "measured",
                "plan_wall_s": time.perf_counter() - wall,
                "plan_cpu_s": time.process_time() - cpu,
                "segments": len(plan.segments),
                **{name: plan.notes[name] for name in ("predicted_slowest_ms", "proven_bound_ms", "gap_pct", "status")},
            }
        ]


@lru_cache(maxsize=1)
def _full_problem(form: str) -> Problem:
    """Cells of one model run one after the other and share it: profiling 397 tables takes a minute."""
    workload = RmConfig.model_validate({"name": form, "form": form, "profile_samples": PROFILE_SAMPLES}).build(Path())
    machine = load_machine(MACHINE)
    return Problem.of(form, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)


def studies() -> Iterable[Study]:
    """In the order they run."""
    return (Ablation(), Sensitivity(), Profiling(), Solve())
