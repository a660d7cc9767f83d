"""Explains why one record is faster than another: by phases, stragglers, bytes, rows, lookups off HBM and the bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from shardbench.base.closest import closest_name
from shardbench.base.errors import BadInput
from shardbench.cost.phases import EXCHANGE_PHASES
from shardbench.cost.uncertainty import SURE, p_larger
from shardbench.model.plan import ShardingGroups
from shardbench.records.record import Planned, Record, Timing, TrafficTotals, fast_ms
from shardbench.records.trial import Backend, unusual
from shardbench.report.groups import ComparedBy, Group, groups
from shardbench.report.results import trial_records
from shardbench.report.rows import Condition, current
from shardbench.report.tables.suite_tables import phases_of

SELECTOR = "suite/workload/machine/backend/strategy[/seed[/repeat]]"
_LEAST_KEY = 4


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank with the most embedding time, beside the mean over ranks."""

    rank: int
    embedding_ms: float
    clock: str
    """``CPU`` where it is CPU time; empty where it is wall time, or the model's."""
    mean_ms: float
    distinct_rows: float
    mean_distinct_rows: float
    memory_bytes: float
    mean_memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class ComparedTrial:
    """One of the two records, in the numbers that are compared."""

    key: str
    name: str
    """The strategy, with seed and repeat where both records are of one strategy."""
    strategy: str
    seed: int
    repeat: int
    step_ms: float
    """Simulated: the median over iterations. Measured: ``Group.trial_ms``, at the group's mean speed of the machine."""
    phases_ms: dict[str, float]
    """Milliseconds of each phase on the critical path of the step, as ``_critical_ms`` says; measured, at that speed.
    """
    straggler: Straggler
    intra_bytes: float
    inter_bytes: float
    collectives: dict[str, float]
    """Bytes of all ranks by collective, on both links."""
    off_hbm_pct: float
    over_bound_pct: float | None
    """Distance of the slowest rank's embedding time to the lower bound; simulated records only."""
    groups: ShardingGroups | None
    """The sharding groups that the plan states."""


@dataclass(frozen=True, kw_only=True)
class PhaseDifference:
    """A phase on the critical path of both, in ms, and its share of the difference of the steps."""

    phase: str
    faster_ms: float
    slower_ms: float
    share_pct: float | None
    """It is None where measured: phases of several ranks do not add up to the step."""

    @property
    def saved_ms(self) -> float:
        """Return the milliseconds that the faster one saves in it; negative where it spends more."""
        return self.slower_ms - self.faster_ms


@dataclass(frozen=True, kw_only=True)
class AllTrials:
    """The two strategies over all their measured trials of the condition, as tables compare them."""

    faster: str
    slower: str
    trials: tuple[int, int]
    """The number of trials of the faster and of the slower strategy."""
    slower_pct: float
    beyond_noise: bool | None
    """Whether that is more than the noise of so many trials; None where the noise is unknown."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Two records of one condition, the faster one first, and in what they differ."""

    workload: str
    machine: str
    backend: Backend
    batch_size: int
    unusual: tuple[str, ...]
    """What the training of both does that ordinary training does not, in words."""
    faster: ComparedTrial
    slower: ComparedTrial
    by_control: bool
    """Whether their steps are brought to one speed of the machine by one control plan."""
    noise_pct: float | None
    """Least significant difference (95 %) of two single trials of their group; None where nothing was repeated."""
    beyond_noise: bool | None
    """Whether they differ by more; None where the noise is unknown. Simulated: whether the model knows the order."""
    p_faster: float | None
    """Share of the draws of the model's constants and form in which the faster one is faster; None where measured and
    where a record has no draws."""
    all_trials: AllTrials | None
    """It is None where simulated, of one strategy, where a trial failed, and where there are no more than the two."""
    phases: tuple[PhaseDifference, ...]
    """The phases in which the faster one saves most come first, those in which it spends more last."""

    @property
    def difference_ms(self) -> float:
        """Return the milliseconds a step that the faster one saves."""
        return self.slower.step_ms - self.faster.step_ms

    @property
    def ratio(self) -> float:
        """Return slower over faster; 1 where the faster one takes no time."""
        return self.slower.step_ms / self.faster.step_ms if self.faster.step_ms else 1.0


