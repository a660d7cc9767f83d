"""The numbers behind FlexShard's claims, out of the suite's simulated trials."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from shardbench.cost.collectives import EXCHANGES
from shardbench.cost.phases import WAITS
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome
from shardbench.studies.claim import Evidence

WORKLOAD, CONTROL_WORKLOAD = "production", "taobao"
OURS, COMPARED, LEAST, PLANNER = "flexshard", "table-row-wise", "row-wise", "torchrec-fused"
COMMUNICATION = tuple(WAITS)

Measure = Callable[[Record], float]


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """One number a machine for each claim, against the compared plan and against the best other one.

    The best other is the same plan in all of them: that with the smallest communication latency.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for ours, others in _conditions(evidence.records, WORKLOAD):
        best = min(others.values(), key=_communication_ms)
        for suffix, other in (("", others[COMPARED]), ("-vs-best", best)):
            found[f"traffic{suffix}"].append(_ratio(other, ours, _between_nodes_bytes))
            found[f"traffic-all-links{suffix}"].append(_ratio(other, ours, _exchanged_bytes))
            found[f"latency{suffix}"].append(_communication_ms(other) / _communication_ms(ours))
            found[f"memory{suffix}"].append(_ratio(ours, other, _fullest_device_bytes))
        for suffix, name in (("row-wise", LEAST), ("torchrec", PLANNER)):
            if name in others:
                found[f"memory-vs-{suffix}"].append(_ratio(ours, others[name], _fullest_device_bytes))
    for ours, others in _conditions(evidence.records, CONTROL_WORKLOAD):
        best = min(others.values(), key=_communication_ms)
        found["taobao-traffic"].append(_ratio(others[COMPARED], ours, _between_nodes_bytes))
        found["taobao-latency-vs-best"].append(_communication_ms(best) / _communication_ms(ours))
    return found


def _conditions(records: Sequence[Record], workload: str) -> list[tuple[Record, dict[str, Record]]]:
    """Our simulated trial and those of all other strategies, one pair a machine; trials that did not end well aside."""
    grouped: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        spec = record.spec
        if spec.workload == workload and spec.backend is Backend.SIMULATED and record.outcome is Outcome.OK:
            grouped[spec.machine][spec.strategy] = record
    found = []
    for machine in sorted(grouped):
        trials = grouped[machine]
        others = {name: record for name, record in trials.items() if not name.startswith(OURS)}
        if OURS in trials and COMPARED in others:
            found.append((trials[OURS], others))
    return found


def _ratio(a: Record, b: Record, measure: Measure) -> float:
    return measure(a) / measure(b)


def _exchanged_bytes(record: Record) -> float:
    if record.traffic is None:
        raise ValueError(f"record {record.key} has no traffic")
    return sum(sum(record.traffic.collectives[name]) for name in EXCHANGES)


def _between_nodes_bytes(record: Record) -> float:
    if record.traffic is None:
        raise ValueError(f"record {record.key} has no traffic")
    return sum(record.traffic.collectives[name][1] for name in EXCHANGES)


def _communication_ms(record: Record) -> float:
    if record.timing is None:
        raise ValueError(f"record {record.key} has no timing")
    return sum(record.timing.phases_ms[name] for name in COMMUNICATION)


def _fullest_device_bytes(record: Record) -> float:
    if record.planned is None:
        raise ValueError(f"record {record.key} has no plan")
    return float(max(record.planned.hbm_memory_bytes))
