"""Our numbers behind FAE's claims."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardbench.reproduction.claim import Evidence
from shardbench.trial import Outcome

FAE, HYBRID, CPU_ONLY = "fae", "hybrid", "cpu-only"


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Claim -> numbers: speed-ups by the suite's jobs, differences of accuracy by seed."""
    found = {
        "over-cpu-only": speed_ups(evidence, CPU_ONLY),
        "over-hybrid": speed_ups(evidence, HYBRID),
    }
    results = evidence.tables.get("accuracy_seeds")
    if results is not None and not results.empty:
        fae = results[results["order"] == FAE]
        found["same-auc"] = fae["auc_difference"].tolist()
        found["same-log-loss"] = fae["log_loss_difference"].tolist()
    return found


def speed_ups(evidence: Evidence, other: str) -> list[float]:
    """Median step of ``other`` over that of FAE, one number a job in which both ran."""
    steps: dict[tuple[str, str, int], dict[str, float]] = {}
    for record in evidence.records:
        if record.outcome is Outcome.OK and record.timing is not None:
            job = (record.spec.workload, record.spec.machine, record.spec.batch_size)
            steps.setdefault(job, {})[record.spec.strategy] = float(np.median(record.timing.step_ms))
    return [one[other] / one[FAE] for one in steps.values() if FAE in one and other in one]
