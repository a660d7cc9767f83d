"""Which judge puts measured plans in the better order: the cost model, or TorchRec's own estimator."""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

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


class _Orders(NamedTuple):
    """The plans of one workload and machine, and how either judge orders their pairs beyond noise, float64 [pairs].

    An order is 1 where it is right, -1 where it is wrong and 0 where both plans are predicted as equal.
    """

    workload: str
    machine: str
    plans: int
    pairs: int
    """All pairs, also those within the noise."""
    model: Floats
    torchrec: Floats


def judges_csv(points: Sequence[PredictedTime]) -> str:
    """Write the table: a line a workload and machine, one a workload on several machines, and one of all."""
    steps = [p for p in merge_plans(points) if p.key == STEP and p.torchrec_ms is not None and p.counts]
    groups = list(map(_of_group, by_condition(steps)))
    places: list[tuple[str, str]] = []
    for workload in dict.fromkeys(one.workload for one in groups):
        machines = dict.fromkeys(one.machine for one in groups if one.workload == workload)
        places += [(workload, machine) for machine in (*machines, *[EVERYTHING] * (len(machines) > 1))]
    if len(places) > 1:
        places.append((EVERYTHING, EVERYTHING))
    return csv_text(COLUMNS, (_cells(*place, groups) for place in places))


def _of_group(members: Sequence[PredictedTime]) -> _Orders:
    condition = members[0].condition
    judges = [[point.predicted_ms for point in members], [point.torchrec_ms or 0.0 for point in members]]
    orders = [pair_orders(members, np.asarray(steps)) for steps in judges]
    model, torchrec = (np.empty(0) if order is None else order for order in orders)
    return _Orders(condition.title, condition.machine, len(members), comb(len(members), 2), model, torchrec)


def _cells(workload: str, machine: str, groups: Sequence[_Orders]) -> tuple[object, ...]:
    """Return the cells of a line; what is unknown is empty, as is the better judge without pairs beyond the noise."""
    own = [one for one in groups if workload in (one.workload, EVERYTHING) and machine in (one.machine, EVERYTHING)]
    model, torchrec = (np.concatenate(orders) for orders in zip(*((one.model, one.torchrec) for one in own)))
    taus = (f"{judge.mean():.3f}" if len(judge) else "" for judge in (model, torchrec))
    alone = (int(((mine > 0) & (other <= 0)).sum()) for mine, other in ((model, torchrec), (torchrec, model)))
    ahead = float(model.sum() - torchrec.sum())
    better = (MODEL if ahead > 0 else TORCHREC if ahead < 0 else EQUAL) if len(model) else ""
    counts = (sum(one.plans for one in own), sum(one.pairs for one in own), len(model))
    return (workload, machine, *counts, *taus, *alone, better)