def read_all(results: Path) -> list[Record]:
    """Read the records of all suites of ``results``; raises BadInput where there are none."""
    records = list(chain.from_iterable(trial_records(results).values()))
    if not records:
        raise BadInput(f"{results / 'records'} holds no records; run: shardbench run quick")
    return records


def find(selector: str, records: Sequence[Record]) -> Record:
    """Return the record that a key, its beginning or a selector names.

    A selector that leaves out seed or repeat means the lowest there is, and trials of ordinary exchanges and steps
    where there are some. Raises BadInput where no record or more than one is so named.
    """
    if "/" in selector:
        return _by_names(selector, current(records))
    matching = {record.key: record for record in records if record.key.startswith(selector)}
    if len(selector) < _LEAST_KEY or not matching:
        raise BadInput(f"no record has a key that begins with '{selector}'; give at least 4 digits, or {SELECTOR}")
    if len(matching) > 1:
        raise BadInput(f"'{selector}' begins the keys of {len(matching)} records; give more digits")
    return next(iter(matching.values()))


def _by_names(selector: str, records: Sequence[Record]) -> Record:
    parts = selector.split("/")
    if not 5 <= len(parts) <= 7:
        raise BadInput(f"'{selector}' is not {SELECTOR}")
    matching = [record for record in records if _names(record)[: len(parts)] == parts]
    if not matching:
        near = closest_name(selector, {"/".join(_names(record)[: len(parts)]) for record in records})
        hint = f"did you mean {near}?" if near else "shardbench report SUITE shows what there is"
        raise BadInput(f"no record is {selector} ({SELECTOR}); {hint}")
    ordinary = [record for record in matching if not unusual(record.spec.exchange, record.spec.schedule)]
    candidates = ordinary or matching
    if len({Condition.of(record) for record in candidates}) > 1:
        keys = ", ".join(record.key[: _LEAST_KEY * 2] for record in candidates[:_LEAST_KEY])
        raise BadInput(f"{selector} was trained in several ways: name a trial by the begin of its key, such as {keys}")
    return min(candidates, key=lambda record: (record.spec.seed, record.spec.repeat))


def _names(record: Record) -> list[str]:
    spec = record.spec
    names = (spec.suite, spec.workload, spec.machine, spec.backend.value, spec.strategy)
    return [*names, str(spec.seed), str(spec.repeat)]


def explain(a: Record, b: Record, records: Sequence[Record]) -> Explanation:
    """Compare two records; ``records`` are all there are, for the noise floor.

    Raises BadInput where the two cannot be compared or one has no numbers.
    """
    _check(a, b)
    twins = a.spec.strategy == b.spec.strategy
    condition = Condition.of(a)
    measured = condition.backend is Backend.MEASURED
    group = next((group for group in groups(records) if group.condition == condition), None)
    first, second = (_trial(record, group, twins=twins) for record in (a, b))
    swap = first.step_ms > second.step_ms
    faster, slower = (second, first) if swap else (first, second)
    noise = group.noise if group is not None else None
    beyond = None if noise is None else bool(np.log(slower.step_ms / faster.step_ms) > noise.least_log(1, 1))
    quick, slow = (b, a) if swap else (a, b)
    p_faster = None
    if not measured:
        p_faster = p_larger([slow.draws.step_ms], [quick.draws.step_ms]) if slow.draws and quick.draws else None
        beyond = None if p_faster is None else p_faster >= SURE
    return Explanation(
        workload=condition.workload,
        machine=condition.machine,
        backend=condition.backend,
        batch_size=condition.batch_size,
        unusual=unusual(condition.exchange, condition.schedule),
        faster=faster,
        slower=slower,
        by_control=group is not None and group.compared_by is ComparedBy.CONTROL,
        noise_pct=None if noise is None else noise.least_pct(1, 1),
        beyond_noise=beyond,
        p_faster=p_faster,
        all_trials=_all_trials(group, a.spec.strategy, b.spec.strategy) if measured and group else None,
        phases=_phases(faster, slower, phases_of([a, b]), condition.backend),
    )


def _all_trials(group: Group, a: str, b: str) -> AllTrials | None:
    rows = [row for row in group.ok_rows if row.strategy in (a, b)]
    if len(rows) < 2 or all(len(row.records) == 1 for row in rows):
        return None
    faster, slower = sorted(rows, key=lambda row: group.estimate(row).value)
    return AllTrials(
        faster=faster.strategy,
        slower=slower.strategy,
        trials=(len(faster.records), len(slower.records)),
        slower_pct=100.0 * (group.estimate(slower).value / group.estimate(faster).value - 1.0),
        beyond_noise=group.apart(faster, slower),
    )


