"""The numbers behind FAE's claims, out of its studies' tables and its suite's records."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardbench.records.trial import Outcome
from shardbench.studies.claim import Evidence

from .studies import TEACHER

FAE, HYBRID, CPU_ONLY = "fae", "hybrid", "cpu-only"
MACHINE = "v100-16gb-1x4"
BASE_JOBS = {
    "criteo-kaggle-like": (4096, FAE),
    "criteo-terabyte-one-hot-like": (4096, FAE),
    "taobao-like-20": (1024, "fae-20pct"),
}
"""The batch size of the one job of a workload that claims count, 1K inputs a device (256 of Taobao), and its FAE."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Return the numbers of each claim: speed-ups by workload, differences of accuracy by seed, counts of skew."""
    claims = {"over-cpu-only": speed_ups(evidence, CPU_ONLY), "over-hybrid": speed_ups(evidence, HYBRID)}
    results = evidence.tables.get("accuracy_seeds")
    if results is not None and not results.empty:
        fae = results[(results["order"] == FAE) & (results["clicks"] == TEACHER)]
        claims["accuracy-stand-in-auc"] = fae["auc_difference"].tolist()
        claims["accuracy-stand-in-log-loss"] = fae["log_loss_difference"].tolist()
    skew = evidence.tables.get("skew")
    if skew is not None and not skew.empty:
        overall = skew["table"] == "all"
        claims["skew"] = [float(skew.loc[~overall, "hottest_over_median_x"].max())]
        claims["top-rows"] = skew.loc[overall, "top_rows_accesses_pct"].tolist()
    tutorial = evidence.tables.get("tutorial")
    if tutorial is not None and not tutorial.empty:
        claims["hot-inputs"] = tutorial.loc[tutorial["column_dependence"] == 0.0, "hot_inputs_pct"].tolist()
    return claims


def speed_ups(evidence: Evidence, other: str) -> list[float]:
    """Return the median step of ``other`` over that of FAE, one number a workload, from its base job."""
    steps: dict[str, dict[str, float]] = {name: {} for name in BASE_JOBS}
    for record in evidence.records:
        spec = record.spec
        is_base = spec.machine == MACHINE and BASE_JOBS.get(spec.workload, (0, ""))[0] == spec.batch_size
        if is_base and record.outcome is Outcome.OK and record.timing is not None:
            steps[spec.workload][spec.strategy] = float(np.median(record.timing.step_ms))
    pairs = [(steps[name], fae) for name, (_, fae) in BASE_JOBS.items()]
    return [one[other] / one[fae] for one, fae in pairs if fae in one and other in one]
