"""Studies of RecShard on whole models: draws of their features, small samples, and whether small is like large."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from shardbench.studies.study import Cell, Row, Study, Tables
from shardbench.trials.simulate import CountedQuestion

from .ratios import ratio_table
from .scaled import (
    GREEDIES,
    RECSHARD,
    SAMPLES,
    SMALL_SAMPLES,
    UNSEEN,
    RmCondition,
    ask,
    metrics,
    never_touched_pct,
    plan_metrics,
)

FORMS = ("rm1", "rm2", "rm3")
CONSTRAINED = ("rm2", "rm3")
"""Models larger than the HBM of all devices."""
PAIRINGS = (0, 1, 2, 3, 4, 5)
"""Draws of the features, the independent units; 0 is the suite's. Six: one takes minutes."""
HBM = {"machine": 1.0, "quarter": 0.25}
"""Multiples of the machine's HBM. With all of it the rows that the profile saw fit; with a quarter they do not."""
STRATEGIES = (*GREEDIES, RECSHARD, UNSEEN)
COLUMNS = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "cv", "off_hbm_lookups", "off_hbm_lookups_pct")


def rows_of(question: CountedQuestion) -> list[Row]:
    """Return the rows of RecShard, its variant and the greedies on one question."""
    answers = ((name, ask(question, name)) for name in STRATEGIES)
    never = never_touched_pct(question.problem)
    return [
        {
            "strategy": name,
            **metrics(answer.judged),
            **plan_metrics(answer, question.problem),
            "never_touched_pct": never,
        }
        for name, answer in answers
    ]


def _models(quick: bool) -> list[Cell]:
    """List one cell for each model, HBM and draw of features; cells of the same lookups follow one another."""
    forms, pairings = (("rm2",), PAIRINGS[:1]) if quick else (FORMS, PAIRINGS)
    return [
        {"workload": form, "hbm": hbm, "features_seed": pairing}
        for form in forms
        for pairing in pairings
        for hbm in (HBM if form in CONSTRAINED else ("machine",))
    ]


def _ask_all(_: Path, workload: str, hbm: str, features_seed: int, samples: int = SAMPLES) -> list[Row]:
    """Ask all strategies on the same problem and test batches."""
    return rows_of(RmCondition(form=workload, draw=features_seed, hbm=HBM[hbm], samples=samples).question())


def _tables(name: str, rows: pd.DataFrame) -> Tables:
    """Return all rows, and the ratios by model."""
    return {name: rows, f"{name}_ratios": ratio_table(rows, ("workload", "hbm"))}


FEATURE_DRAWS = Study(
    name="draws",
    title="RecShard and the greedies on models whose features are paired in several ways, profiled over 105 M samples. "
    "Models that HBM cannot hold are placed also on devices with a quarter of it, where not even the seen rows fit.",
    version=3,
    cells=_models,
    judge=_ask_all,
    summary=partial(_tables, "draws"),
    uses=STRATEGIES,
    columns=COLUMNS,
)
SMALL_SAMPLES_STUDY = replace(
    FEATURE_DRAWS,
    name="small-samples",
    title="The study `draws` with a hundredth of the samples: many rows that will be looked up were never seen.",
    version=1,
    # These samples' seen rows do not fill all of the machine's HBM by far.
    cells=lambda quick: [cell for cell in _models(quick) if cell["hbm"] == "machine"],
    judge=partial(_ask_all, samples=SMALL_SAMPLES),
    summary=partial(_tables, "small-samples"),
)
SCALING = Study(
    name="scaling",
    title="One model, one draw, a small sample, at full size and below: is a model in small like the whole?",
    # A quick run leaves the full size out.
    cells=lambda quick: [
        {"workload": "rm2", "smaller": times} for times in (1, 64, 256, 512, 1024)[1 if quick else 0 :]
    ],
    judge=lambda _, workload, smaller: rows_of(
        RmCondition(form=workload, samples=SMALL_SAMPLES, row_scale=1.0 / smaller).question()
    ),
    uses=STRATEGIES,
    columns=("strategy", "backend", "slowest_ms", "std_ms", "off_hbm_lookups_pct", "never_touched_pct"),
)
