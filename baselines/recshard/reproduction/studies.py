"""Studies of RecShard: the worth of its statistics, how well a sample profiles; and all others in their order."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from shardbench.datasets.rm import RmConfig
from shardbench.studies.study import Cell, Row, Study, Tables, grid
from shardbench.workloads.profiling import count_samples, profile_error

from .draws import CONSTRAINED, FEATURE_DRAWS, HBM, SCALING, SMALL_SAMPLES_STUDY
from .planning import SOLVE
from .ratios import summary
from .region import REGION
from .scaled import GREEDIES, QUARTER, QUARTER_SCALE, RECSHARD, SAMPLES, UNSEEN, RmCondition, ask, metrics

ABLATIONS = ("recshard-cdf", "recshard-cdf-coverage", "recshard-cdf-pooling", RECSHARD, UNSEEN)
SEEDS = (0, 1, 2)
"""Draws of the features."""
PLAN_S = 20.0
"""Seconds of planning: a program that knows few of the statistics can use up any budget, without a better plan."""


def _quarters(quick: bool) -> list[Cell]:
    """List one cell for each model, draw of features and HBM; cells of the same lookups follow one another."""
    forms, seeds = (("rm2",), SEEDS[:1]) if quick else (CONSTRAINED, SEEDS)
    return [{"workload": form, "hbm": hbm, "features_seed": seed} for form in forms for seed in seeds for hbm in HBM]


def _with_fewer(_: Path, workload: str, hbm: str, features_seed: int) -> list[Row]:
    """Ask all variants on the same problem, and the greedies, whose best sets the scale."""
    question = RmCondition(
        form=workload, draw=features_seed, parts=QUARTER, row_scale=QUARTER_SCALE, hbm=HBM[hbm]
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


def _ablation_tables(rows: pd.DataFrame) -> Tables:
    """Return all rows, and their mean, least and most over draws of the features by model, HBM and variant."""
    metrics = ("slowest_ms", "over_best_greedy_x", "off_hbm_lookups_pct")
    return {"ablation": rows, "ablation_summary": summary(rows, ("workload", "hbm", "strategy"), metrics)}


ABLATION = Study(
    name="ablation",
    title="RecShard with fewer statistics, on a quarter of rm2 and rm3: simulated embedding time of the slowest "
    "device.",
    version=4,
    cells=_quarters,
    judge=_with_fewer,
    summary=_ablation_tables,
    uses=(*GREEDIES, *ABLATIONS),
    columns=("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "max_over_mean", "over_best_greedy_x"),
)
SCALE = 1 / 2048
FULL = 100 * SAMPLES
RATES = (0.0001, 0.001, 0.01)


def _profile_errors(_: Path, workload: str, table: int) -> list[Row]:
    """Return the errors of one table's profile at each rate."""
    fields = {"name": workload, "form": workload, "tables": 24, "batch_size": 16_384, "row_scale": SCALE}
    in_small = RmConfig.model_validate(fields).build(Path())
    full, *sampled = count_samples(in_small, table, samples=round(FULL * SCALE), rates=(1.0, *RATES))
    errors = ((rate, counts, profile_error(counts, full)) for rate, counts in zip(RATES, sampled))
    return [
        {
            "sample_pct": 100.0 * rate,
            "samples": round(counts.samples / SCALE),
            "full_lookups": full.profile.lookups,
            **{name: value for name, value in asdict(error).items() if name.endswith("_error")},
            "unseen_rows_share": error.unseen_rows,
            "unseen_accesses_share": error.unseen_accesses,
        }
        for rate, counts, error in errors
    ]


def _profile_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each rate: median and worst, over the tables, of every error without its sign."""
    lines = []
    errors = [name for name in rows.columns if name.endswith(("_error", "_share"))]
    for rate, part in rows.groupby("sample_pct"):
        row: dict[str, object] = {
            "workload": "rm2", "sample_pct": rate, "samples": round(part["samples"].mean()), "full_samples": FULL,
            "backend": "counted", "tables": len(part),
        }  # fmt: skip
        for name in errors:
            row |= {f"{name}_median": part[name].abs().median(), f"{name}_max": part[name].abs().max()}
        lines.append(row)
    return pd.DataFrame(lines)


PROFILING = Study(
    name="profiling",
    title="The distance of a sample's profile from the full profile of the train split, by sample rate. The full "
    "profile is of 10.5 billion samples, of which the suite's profiles are 1 %, on some tables in small.",
    version=3,
    cells=lambda quick: grid(workload=["rm2"], table=range(4 if quick else 24)),
    judge=_profile_errors,
    summary=_profile_table,
    backend="counted",
)


def studies() -> Sequence[Study]:
    """Return all studies of RecShard in the order that they run."""
    return (FEATURE_DRAWS, REGION, SMALL_SAMPLES_STUDY, SCALING, ABLATION, PROFILING, SOLVE)