def _check(a: Record, b: Record) -> None:
    for record in (a, b):
        if record.failure is not None:
            raise BadInput(
                f"record {record.key} ({record.spec.strategy}) ended in {record.outcome}: nothing to compare"
            )
        if record.shares_cores:
            raise BadInput(f"record {record.key} is of more ranks than cores: its times are not compared")
    pairs = zip(Condition._fields, Condition.of(a), Condition.of(b))
    versions = (
        ("version of the workload", a.spec.workload_fingerprint, b.spec.workload_fingerprint),
        ("version of the machine", a.spec.machine_hash, b.spec.machine_hash),
    )
    for field, mine, other in (*pairs, *versions):
        if mine != other:
            name = field.replace("_", " ")
            raise BadInput(f"the records differ in {name} ({mine} and {other}): only equal ones can be compared")


def _trial(record: Record, group: Group | None, *, twins: bool) -> ComparedTrial:
    timing, traffic, planned = _numbers(record)
    step_ms, speed = float(np.median(timing.step_ms)), 1.0
    if group is not None and record.spec.backend is Backend.MEASURED:
        step_ms = group.trial_ms(record)
        speed = step_ms / fast_ms(timing.step_ms)
    spec = record.spec
    over_bound_pct = None
    if record.bounded and record.bound_ms:
        over_bound_pct = 100.0 * (max(timing.embedding_ms) / record.bound_ms - 1.0)
    return ComparedTrial(
        key=record.key,
        name=f"{spec.strategy} (seed {spec.seed}, repeat {spec.repeat})" if twins else spec.strategy,
        strategy=spec.strategy,
        seed=spec.seed,
        repeat=spec.repeat,
        step_ms=step_ms,
        phases_ms={name: ms * speed for name, ms in _critical_ms(timing).items()},
        straggler=_straggler(timing, traffic, planned),
        intra_bytes=sum(intra for intra, _ in traffic.collectives.values()),
        inter_bytes=sum(inter for _, inter in traffic.collectives.values()),
        collectives={name: sum(links) for name, links in traffic.collectives.items()},
        off_hbm_pct=100.0 * traffic.off_hbm_lookups / traffic.lookups if traffic.lookups else 0.0,
        over_bound_pct=over_bound_pct,
        groups=planned.groups,
    )


def _numbers(record: Record) -> tuple[Timing, TrafficTotals, Planned]:
    if record.timing is None or record.traffic is None or record.planned is None:
        raise BadInput(f"record {record.key} has no numbers")
    if not (record.timing.kernels_ms and record.traffic.distinct_rows and record.planned.uvm_memory_bytes):
        raise BadInput(f"record {record.key} has no numbers of its ranks")
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


def _critical_ms(timing: Timing) -> dict[str, float]:
    """Return the milliseconds of each phase on the critical path of the step: where simulated, what the model adds up.

    Where measured, what ranks do alone takes as long as the slowest of them, and an exchange as long as for the rank
    that waited least, as the last one to come waits for nobody.
    """
    if timing.ranks is None:
        return dict(timing.phases_ms)
    phases_ms = {}
    for name in timing.phases_ms:
        of_ranks = [rank.phases_ms.get(name, 0.0) for rank in timing.ranks]
        phases_ms[name] = min(of_ranks) if name in EXCHANGE_PHASES else max(of_ranks)
    return phases_ms


def _phases(
    faster: ComparedTrial, slower: ComparedTrial, names: Sequence[str], backend: Backend
) -> tuple[PhaseDifference, ...]:
    total = slower.step_ms - faster.step_ms
    differences = []
    for name in names:
        one, other = faster.phases_ms.get(name, 0.0), slower.phases_ms.get(name, 0.0)
        share = 100.0 * (other - one) / total if total > 0 and backend is Backend.SIMULATED else None
        differences.append(PhaseDifference(phase=name, faster_ms=one, slower_ms=other, share_pct=share))
    return tuple(sorted(differences, key=lambda phase: (-phase.saved_ms, phase.phase)))
