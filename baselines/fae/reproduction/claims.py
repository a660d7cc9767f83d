"""The numbers behind FAE's claims, out of its studies' tables and its suite's records."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardbench.records.record import Record
from shardbench.records.trial import Outcome
from shardbench.studies.claim import Evidence

from .studies import TEACHER

FAE, HYBRID, CPU_ONLY = "fae", "hybrid", "cpu-only"
MACHINES = {f"v100-16gb-1x{devices}": devices for devices in (1, 2, 4)}
BASE_JOBS = {
    "criteo-kaggle-like": (1024, FAE),
    "criteo-terabyte-one-hot-like": (1024, FAE),
    "taobao-like-20": (256, "fae-20pct"),
}
"""Inputs a device in the jobs of a workload that claims count, and its FAE."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Return the numbers of each claim: speed-ups by workload, differences of accuracy by seed, counts of skew."""
    claims = {
        "over-cpu-only": ratios(evidence, CPU_ONLY, _step_ms),
        "over-hybrid": ratios(evidence, HYBRID, _step_ms),
        "fewer-bytes": ratios(evidence, HYBRID, _copied_bytes),
    }
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


def ratios(evidence: Evidence, other: str, number: Callable[[Record], float]) -> list[float]:
    """Return a number of ``other`` over that of FAE, one a workload and number of devices, from the base jobs."""
    numbers: dict[tuple[str, str], dict[str, float]] = {}
    for record in evidence.records:
        spec = record.spec
        inputs, _ = BASE_JOBS.get(spec.workload, (0, ""))
        is_base = spec.batch_size == inputs * MACHINES.get(spec.machine, 0)
        if is_base and record.outcome is Outcome.OK:
            numbers.setdefault((spec.workload, spec.machine), {})[spec.strategy] = number(record)
    pairs = [(of, BASE_JOBS[workload][1]) for (workload, _), of in numbers.items()]
    return [of[other] / of[fae] for of, fae in pairs if fae in of and other in of]


def _step_ms(record: Record) -> float:
    assert record.timing is not None  # noqa: S101 - a trial that ended well has one
    return float(np.median(record.timing.step_ms))


def _copied_bytes(record: Record) -> float:
    """Count what a step copies between hosts and devices: vectors, as many gradients, and hot rows at a switch."""
    traffic = record.traffic
    assert traffic is not None  # noqa: S101 - a trial that ended well has it
    switched = (traffic.copied_to_device_bytes or 0.0) + (traffic.copied_to_host_bytes or 0.0)
    return 2.0 * (traffic.host_vectors_bytes or 0.0) + switched
