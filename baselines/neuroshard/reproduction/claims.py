"""The numbers behind NeuroShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence
from shardbench.studies.contests.contest_tasks import ratios

from .studies import COST_GREEDY, OTHERS, OURS, UNTRAINED, WHOLE


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Give ratios theirs / NeuroShard's, one a task that both placed."""
    claims: dict[str, Sequence[float]] = {}
    if (tasks := evidence.tables.get("table_tasks")) is not None:
        claims["largest-margin"] = _over_best(tasks)
        for name, other in (
            ("pre-training-helps", UNTRAINED),
            ("halving-helps", WHOLE),
            ("beats-greedy-cost", COST_GREEDY),
        ):
            claims[name] = ratios(tasks, other, OURS).tolist()
    if (tasks := evidence.tables.get("production_tasks")) is not None:
        claims["production-cost-stand-in"] = _over_best(tasks)
    return {name: numbers for name, numbers in claims.items() if len(numbers)}


def _over_best(tasks: pd.DataFrame) -> list[float]:
    """Divide the least cost of the paper's other strategies by NeuroShard's, task by task."""
    others = tasks.reindex(columns=list(OTHERS)).min(axis=1)
    margins: list[float] = ratios(tasks.assign(best=others), "best", OURS).tolist()
    return margins
