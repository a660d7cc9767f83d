"""Studies of RecShard on whole models: draws of their features, small samples, and whether small is like large."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from shardbench.runs.simulate import CountedQuestion
from shardbench.studies.study import Cell, Row, Study

from .ratios import ratio_table, summary
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


class FeatureDraws(Study):
    """RecShard and the greedies on models whose features are paired in several ways, profiled over 105 M samples.

    Models that HBM cannot hold are placed also on devices with a quarter of it, where not even the seen rows fit.
    """

    name = "draws"
    uses = STRATEGIES
    version = 3
    samples = SAMPLES
    columns = ("strategy", "backend", "slowest_ms", "mean_ms", "std_ms", "cv", "off_hbm_lookups", "off_hbm_lookups_pct")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each model, HBM and draw of features; cells of the same lookups follow one another."""
        forms, pairings = (("rm2",), PAIRINGS[:1]) if quick else (FORMS, PAIRINGS)
        return [
            {"workload": form, "hbm": hbm, "features_seed": pairing}
            for form in forms
            for pairing in pairings
            for hbm in (HBM if form in CONSTRAINED else ("machine",))
        ]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Ask all strategies on the same problem and test batches."""
        condition = RmCondition(
            form=str(cell["workload"]),
            draw=int(cell["features_seed"] or 0),
            hbm=HBM[str(cell["hbm"])],
            samples=self.samples,
        )
        return rows_of(condition.question())

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return all rows; by model and strategy their mean and range over draws; and the ratios by model."""
        metrics = ("slowest_ms", "std_ms", "cv", "off_hbm_lookups_pct", "hbm_used_pct", "never_touched_pct")
        keys = ("workload", "hbm")
        return {
            self.name: rows,
            f"{self.name}_summary": summary(rows, (*keys, "strategy"), metrics),
            f"{self.name}_ratios": ratio_table(rows, keys),
        }


class SmallSamples(FeatureDraws):
    """The study ``draws`` with a hundredth of the samples: many rows that will be looked up were never seen."""

    name = "small-samples"
    version = 1
    samples = SMALL_SAMPLES

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return the cells with all of the machine's HBM, which these samples' seen rows do not fill by far."""
        return [cell for cell in super().cells(quick) if cell["hbm"] == "machine"]


class ModelScaling(Study):
    """One model, one draw, a small sample, at full size and below: is a model in small like the whole?"""

    name = "scaling"
    uses = STRATEGIES
    columns = ("strategy", "backend", "slowest_ms", "std_ms", "off_hbm_lookups_pct", "never_touched_pct")
    SMALLER = (1, 64, 256, 512, 1024)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each scale; a quick run leaves the full size out."""
        return [{"workload": "rm2", "smaller": times} for times in self.SMALLER if times > 1 or not quick]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Ask all strategies on the same problem in small."""
        scale = 1.0 / float(cell["smaller"] or 1)
        return rows_of(RmCondition(form=str(cell["workload"]), samples=SMALL_SAMPLES, row_scale=scale).question())
