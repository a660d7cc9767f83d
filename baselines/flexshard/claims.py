"""The numbers behind FlexShard's claims: simulated trials of the production form, and the study of communication."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from shardbench.record import Record
from shardbench.reproduction.claim import Evidence
from shardbench.trial import Backend, Outcome

from .conditions import EXCHANGES

WORKLOAD, OURS, COMPARED = "production", "flexshard", "table-row-wise"
COMMUNICATION = ("input", "output", "output_backward", "all_reduce")

Measure = Callable[[Record], float]


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """One number a machine for each claim, against the compared plan and against the best other one."""
    found: dict[str, list[float]] = defaultdict(list)
    for trials in _conditions(evidence.records):
        others = {name: record for name, record in trials.items() if not name.startswith(OURS)}
        if OURS not in trials or COMPARED not in others:
            continue
        ours = trials[OURS]
        best = min(others.values(), key=_communication_ms)
        for suffix, other in (("", others[COMPARED]), ("-vs-best", best)):
            found[f"traffic{suffix}"].append(_saved_pct(ours, other, _between_nodes_bytes))
            found[f"traffic-all-links{suffix}"].append(_saved_pct(ours, other, _exchanged_bytes))
            found[f"latency-counted{suffix}"].append(_communication_ms(other) / _communication_ms(ours))
            found[f"memory{suffix}"].append(-_saved_pct(ours, other, _fullest_device_bytes))
    return found | _even_latency(evidence)


def _even_latency(evidence: Evidence) -> dict[str, list[float]]:
    """Latency gains where rows that are dealt over ranks keep all ranks equally busy (README: what distorts)."""
    table = evidence.tables.get("latency")
    found: dict[str, list[float]] = defaultdict(list)
    if table is None:
        return found
    for _, rows in table[table["workload"] == WORKLOAD].groupby("nodes"):
        ms = {str(name): float(value) for name, value in zip(rows["strategy"], rows["even_communication_ms"])}
        others = {name: value for name, value in ms.items() if not name.startswith(OURS)}
        if OURS in ms and COMPARED in others:
            found["latency"].append(others[COMPARED] / ms[OURS])
            found["latency-vs-best"].append(min(others.values()) / ms[OURS])
    return found


def _conditions(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Simulated trials that ended well, by strategy, one dict a machine."""
    grouped: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        spec = record.spec
        if spec.workload == WORKLOAD and spec.backend is Backend.SIMULATED and record.outcome is Outcome.OK:
            grouped[spec.machine][spec.strategy] = record
    return [grouped[machine] for machine in sorted(grouped)]


def _saved_pct(ours: Record, other: Record, measure: Measure) -> float:
    return 100.0 * (1.0 - measure(ours) / measure(other))


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
