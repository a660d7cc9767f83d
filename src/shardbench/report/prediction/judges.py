"""Which judge puts measured plans in the better order: the cost model, or TorchRec's own estimator."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.generated import csv_text
from shardbench.report.prediction.against_measured import (
    EVERYTHING,
    STEP,
    PredictedTime,
    by_condition,
    merge_plans,
    pair_orders,
)

COLUMNS = (
    "workload", "machine", "plans", "pairs", "pairs_beyond_noise", "model_tau", "torchrec_tau", "only_model_right",
    "only_torchrec_right", "better",
)  # fmt: skip
MODEL, TORCHREC, EQUAL = "model", "torchrec", "equal"
TITLE = "Two judges of measured plans"
NOTE = (
    "Steps of plans that TorchRec can express, each once, by the cost model and by TorchRec's own estimator. Tau is "
    "Kendall's, over the pairs of a group that lie beyond the noise of their repeats; 'only' counts the pairs that one "
    "judge alone has in the right order."
)


@dataclass(frozen=True, kw_only=True)
class JudgeComparison:
    """How both judges order the same plans, of one workload and machine or of several together."""

    workload: str
    machine: str
    plans: int
    pairs: int
    """All pairs of one group."""
    model: Floats
    """The cost model's orders of the pairs beyond noise: 1 right, -1 wrong, 0 predicted as equal; float64 [pairs]."""
    torchrec: Floats
    """Orders of the same pairs by TorchRec's estimator."""

    @property
    def better(self) -> str:
        """Name the judge with the higher tau; empty where there is no pair beyond the noise."""
        if not len(self.model):
            return ""
        ahead = float(self.model.sum() - self.torchrec.sum())
        return MODEL if ahead > 0 else TORCHREC if ahead < 0 else EQUAL

    def cells(self) -> tuple[str, ...]:
        """Write the cells of a line of the table; what is unknown is empty."""
        taus = (f"{judge.mean():.3f}" if len(judge) else "" for judge in (self.model, self.torchrec))
        right = self.model > 0, self.torchrec > 0
        alone = (int((own & ~other).sum()) for own, other in (right, right[::-1]))
        counts = (self.plans, self.pairs, len(self.model))
        return (self.workload, self.machine, *map(str, counts), *taus, *map(str, alone), self.better)


def compare_judges(points: Sequence[PredictedTime]) -> list[JudgeComparison]:
    """Compare the judges for each workload and machine, for each workload on several machines, and for all."""
    steps = [p for p in merge_plans(points) if p.key == STEP and p.torchrec_ms is not None and p.counts]
    groups = [_of_group(members) for members in by_condition(steps)]
    rows: list[JudgeComparison] = []
    for workload in dict.fromkeys(one.workload for one in groups):
        own = [one for one in groups if one.workload == workload]
        machines = dict.fromkeys(one.machine for one in own)
        rows += [_together([one for one in own if one.machine == machine], workload, machine) for machine in machines]
        if len(machines) > 1:
            rows.append(_together(own, workload, EVERYTHING))
    return [*rows, _together(groups, EVERYTHING, EVERYTHING)] if len(rows) > 1 else rows


def _of_group(members: Sequence[PredictedTime]) -> JudgeComparison:
    condition = members[0].condition
    judges = [[point.predicted_ms for point in members], [point.torchrec_ms or 0.0 for point in members]]
    orders = [pair_orders(members, np.asarray(steps)) for steps in judges]
    none = np.empty(0)
    model, torchrec = (none if order is None else order for order in orders)
    return JudgeComparison(
        workload=condition.title,
        machine=condition.machine,
        plans=len(members),
        pairs=comb(len(members), 2),
        model=model,
        torchrec=torchrec,
    )


def _together(several: Sequence[JudgeComparison], workload: str, machine: str) -> JudgeComparison:
    return JudgeComparison(
        workload=workload,
        machine=machine,
        plans=sum(one.plans for one in several),
        pairs=sum(one.pairs for one in several),
        model=np.concatenate([one.model for one in several]),
        torchrec=np.concatenate([one.torchrec for one in several]),
    )


def judges_csv(points: Sequence[PredictedTime]) -> str:
    """Write the table, one line a comparison."""
    return csv_text(COLUMNS, (one.cells() for one in compare_judges(points)))
