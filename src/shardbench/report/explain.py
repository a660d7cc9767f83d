"""Why one record beats another: phases, stragglers, bytes, rows, lookups off HBM, distance to the bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.cost.uncertainty import SURE, p_larger
from shardbench.records.record import Planned, Record, Timing, TrafficTotals
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend
from shardbench.report.groups import Condition, Row, current, groups
from shardbench.report.tables import phases_of
from shardbench.report.view import readable_bytes, significant

_SELECTOR = "suite/workload/machine/backend/strategy[/seed[/repeat]]"
_LEAST_KEY = 4
_SHOWN_PHASES = 3


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank with the most embedding time, against the mean over ranks."""

    rank: int
    embedding_ms: float
    clock: str
    """``CPU`` where the time is that; empty where it is wall time or the model's."""
    mean_ms: float
    distinct_rows: float
    mean_distinct_rows: float
    memory_bytes: float
    mean_memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two records, in the numbers that are compared."""

    key: str
    name: str
    """The strategy; with seed and repeat where both records are of one strategy."""
    strategy: str
    seed: int
    repeat: int
    step_ms: float
    vs_control: float | None
    """Step over that of the control plan stepped in turn; None where there is none."""
    phases_ms: dict[str, float]
    straggler: Straggler
    intra_bytes: float
    inter_bytes: float
    collectives: dict[str, float]
    """Bytes of all ranks by collective, both links."""
    off_hbm_pct: float
    over_bound_pct: float | None
    """Distance of the slowest rank's embedding time to the lower bound; simulated records only."""


