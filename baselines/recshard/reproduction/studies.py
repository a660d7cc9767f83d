"""Studies of RecShard: the worth of its statistics, how well a sample profiles; and all others in their order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from shardbench.datasets.rm import RmConfig
from shardbench.studies.study import Cell, Row, Study
from shardbench.workloads.profiling import count_samples, profile_error

from .draws import CONSTRAINED, HBM, FeatureDraws, ModelScaling, SmallSamples
from .planning import PlanningMemory, Solve
from .ratios import summary
from .region import RecShardRegion
from .scaled import GREEDIES, QUARTER, QUARTER_SCALE, RECSHARD, SAMPLES, UNSEEN, RmCondition, ask, metrics

ABLATIONS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", RECSHARD, UNSEEN)
SEEDS = (0, 1, 2)
"""Draws of the features."""
PLAN_S = 20.0
"""Seconds of planning: a program that knows few of the statistics can use up any budget, without a better plan."""


class StatisticsAblation(Study):
    """RecShard with fewer statistics, on a quarter of rm2 and rm3: simulated embedding time of the slowest device."""

    name = "ablation"
    uses = (*GREEDIES, *ABLATIONS)
    version = 4
    columns = (
        "strategy",
        "backend",
        "slowest_ms",
        "mean_ms",
        "std_ms",
        "max_over_mean",
        "over_best_greedy_x",
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each model, draw of features and HBM; cells of the same lookups follow one another."""
        forms, seeds = (("rm2",), SEEDS[:1]) if quick else (CONSTRAINED, SEEDS)
        return [
            {"workload": form, "hbm": hbm, "features_seed": seed} for form in forms for seed in seeds for hbm in HBM
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Ask all variants on the same problem, and the greedies, whose best sets the scale."""
        question = RmCondition(
            form=str(cell["workload"]),
            draw=int(cell["features_seed"] or 0),
            parts=QUARTER,
            row_scale=QUARTER_SCALE,
            hbm=HBM[str(cell["hbm"])],
        ).question()
        best = min(float(ask(question, name).judged.embedding_ms.max()) for name in GREEDIES)
        answers = ((name, ask(question, name, PLAN_S)) for name in ABLATIONS)
        return [
            {
                "strategy": name,
                **metrics(answer.judged),
                "over_best_greedy_x": best / float(answer.judged.embedding_ms.max()),
                "gap_pct": float(answer.plan.notes["gap_pct"]),
                "status": answer.plan.notes["status"],
            }
            for name, answer in answers
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return all rows, and their mean, least and most over draws of the features by model, HBM and variant."""
        metrics = ("slowest_ms", "over_best_greedy_x", "off_hbm_lookups_pct")
        return {self.name: rows, f"{self.name}_summary": summary(rows, ("workload", "hbm", "strategy"), metrics)}


class Profiling(Study):
    """The distance of a sample's profile from the full profile of the train split, by sample rate.

    The full profile is of 10.5 billion samples, of which the suite's profiles are 1 %, on some tables in small.
    """

    name = "profiling"
    version = 3
    SCALE = 1 / 2048
    FULL = 100 * SAMPLES
    RATES = (0.0001, 0.001, 0.01)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each table of rm2 in small."""
        return [{"workload": "rm2", "table": table} for table in range(4 if quick else 24)]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Return the errors of one table's profile at each rate."""
        config = RmConfig.model_validate(
            {"name": "rm2", "form": "rm2", "tables": 24, "batch_size": 16_384, "row_scale": self.SCALE}
        )
        workload, table = config.build(Path()), int(cell["table"] or 0)
        full, *sampled = count_samples(workload, table, samples=round(self.FULL * self.SCALE), rates=(1.0, *self.RATES))
        errors = ((rate, counts, profile_error(counts, full)) for rate, counts in zip(self.RATES, sampled))
        return [
            {
                "backend": "counted",
                "sample_pct": 100.0 * rate,
                "samples": round(counts.samples / self.SCALE),
                "full_lookups": full.profile.lookups,
                **{name: value for name, value in asdict(error).items() if name.endswith("_error")},
                "unseen_rows_share": error.unseen_rows,
                "unseen_accesses_share": error.unseen_accesses,
            }
            for rate, counts, error in errors
        ]

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return a row for each rate: median and worst, over the tables, of every error without its sign."""
        made = []
        errors = [name for name in rows.columns if name.endswith(("_error", "_share"))]
        for rate, part in rows.groupby("sample_pct"):
            row: dict[str, object] = {
                "workload": "rm2", "sample_pct": rate, "samples": round(part["samples"].mean()),
                "full_samples": self.FULL, "backend": "counted", "tables": len(part),
            }  # fmt: skip
            for name in errors:
                row |= {f"{name}_median": part[name].abs().median(), f"{name}_max": part[name].abs().max()}
            made.append(row)
        return {self.name: pd.DataFrame(made)}


def studies() -> Iterable[Study]:
    """Return all studies of RecShard in the order that they run."""
    return (
        FeatureDraws(),
        RecShardRegion(),
        SmallSamples(),
        ModelScaling(),
        StatisticsAblation(),
        Profiling(),
        PlanningMemory(),
        Solve(),
    )
