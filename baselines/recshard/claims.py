"""The numbers behind RecShard's claims: its suite's simulated trials of the models that HBM cannot hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from shardbench.record import Record
from shardbench.reproduction.claim import Evidence
from shardbench.trial import Backend, Outcome

from .scaled import GREEDIES

CONSTRAINED = ("rm2", "rm3")
"""Models larger than the HBM of all devices."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Ratios of the greedies to RecShard, one (against the best) or three (against each) a model."""
    found: dict[str, list[float]] = {}
    for ours, theirs in _pairs(evidence):
        for name, metric in (("throughput", _slowest), ("balance", _spread), ("slow-accesses", _off_hbm)):
            if metric(ours) <= 0:
                continue
            ratios = [metric(record) / metric(ours) for record in theirs]
            found.setdefault(name, []).append(min(ratios))
            found.setdefault(f"{name}-each", []).extend(ratios)
    return found


def _pairs(evidence: Evidence) -> Iterator[tuple[Record, list[Record]]]:
    for workload in CONSTRAINED:
        ok = {
            record.spec.strategy: record
            for record in evidence.records
            if record.spec.workload == workload
            and record.spec.backend is Backend.SIMULATED
            and record.outcome is Outcome.OK
        }
        if "recshard" in ok and all(name in ok for name in GREEDIES):
            yield ok["recshard"], [ok[name] for name in GREEDIES]


def _embedding(reduce: Callable[[np.ndarray], float]) -> Callable[[Record], float]:
    def metric(record: Record) -> float:
        return float(reduce(np.array(record.timing.embedding_ms))) if record.timing else 0.0

    return metric


_slowest = _embedding(np.max)
_spread = _embedding(np.std)


def _off_hbm(record: Record) -> float:
    return record.traffic.off_hbm_lookups if record.traffic else 0.0
