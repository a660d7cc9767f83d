"""Our numbers behind FAE's claims."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardbench.records.trial import Outcome
from shardbench.studies.claim import Evidence

from .studies import TEACHER

FAE, HYBRID, CPU_ONLY = "fae", "hybrid", "cpu-only"
MACHINE = "v100-16gb-1x4"
BASE_JOBS = {"criteo-kaggle-like": 4096, "criteo-terabyte-one-hot-like": 4096, "taobao-like": 1024}
"""Workload -> batch size of its one job that claims count: the machine as stated, 1K inputs a device, 256 of Taobao."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Claim -> numbers: speed-ups by workload, differences of accuracy by seed."""
    found = {
        "over-cpu-only": speed_ups(evidence, CPU_ONLY),
        "over-hybrid": speed_ups(evidence, HYBRID),
    }
    results = evidence.tables.get("accuracy_seeds")
    if results is not None and not results.empty:
        fae = results[(results["order"] == FAE) & (results["clicks"] == TEACHER)]
        found["same-auc"] = fae["auc_difference"].tolist()
        found["same-log-loss"] = fae["log_loss_difference"].tolist()
    return found


def speed_ups(evidence: Evidence, other: str) -> list[float]:
    """Median step of ``other`` over that of FAE, one number a workload, from its base job."""
    steps: dict[str, dict[str, float]] = {name: {} for name in BASE_JOBS}
    for record in evidence.records:
        spec = record.spec
        is_base = spec.machine == MACHINE and BASE_JOBS.get(spec.workload) == spec.batch_size
        if is_base and record.outcome is Outcome.OK and record.timing is not None:
            steps[spec.workload][spec.strategy] = float(np.median(record.timing.step_ms))
    return [one[other] / one[FAE] for one in steps.values() if FAE in one and other in one]
