"""Explains why one record is faster than another: how sure the order is, and one table of what differs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shardbench.base.closest import closest_name
from shardbench.base.errors import BadInput
from shardbench.cost.phases import EXCHANGE_PHASES
from shardbench.cost.uncertainty import SURE, p_larger
from shardbench.records.record import Planned, Record, Timing, TrafficTotals, fast_ms
from shardbench.records.trial import Backend, unusual
from shardbench.report.groups import ComparedBy, Group, groups
from shardbench.report.results import trial_records
from shardbench.report.rows import Condition, current
from shardbench.report.standing import groups_text
from shardbench.report.tables.files import json_rows
from shardbench.report.tables.layout import lay_out
from shardbench.report.tables.suite_tables import phases_of
from shardbench.report.tables.text import Columns, column_words, distinct, readable_cell, significant, unknown

SELECTOR = "suite/workload/machine/backend/strategy[/seed[/repeat]]"
COLUMNS = ("quantity", "faster", "slower", "difference", "share_pct")
_LEAST_KEY = 4
_ONE_SPEED = "brought to the mean speed that the machine had in all trials of the group"


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

    condition: Condition
    faster: Record
    slower: Record
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
    differences: pd.DataFrame
    """A row a quantity with its value of both, ``difference`` (slower - faster, where that says something) and, of
    simulated phases, the share of the step's difference. The step is the first row; phases are those of the critical
    path, in which the faster one saves most the first. Names end in the unit."""

    @property
    def steps_ms(self) -> tuple[float, float]:
        """Return the steps of the faster and of the slower one."""
        step = self.differences.iloc[0]
        return float(step["faster"]), float(step["slower"])

    @property
    def names(self) -> tuple[str, str]:
        """Name both by their strategies, with seed and repeat where these are the same."""
        specs = self.faster.spec, self.slower.spec
        twins = specs[0].strategy == specs[1].strategy
        one, other = (f"{s.strategy} (seed {s.seed}, repeat {s.repeat})" if twins else s.strategy for s in specs)
        return one, other

    def data(self) -> dict[str, Any]:
        """Return the explanation as plain data, as ``--json`` prints it."""
        named = ("strategy", "seed", "repeat")
        sides = (("faster", self.faster), ("slower", self.slower))
        known = ("by_control", "noise_pct", "beyond_noise", "p_faster")
        return {
            **{name: getattr(self.condition, name) for name in ("workload", "machine", "backend", "batch_size")},
            **{side: {"key": of.key, **{name: getattr(of.spec, name) for name in named}} for side, of in sides},
            **{name: getattr(self, name) for name in known},
            "all_trials": None if self.all_trials is None else asdict(self.all_trials),
            "differences": json_rows(self.differences),
            "sentences": sentences(self),
        }


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
    condition = Condition.of(a)
    group = next((group for group in groups(records) if group.condition == condition), None)
    (faster, one), (slower, other) = sorted(
        ((record, _quantities(record, group)) for record in (a, b)), key=lambda pair: pair[1]["step_ms"]
    )
    noise = group.noise if group is not None else None
    beyond = None if noise is None else bool(np.log(other["step_ms"] / one["step_ms"]) > noise.least_log(1, 1))
    p_faster = None
    if condition.backend is Backend.SIMULATED:
        p_faster = p_larger([slower.draws.step_ms], [faster.draws.step_ms]) if faster.draws and slower.draws else None
        beyond = None if p_faster is None else p_faster >= SURE
    measured = condition.backend is Backend.MEASURED
    return Explanation(
        condition=condition,
        faster=faster,
        slower=slower,
        by_control=group is not None and group.compared_by is ComparedBy.CONTROL,
        noise_pct=None if noise is None else noise.least_pct(1, 1),
        beyond_noise=beyond,
        p_faster=p_faster,
        all_trials=_all_trials(group, a.spec.strategy, b.spec.strategy) if measured and group else None,
        differences=_differences(one, other, phases_of([a, b]), simulated=not measured),
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


def _quantities(record: Record, group: Group | None) -> dict[str, Any]:
    """Return what is compared of a record, by names that end in the unit; phases by their own, in milliseconds.

    Where measured, times are at the group's mean speed of the machine (``Group.trial_ms``).
    """
    timing, traffic, planned = _numbers(record)
    step_ms, speed = float(np.median(timing.step_ms)), 1.0
    if group is not None and record.spec.backend is Backend.MEASURED:
        step_ms = group.trial_ms(record)
        speed = step_ms / fast_ms(timing.step_ms)
    over_bound_pct = None
    if record.bounded and record.bound_ms:
        over_bound_pct = 100.0 * (max(timing.embedding_ms) / record.bound_ms - 1.0)
    rank = int(np.argmax(timing.kernels_ms))
    memory = np.add(planned.hbm_memory_bytes, planned.uvm_memory_bytes)
    clock = "cpu_" if timing.embedding_cpu_ms is not None else ""
    of_ranks: dict[str, Any] = {
        f"embedding_{clock}ms": timing.kernels_ms, "distinct_rows": traffic.distinct_rows, "memory_bytes": memory,
    }  # fmt: skip
    quantities: dict[str, Any] = {"step_ms": step_ms}
    quantities |= {name: ms * speed for name, ms in _critical_ms(timing).items()}
    quantities["slowest_rank"] = f"rank {rank}"
    for name, values in of_ranks.items():
        mean = float(np.mean(values))
        quantities[f"its_{name}"] = float(values[rank])
        quantities[f"its_{name.removesuffix('_ms').removesuffix('_bytes')}_over_mean_x"] = (
            float(values[rank]) / mean if mean else 1.0
        )
    for place, where in enumerate(("inside", "between")):
        quantities[f"{where}_nodes_bytes"] = sum(links[place] for links in traffic.collectives.values())
    quantities |= {f"{name}_bytes": sum(links) for name, links in traffic.collectives.items()}
    quantities["lookups_off_HBM_pct"] = 100.0 * traffic.off_hbm_lookups / traffic.lookups if traffic.lookups else 0.0
    quantities["slowest_rank_over_bound_pct"] = over_bound_pct
    quantities["sharding_groups"] = None if planned.groups is None else groups_text(planned.groups)
    return quantities


def _numbers(record: Record) -> tuple[Timing, TrafficTotals, Planned]:
    if record.timing is None or record.traffic is None or record.planned is None:
        raise BadInput(f"record {record.key} has no numbers")
    if not (record.timing.kernels_ms and record.traffic.distinct_rows and record.planned.uvm_memory_bytes):
        raise BadInput(f"record {record.key} has no numbers of its ranks")
    return record.timing, record.traffic, record.planned


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


def _differences(
    faster: dict[str, Any], slower: dict[str, Any], phases: Sequence[str], *, simulated: bool
) -> pd.DataFrame:
    total_ms = slower["step_ms"] - faster["step_ms"]
    rows = []
    for name in dict.fromkeys([*faster, *slower]):
        is_phase = name in phases
        nothing = 0.0 if is_phase or name.endswith("_bytes") else None
        sides: tuple[Any, Any] = faster.get(name, nothing), slower.get(name, nothing)
        one, other = sides
        if not (one or other) and (one is None or name.endswith("_bytes")):
            continue
        is_amount = isinstance(one, float) and isinstance(other, float) and not name.endswith("_x")
        difference: Any = other - one if is_amount else None
        share = 100.0 * difference / total_ms if is_phase and simulated and total_ms > 0 else None
        rows.append((f"{name}_ms" if is_phase else name, one, other, difference, share, is_phase))
    # The step, then phases by what they save.
    first, *rest = rows
    saved = sorted((row for row in rest if row[-1]), key=lambda row: (-row[3], row[0]))
    ordered = [first, *saved, *(row for row in rest if not row[-1])]
    return pd.DataFrame([row[:-1] for row in ordered], columns=list(COLUMNS))


def lines(explanation: Explanation) -> list[str]:
    """Put the explanation into lines: how sure the order is, then the table of differences."""
    heads = ("", *explanation.names, "difference", "of it")
    rows = [_row(row) for row in explanation.differences.to_dict("records")]
    # Phases of several ranks do not add up to a measured step, and have no share of it.
    count = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    numeric = (False, *(True,) * (count - 1))
    table = lay_out(Columns(headers=heads[:count], rows=tuple(row[:count] for row in rows), numeric=numeric))
    return [*sentences(explanation), *table.heads, *table.rows]


def sentences(explanation: Explanation) -> list[str]:
    """Say which one is faster, and how sure that is."""
    return [_headline(explanation), *_of_noise(explanation), *_of_model(explanation)]


def _row(row: dict[Any, Any]) -> tuple[str, ...]:
    name = str(row["quantity"])
    values = row["faster"], row["slower"]
    one, other = (readable_cell(name, value) for value in values)
    if one == other and values[0] != values[1] and not name.endswith("_bytes"):
        one, other = distinct(*values)
    share = "" if unknown(row["share_pct"]) else f"{row['share_pct']:.0f} %"
    return column_words(name), one, other, readable_cell(name, row["difference"]), share


def _headline(explanation: Explanation) -> str:
    faster, slower = explanation.names
    condition, (one_ms, other_ms) = explanation.condition, explanation.steps_ms
    where = ", ".join(
        [
            f"{condition.workload} on {condition.machine}", condition.backend, f"batch {condition.batch_size}",
            *unusual(condition.exchange, condition.schedule),
        ]
    )  # fmt: skip
    if one_ms == other_ms:
        return f"{faster} and {slower} take the same {significant(one_ms)} ms a step ({where})."
    noise = "" if explanation.noise_pct is None else f" the noise floor of {significant(explanation.noise_pct, 2)} %"
    never = "; whether that is noise is unknown, nothing was repeated" if condition.backend is Backend.MEASURED else ""
    names, words = {
        None: (f"It is not known which of {faster} and {slower} is faster", never),
        True: (f"{faster} beats {slower}", f"; beyond{noise}" if noise else ""),
        False: (f"{faster} is not told apart from {slower}", f"; within{noise}" if noise else ""),
    }[explanation.beyond_noise]
    one, other = distinct(one_ms, other_ms)
    times = f", {significant(other_ms / one_ms)}x" if one_ms else ""
    return f"{names}: {one} against {other} ms a step{times} ({where}){words}."


def _of_noise(explanation: Explanation) -> list[str]:
    """Say by what measured records are compared and how much of that is noise; nothing of simulated ones."""
    if explanation.condition.backend is not Backend.MEASURED:
        return []
    said = [
        "Compared by the three fastest iterations of each, "
        + (
            f"{_ONE_SPEED}, by the control plan that the same ranks stepped in turn."
            if explanation.by_control
            else "as they are: no common control plan was repeated, so drift is not told apart."
        )
    ]
    said.append(
        "The noise floor is unknown and no order is claimed: no plan of the group was repeated."
        if explanation.noise_pct is None
        else "Noise floor: two single trials of one plan differ by less than "
        f"{significant(explanation.noise_pct, 2)} % in 95 % of cases."
    )
    whole = explanation.all_trials
    if whole is not None:
        noise = {True: "beyond the noise", False: "within the noise", None: "beyond or within the unknown noise"}
        said.append(
            f"Over all their trials ({whole.trials[0]} of {whole.faster}, {whole.trials[1]} of {whole.slower}) "
            f"{whole.slower} is {significant(whole.slower_pct, 2)} % slower, {noise[whole.beyond_noise]} of so many."
        )
    said.append(
        "Measured phases are medians of the slowest rank, of exchanges the time of the rank that waited least; they "
        "need not add up to the step. No bound is proven about measured times."
    )
    return said


def _of_model(explanation: Explanation) -> list[str]:
    """Say how sure the cost model is of the order of simulated records; nothing of measured ones."""
    one_ms, other_ms = explanation.steps_ms
    if explanation.condition.backend is not Backend.SIMULATED or one_ms == other_ms:
        return []
    if explanation.p_faster is None:
        return ["How sure the model is of that is unknown: the records have no draws of its constants."]
    sure = explanation.p_faster >= SURE
    doubt = "" if sure else f", and below {SURE:.0%} the order counts as open (~)".replace("%", " %")
    share = "all" if explanation.p_faster == 1 else f"{math.floor(100.0 * explanation.p_faster)} % of the"
    return [
        f"{explanation.names[0]} is the faster one in {share} draws of the model's constants and form within their "
        f"held-out errors{doubt}."
    ]