@dataclass(frozen=True, kw_only=True)
class PhaseDifference:
    """One phase of both, ms; ``share_pct`` of the difference of the steps."""

    phase: str
    faster_ms: float
    slower_ms: float
    share_pct: float | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Two records of one condition, the faster one first (by ratio to the control where both have the same one)."""

    workload: str
    machine: str
    backend: Backend
    batch_size: int
    faster: Side
    slower: Side
    by_control: bool
    """Whether they are compared by their ratio to one control plan, else by their steps."""
    noise_pct: float | None
    """Least significant difference (95 %) of two single trials of their group; None where nothing was repeated."""
    beyond_noise: bool | None
    """Whether they differ by more; None where the noise is unknown. Simulated: whether the model knows the order."""
    p_faster: float | None
    """Share of the draws of the model's constants and form in which the faster one is faster; None where measured and
    where a record has no draws."""
    phases: tuple[PhaseDifference, ...]
    """Those that differ most first."""

    @property
    def difference_ms(self) -> float:
        """Milliseconds a step that the faster one saves; may be negative where ratios to the control decide."""
        return self.slower.step_ms - self.faster.step_ms

    @property
    def ratio(self) -> float:
        """Slower over faster, in what they are compared by."""
        return _ratio(self.slower, self.faster, by_control=self.by_control)


def read_all(results: Path) -> list[Record]:
    """Records of all suites of ``results``; raises BadInput where there are none."""
    folder = results / "records"
    records = [
        record
        for suite in sorted(path.stem for path in folder.glob("*.jsonl"))
        for record in trial_store(results, suite).read()
    ]
    if not records:
        raise BadInput(f"{folder} holds no records; run: shardbench run quick")
    return records


def find(selector: str, records: Sequence[Record]) -> Record:
    """The record that a key, its beginning or a selector names; raises BadInput where not exactly one.

    A selector that leaves out seed or repeat means the lowest there is.
    """
    if "/" in selector:
        return _by_names(selector, current(records))
    matching = {record.key: record for record in records if record.key.startswith(selector)}
    if len(selector) < _LEAST_KEY or not matching:
        raise BadInput(f"no record has a key that begins with '{selector}'; give at least 4 digits, or {_SELECTOR}")
    if len(matching) > 1:
        raise BadInput(f"'{selector}' begins the keys of {len(matching)} records; give more digits")
    return next(iter(matching.values()))


def _by_names(selector: str, records: Sequence[Record]) -> Record:
    parts = selector.split("/")
    if not 5 <= len(parts) <= 7:
        raise BadInput(f"'{selector}' is not {_SELECTOR}")
    matching = [record for record in records if _names(record)[: len(parts)] == parts]
    if not matching:
        raise BadInput(f"no record is {selector} ({_SELECTOR}); `shardbench status SUITE` says what there is")
    return min(matching, key=lambda record: (record.spec.seed, record.spec.repeat))


def _names(record: Record) -> list[str]:
    spec = record.spec
    named = (spec.suite, spec.workload, spec.machine, spec.backend.value, spec.strategy)
    return [*named, str(spec.seed), str(spec.repeat)]


def explain(a: Record, b: Record, records: Sequence[Record]) -> Explanation:
    """Compare two records; ``records`` are all there are, for the noise floor.

    Raises BadInput where the two cannot be compared or one has no numbers.
    """
    _check(a, b)
    twins = a.spec.strategy == b.spec.strategy
    first, second = _side(a, twins=twins), _side(b, twins=twins)
    condition = Condition.of(a)
    group = next((group for group in groups(records) if group.condition == condition), None)
    controls = {record.control.plan_hash if record.control else None for record in (a, b)}
    by_control = group is not None and group.control is not None and controls == {group.control}
    swap = _ratio(first, second, by_control=by_control) > 1.0
    faster, slower = (second, first) if swap else (first, second)
    ratio = _ratio(slower, faster, by_control=by_control)
    noise = group.noise if group is not None else None
    beyond = None if noise is None else bool(np.log(ratio) > noise.least_log(1, 1))
    p_faster = _p_faster(*((b, a) if swap else (a, b)))
    if condition.backend is Backend.SIMULATED:
        beyond = None if p_faster is None else p_faster >= SURE
    return Explanation(
        workload=condition.workload,
        machine=condition.machine,
        backend=condition.backend,
        batch_size=condition.batch_size,
        faster=faster,
        slower=slower,
        by_control=by_control,
        noise_pct=None if noise is None else noise.least_pct(1, 1),
        beyond_noise=beyond,
        p_faster=p_faster,
        phases=_phases(faster, slower, phases_of([a, b])),
    )


def _ratio(above: Side, below: Side, *, by_control: bool) -> float:
    if by_control and above.vs_control is not None and below.vs_control is not None:
        return above.vs_control / below.vs_control
    return above.step_ms / below.step_ms if below.step_ms else 1.0


def _p_faster(faster: Record, slower: Record) -> float | None:
    """Share of draws in which the first has the shorter step; None where one has none."""
    if faster.draws is None or slower.draws is None:
        return None
    return p_larger([slower.draws.step_ms], [faster.draws.step_ms])


def _check(a: Record, b: Record) -> None:
    for record in (a, b):
        if record.failure is not None:
            raise BadInput(
                f"record {record.key} ({record.spec.strategy}) ended in {record.outcome}: nothing to compare"
            )
    pairs = zip(Condition._fields, Condition.of(a), Condition.of(b))
    versions = (
        ("version of the workload", a.spec.workload_fingerprint, b.spec.workload_fingerprint),
        ("version of the machine", a.spec.machine_hash, b.spec.machine_hash),
    )
    for what, mine, other in (*pairs, *versions):
        if mine != other:
            name = what.replace("_", " ")
            raise BadInput(f"the records differ in {name} ({mine} and {other}): only equal ones can be compared")


def _side(record: Record, *, twins: bool) -> Side:
    timing, traffic, planned = _numbers(record)
    spec = record.spec
    over = None
    if record.bounded and record.bound_ms:
        over = 100.0 * (max(timing.embedding_ms) / record.bound_ms - 1.0)
    return Side(
        key=record.key,
        name=f"{spec.strategy} (seed {spec.seed}, repeat {spec.repeat})" if twins else spec.strategy,
        strategy=record.spec.strategy,
        seed=record.spec.seed,
        repeat=record.spec.repeat,
        step_ms=float(np.median(timing.step_ms)),
        vs_control=Row(strategy=spec.strategy, records=(record,)).ratios[0] if record.control else None,
        phases_ms=timing.phases_ms,
        straggler=_straggler(timing, traffic, planned),
        intra_bytes=sum(intra for intra, _ in traffic.collectives.values()),
        inter_bytes=sum(inter for _, inter in traffic.collectives.values()),
        collectives={name: sum(links) for name, links in traffic.collectives.items()},
        off_hbm_pct=100.0 * traffic.off_hbm_lookups / traffic.lookups if traffic.lookups else 0.0,
        over_bound_pct=over,
    )


def _numbers(record: Record) -> tuple[Timing, TrafficTotals, Planned]:
    if record.timing is None or record.traffic is None or record.planned is None:
        raise BadInput(f"record {record.key} has no numbers")
    return record.timing, record.traffic, record.planned


def _straggler(timing: Timing, traffic: TrafficTotals, planned: Planned) -> Straggler:
    times = timing.kernels_ms
    rank = int(np.argmax(times))
    memory = np.add(planned.hbm_memory_bytes, planned.uvm_memory_bytes)
    return Straggler(
        rank=rank,
        embedding_ms=times[rank],
        clock="CPU" if timing.embedding_cpu_ms is not None else "",
        mean_ms=float(np.mean(times)),
        distinct_rows=traffic.distinct_rows[rank],
        mean_distinct_rows=float(np.mean(traffic.distinct_rows)),
        memory_bytes=float(memory[rank]),
        mean_memory_bytes=float(np.mean(memory)),
    )


def _phases(faster: Side, slower: Side, names: Sequence[str]) -> tuple[PhaseDifference, ...]:
    total = slower.step_ms - faster.step_ms
    found = []
    for name in names:
        one, other = faster.phases_ms.get(name, 0.0), slower.phases_ms.get(name, 0.0)
        share = 100.0 * (other - one) / total if total > 0 else None
        found.append(PhaseDifference(phase=name, faster_ms=one, slower_ms=other, share_pct=share))
    return tuple(sorted(found, key=lambda p: (-abs(p.slower_ms - p.faster_ms), p.phase)))


def sentences(found: Explanation) -> list[str]:
    """The explanation in words, one sentence a line, ASCII."""
    said = [_headline(found), *_of_noise(found), *_of_model(found)]
    said += [_of_phase(phase) for phase in found.phases[:_SHOWN_PHASES] if phase.faster_ms != phase.slower_ms]
    if found.backend is Backend.MEASURED:
        said.append(
            "Measured phases are medians of the slowest rank, waits included: they need not add up to the step."
        )
    said += [_of_straggler(side) for side in (found.faster, found.slower)]
    said += _of_bytes(found)
    said.append(
        f"Lookups off HBM: {found.faster.off_hbm_pct:.1f} % ({found.faster.name}), "
        f"{found.slower.off_hbm_pct:.1f} % ({found.slower.name})."
    )
    over = [(side, side.over_bound_pct) for side in (found.faster, found.slower)]
    known = [f"{pct:+.1f} % ({side.name})" for side, pct in over if pct is not None]
    said.append(
        f"Slowest rank over the lower bound: {', '.join(known)}."
        if known
        else "The lower bound is proven under the cost model, for tables on devices: it says nothing about measured "
        "times, host lookups and batch schedules."
    )
    return said


def _headline(found: Explanation) -> str:
    faster, slower = found.faster, found.slower
    where = f"{found.workload} on {found.machine}, {found.backend}, batch {found.batch_size}"
    if not found.difference_ms and not found.by_control:
        return f"{faster.name} and {slower.name} take the same {significant(faster.step_ms)} ms a step ({where})."
    noise = "" if found.noise_pct is None else f" the noise floor of {found.noise_pct:.1f} %"
    unknown = "; whether that is noise is unknown, nothing was repeated" if found.backend is Backend.MEASURED else ""
    verb, words = {
        None: ("may or may not beat", unknown),
        True: ("beats", f"; beyond{noise}" if noise else ""),
        False: ("is not told apart from", f"; within{noise}" if noise else ""),
    }[found.beyond_noise]
    # What drift did to the steps says nothing where their ratios to the control decide.
    times = "" if found.by_control else f", {slower.step_ms / max(faster.step_ms, 1e-9):.3f}x"
    return (
        f"{faster.name} {verb} {slower.name}: {significant(faster.step_ms)} against "
        f"{significant(slower.step_ms)} ms a step{times} "
        f"({where}){words}."
    )


def _of_noise(found: Explanation) -> list[str]:
    """By what they are compared and how much of that is noise; measured records only."""
    if found.backend is not Backend.MEASURED:
        return []
    faster, slower = found.faster, found.slower
    said = []
    if faster.vs_control is not None and slower.vs_control is not None and found.by_control:
        said.append(
            "Compared by the ratio to the control plan, which the same ranks stepped in turn, so that what else the "
            f"machine did hits both: {faster.vs_control:.3f}x ({faster.name}) and {slower.vs_control:.3f}x "
            f"({slower.name}), {found.ratio:.3f}x apart."
        )
    else:
        said.append("Compared by their steps: the trials have no common control plan, so drift is not told apart.")
    said.append(
        "The noise floor is unknown and no order is claimed: no plan of the group was repeated."
        if found.noise_pct is None
        else f"Noise floor: two single trials of one plan differ by less than {found.noise_pct:.1f} % in 95 % of cases."
    )
    return said


def _of_model(found: Explanation) -> list[str]:
    """How sure the cost model is of the order; simulated records only."""
    if found.backend is not Backend.SIMULATED or not found.difference_ms:
        return []
    if found.p_faster is None:
        return ["How sure the model is of that is unknown: the records have no draws of its constants."]
    known = found.p_faster >= SURE
    doubt = "" if known else f", and below {SURE:.0%} the order counts as open (~)".replace("%", " %")
    return [
        f"{found.faster.name} is the faster one in {100.0 * found.p_faster:.0f} % of the draws of the model's "
        f"constants and form within their held-out errors{doubt}."
    ]


def _of_phase(phase: PhaseDifference) -> str:
    less = phase.slower_ms - phase.faster_ms
    word = "less" if less > 0 else "more"
    share = "" if phase.share_pct is None else f", {phase.share_pct:.0f} % of the difference"
    name = phase.phase.replace("_", " ")
    return (
        f"Phase {name}: {significant(phase.faster_ms)} against {significant(phase.slower_ms)} ms, "
        f"{significant(abs(less))} ms {word}{share}."
    )


def _of_straggler(side: Side) -> str:
    s = side.straggler
    time = f"{s.clock} time" if s.clock else "time"
    return (
        f"Straggler of {side.name}: rank {s.rank} with {significant(s.embedding_ms)} ms of embedding {time}, "
        f"{_times(s.embedding_ms, s.mean_ms)} the mean; it reads {s.distinct_rows:,.0f} distinct rows "
        f"({_times(s.distinct_rows, s.mean_distinct_rows)}) and holds {readable_bytes(s.memory_bytes)} "
        f"({_times(s.memory_bytes, s.mean_memory_bytes)})."
    )


def _of_bytes(found: Explanation) -> list[str]:
    faster, slower = found.faster, found.slower
    said = [
        f"Bytes a step: {readable_bytes(faster.intra_bytes)} inside nodes and {readable_bytes(faster.inter_bytes)} "
        f"across ({faster.name}), {readable_bytes(slower.intra_bytes)} and {readable_bytes(slower.inter_bytes)} "
        f"({slower.name})."
    ]
    names = sorted(faster.collectives.keys() | slower.collectives.keys())
    off = {name: faster.collectives.get(name, 0.0) - slower.collectives.get(name, 0.0) for name in names}
    most = max(names, key=lambda name: abs(off[name]), default=None)
    if most is not None and off[most]:
        word = "less" if off[most] < 0 else "more"
        name = most.replace("_", " ")
        said.append(f"They differ most in the {name}: {readable_bytes(abs(off[most]))} {word}.")
    return said


def _times(value: float, mean: float) -> str:
    return f"{value / mean:.2f}x" if mean else "1.00x"
