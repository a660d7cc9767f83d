"""Compares two results folders in one table: which numbers and answers are equal, and how far off the others are.

Simulated rows come from the same program on the same numbers, so they should be equal. Measured rows have a ratio, and
are apart where it is beyond the scatter of repeats of one plan within the two runs; that says nothing of why, as
another machine has another speed. The ratio of steps over those of the control plan leaves that speed out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.base.statistics import pooled
from shardbench.records.cell import CellRecord, Scalar, Series, SeriesRow, cell_text
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.compare.order import Agreement, agreements, text_line
from shardbench.report.groups import Group, groups
from shardbench.report.results import backends, cell_records, load_claims, results_folder, trial_records
from shardbench.report.rows import Condition, Row
from shardbench.report.standing import same
from shardbench.report.tables.layout import lay_out
from shardbench.report.tables.text import Columns, readable_cell, significant

KINDS = {
    "simulated": "equal",
    "measured": "within the noise of repeats",
    "cells": "equal, but for seconds that the process took",
    "claims": "with the same answers",
}
"""Kinds of rows, and what those are of which ``same`` is true."""
COLUMNS = (
    "kind", "suite", "committed_suite", "name", *Condition._fields, "where", "same", "quantity", "value",
    "committed_value", "ratio", "ratio_low", "ratio_high", "n", "committed_n", "reason",
)  # fmt: skip
BOTH, ONLY, COMMITTED_ONLY = "both", "this run only", "committed only"
STEP, OVER_CONTROL = "step (ms)", "step over the control's"
ANSWERS = ("direction", "magnitude")
SECONDS = "_s"
"""The ending of columns of seconds that our own process took: clocks are never equal, whatever the row's backend."""
LISTED = 20
"""The number of rows of a kind that are printed one by one; --json has all."""
_FARTHEST = float("inf")
"""The distance of what is no number."""

Cells = dict[str, object]
Place = tuple[str, Condition, str]
"""The suite, the condition and the strategy of a row."""
Studies = Mapping[tuple[str, str], Sequence[CellRecord]]
Value = Scalar | Series


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A results folder beside another one, the committed."""

    folder: Path
    committed: Path
    differences: pd.DataFrame
    """A row a thing that either folder has; ``where`` says whether both have it, or which one, and ``same`` whether it
    is the same in both, None where that is not known.

    ``simulated`` and ``measured``: a strategy (``name``) under a condition, over the ``n`` and ``committed_n`` trials
    (seeds and repeats) that are compared. Simulated ones are the same where all steps are, to six digits; ``ratio`` is
    that of the trial that is farthest off, and ``reason`` says why. Measured ones have the ratio of geometric means
    with its 95 % interval by the noise of repeats, and are the same where 1 lies in it; they have a second row where
    both have one control. ``cells``: a cell of a study of a paper (``suite``), with the column that is farthest off;
    ``claims``: a statement of a paper, with both answers."""
    order: Mapping[str, tuple[Agreement, ...]]
    """A suite's groups: whether measured strategies come in the same order in both."""

    def of(self, kind: str) -> pd.DataFrame:
        """Return the rows of a kind."""
        return self.differences[self.differences["kind"] == kind]


def compare_results(folder: Path | str, committed: Path | str) -> Comparison:
    """Compare a results folder with another one, the committed.

    Trials are the same where condition, strategy, seed and repeat are; of the suite of that name, or else of the
    first that has them. Raises BadInput for a folder that is missing, damaged, or the same as the other.
    """
    ours, theirs = results_folder(folder), results_folder(committed)
    if ours.resolve() == theirs.resolve():
        raise BadInput(f"{ours} and {theirs} are one folder; name another one with --with")
    pairs = _pairs(trial_records(ours), trial_records(theirs))
    rows = [row for pair in pairs for row in _of_trials(*pair)]
    rows += _of_cells(cell_records(ours), cell_records(theirs))
    rows += _of_claims(load_claims(ours), load_claims(theirs))
    order = list(KINDS)
    table = pd.DataFrame(sorted(rows, key=lambda row: order.index(str(row["kind"]))), columns=list(COLUMNS))
    return Comparison(folder=ours, committed=theirs, differences=table, order=_order(pairs))


class _Strategy(NamedTuple):
    """A strategy's row in one of the folders, with its suite and its group."""

    suite: str
    group: Group
    row: Row


Pair = tuple[_Strategy | None, _Strategy | None]


def _where(ours: object, theirs: object) -> str:
    return COMMITTED_ONLY if ours is None else ONLY if theirs is None else BOTH


def _pairs(ours: Mapping[str, list[Record]], theirs: Mapping[str, list[Record]]) -> list[Pair]:
    """Pair the rows of our folder, in its order, and then list what only the committed one has."""
    mine, committed = _rows(ours), _rows(theirs)
    first = {place[1:]: place for place in reversed(committed)}
    # The suite of that name, or else the first that has the row.
    places = {place: place if place in committed else first.get(place[1:]) for place in mine}
    pairs: list[Pair] = [(mine[place], committed[other] if other else None) for place, other in places.items()]
    used_places = set(places.values())
    return [*pairs, *((None, row) for place, row in committed.items() if place not in used_places)]


def _rows(suites: Mapping[str, list[Record]]) -> dict[Place, _Strategy]:
    return {
        (suite, group.condition, row.strategy): _Strategy(suite, group, row)
        for suite, records in suites.items()
        for group in groups(records)
        for row in group.rows
    }


def _of_trials(ours: _Strategy | None, theirs: _Strategy | None) -> Iterator[Cells]:
    one = ours or theirs
    if one is None:
        return
    condition = one.group.condition
    cells: Cells = {
        "kind": condition.backend.value,
        "suite": ours and ours.suite,
        "committed_suite": theirs and theirs.suite,
        "name": one.row.strategy,
        **{name: getattr(value, "value", value) for name, value in condition._asdict().items()},
        "where": _where(ours, theirs),
        "quantity": STEP,
        "n": len(ours.row.records) if ours else 0,
        "committed_n": len(theirs.row.records) if theirs else 0,
        "reason": "",
    }
    if ours is None or theirs is None:
        yield cells
        return
    mine, other = ours.row.worst.outcome, theirs.row.worst.outcome
    if mine is not other or not ours.row.ok:
        reason = "" if mine is other else "another outcome"
        yield cells | {"same": mine is other, "value": mine.value, "committed_value": other.value, "reason": reason}
    elif condition.backend is Backend.SIMULATED:
        yield cells | _simulated(ours.row, theirs.row)
    elif not (ours.group.compared and theirs.group.compared):
        yield cells | {"reason": "more ranks than cores"}
    else:
        yield cells | _measured(ours, theirs, STEP)
        if ours.group.control is not None and ours.group.control == theirs.group.control:
            yield cells | _measured(ours, theirs, OVER_CONTROL)


def _other_version(ours: Row, theirs: Row) -> str:
    """Say why the numbers of two rows are of unlike things; empty where they are not."""
    a, b = ours.records[-1].spec, theirs.records[-1].spec
    if a.workload_fingerprint != b.workload_fingerprint:
        return "another version of the workload"
    return "another machine file" if a.machine_hash != b.machine_hash else ""


def _simulated(ours: Row, theirs: Row) -> Cells:
    committed = {(record.spec.seed, record.spec.repeat): record for record in theirs.records}
    trials = [(r, committed[key]) for r in ours.records if (key := (r.spec.seed, r.spec.repeat)) in committed]
    steps = [(a.timing.step_ms, b.timing.step_ms) for a, b in trials if a.timing and b.timing]
    if not steps:
        return {"n": 0, "same": False, "reason": "no seed in common"}
    equal = all(same(a, b) for a, b in steps)
    ratios = [float(np.median(a)) / float(np.median(b)) for a, b in steps]
    step_ms, committed_ms = (float(np.median(np.concatenate(of_run))) for of_run in zip(*steps))
    return {
        "n": len(steps),
        "committed_n": len(steps),
        "value": step_ms,
        "committed_value": committed_ms,
        "ratio": 1.0 if equal else max(ratios, key=_distance),
        "same": equal,
        "reason": "" if equal else _other_version(ours, theirs) or _reason(trials),
    }


def _reason(trials: Iterable[tuple[Record, Record]]) -> str:
    """Say why trials of one workload and machine differ."""
    for ours, theirs in trials:
        if ours.planned and theirs.planned and ours.planned.plan_hash != theirs.planned.plan_hash:
            return "another plan"
        if ours.spec.iterations != theirs.spec.iterations:
            return "another number of batches"
    return "the same plan, other charges"


def _measured(ours: _Strategy, theirs: _Strategy, quantity: str) -> Cells:
    """Give the ratio of two rows that are ok, and its interval by the noise of repeats of both groups."""
    # Steps are counted in milliseconds, or in the mean step of the group's control.
    units_ms = [1.0 if quantity == STEP else one.group.control_ms for one in (ours, theirs)]
    mine, other = (one.group.estimate(one.row).value / unit for one, unit in zip((ours, theirs), units_ms))
    reason = _other_version(ours.row, theirs.row)
    cells: Cells = {"quantity": quantity, "value": mine, "committed_value": other, "reason": reason}
    if ours.row.records[-1].spec.workload_fingerprint != theirs.row.records[-1].spec.workload_fingerprint:
        return cells
    noise = pooled([one.group.noise for one in (ours, theirs) if one.group.noise is not None])
    ratio = mine / other
    if noise is None:
        return cells | {"ratio": ratio}
    reach = noise.least_log(len(ours.row.records), len(theirs.row.records))
    return cells | {
        "ratio": ratio,
        "ratio_low": ratio * float(np.exp(-reach)),
        "ratio_high": ratio * float(np.exp(reach)),
        "same": bool(abs(np.log(ratio)) <= reach),
    }


def _order(pairs: Iterable[Pair]) -> dict[str, tuple[Agreement, ...]]:
    both: dict[str, dict[Condition, tuple[Group, Group]]] = {}
    for ours, theirs in pairs:
        if ours and theirs and ours.group.compared and ours.group.condition.backend is Backend.MEASURED:
            suite = both.setdefault(ours.suite, {})
            suite.setdefault(ours.group.condition, (ours.group, theirs.group))
    return {suite: tuple(agreements(list(by_condition.values()))) for suite, by_condition in both.items()}


def _of_cells(ours: Studies, theirs: Studies) -> Iterator[Cells]:
    for owner, study in dict.fromkeys([*ours, *theirs]):
        mine, committed = ({cell.key: cell for cell in side.get((owner, study), ())} for side in (ours, theirs))
        for key in dict.fromkeys([*mine, *committed]):
            a, b = mine.get(key), committed.get(key)
            one = a or b
            cells: Cells = {"kind": "cells", "suite": owner, "committed_suite": owner, "where": _where(a, b)}
            if one is not None:
                cells |= {"name": cell_text(study, one.cell), "backend": backends([one]), "quantity": ""}
            yield cells | (_cell(a, b) if a and b else {})


def _cell(ours: CellRecord, theirs: CellRecord) -> Cells:
    """Compare two records of a cell, all rows but for seconds; the column that is farthest off stands for it."""
    if len(ours.rows) != len(theirs.rows):
        rows = {"value": len(ours.rows), "committed_value": len(theirs.rows)}
        return {"same": False, "quantity": "number of rows", **rows}
    farthest, cells = 0.0, Cells(same=True)
    for a, b in zip(ours.rows, theirs.rows):
        for column in (name for name in dict.fromkeys([*a, *b]) if not name.endswith(SECONDS)):
            for x, y in _values(column, a, b):
                ratio = _ratio(x, y)
                distance = _FARTHEST if ratio is None else _distance(ratio)
                if distance > farthest:
                    farthest = distance
                    cells = {"same": False, "quantity": column, "value": x, "committed_value": y, "ratio": ratio}
    return cells


def _values(column: str, a: SeriesRow, b: SeriesRow) -> Iterable[tuple[Value, Value]]:
    """Return the values of a column in both rows, one by one where they are as many."""
    x, y = a.get(column), b.get(column)
    alike = isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y)
    return zip(x, y) if alike else [(x, y)]  # type: ignore[arg-type]


def _ratio(x: Value, y: Value) -> float | None:
    """Return x over y, 1 where they are the same; None of what is no number, or not over zero."""
    if x == y:
        return 1.0
    if isinstance(x, int | float) and isinstance(y, int | float) and not isinstance(x, bool) and y:
        return 1.0 if same([x], [y]) else x / y
    return None


def _distance(ratio: float) -> float:
    return abs(ratio - 1.0)


def _of_claims(ours: pd.DataFrame, theirs: pd.DataFrame) -> Iterator[Cells]:
    mine, committed = (
        {(row["paper"], row["claim"]): row for row in frame.to_dict("records")} for frame in (ours, theirs)
    )
    for paper, claim in dict.fromkeys([*mine, *committed]):
        a, b = mine.get((paper, claim)), committed.get((paper, claim))
        cells: Cells = {"kind": "claims", "suite": paper, "committed_suite": paper, "name": claim}
        cells |= {"backend": (a or b or {})["backend"], "where": _where(a, b), "quantity": "answers"}
        if a is not None and b is not None:
            alike = all(a[answer] == b[answer] for answer in ANSWERS)
            cells |= {"same": alike, "value": _answers(a), "committed_value": _answers(b)}
        yield cells


def _answers(row: Mapping[Any, Any]) -> str:
    number = "" if pd.isna(row["ours"]) else f" ({significant(float(row['ours']))} {row['unit']})"
    return ", ".join(f"{answer} {row[answer]}" for answer in ANSWERS) + number


def text_lines(comparison: Comparison) -> list[str]:
    """Say of each kind how many are the same and how many are not, then which, the farthest off first."""
    lines = [f"{comparison.folder} against {comparison.committed}"]
    for kind in KINDS:
        rows = comparison.of(kind)
        # The measured steps of two machines differ all alike: each quantity is a matter of its own.
        parts = rows.groupby("quantity", sort=False) if kind == "measured" else [("", rows)] if len(rows) else []
        for quantity, part in parts:
            lines += _kind_lines(kind, str(quantity), part)
    lines += [text_line(one) for agreements in comparison.order.values() for one in agreements]
    return lines if len(lines) > 1 else [*lines, "nothing in either to compare"]


def _kind_lines(kind: str, quantity: str, rows: pd.DataFrame) -> list[str]:
    where, both = rows["where"].value_counts(), rows[rows["where"] == BOTH]
    known = both[both["same"].notna()]
    is_same = known["same"].astype(bool)
    said = [f"{is_same.sum()} of {len(both)} {KINDS[kind]}" if len(both) else "none in both"]
    if len(known) < len(both):
        said.append(f"of {len(both) - len(known)} that is unknown")
    ratios = both["ratio"].dropna()
    if kind == "measured" and len(ratios):
        said.append(f"{significant(ratios.min())} to {significant(ratios.max())} times the committed")
    said.append(f"{where.get(ONLY, 0)} {ONLY}, {where.get(COMMITTED_ONLY, 0)} {COMMITTED_ONLY}")
    others = known[~is_same]
    others = others.iloc[np.argsort(-np.abs(others["ratio"].astype(float).fillna(_FARTHEST) - 1.0), kind="stable")]
    return [f"{kind}{quantity and f', {quantity}'}: {'; '.join(said)}", *_table(others)]


def _table(rows: pd.DataFrame) -> list[str]:
    """Return the first rows as an aligned table, and say how many more there are."""
    if not len(rows):
        return []
    table = lay_out(
        Columns(
            headers=("", "quantity", "this run", "committed", "ratio", "95 % interval", "n", "why"),
            rows=tuple(map(_text, rows.head(LISTED).to_dict("records"))),
            numeric=(False, False, True, True, True, True, True, False),
        )
    )
    more = [f"and {len(rows) - LISTED} more (--json has all)"] if len(rows) > LISTED else []
    return [f"  {line}" for line in (*table.heads, *table.rows, *more)]


def _text(row: Mapping[Any, Any]) -> tuple[str, ...]:
    place = f"{row['workload']} on {row['machine']}," if isinstance(row["workload"], str) else str(row["suite"])
    low, high = (readable_cell("", row[f"ratio_{end}"]) for end in ("low", "high"))
    values = (readable_cell("", row[name]) for name in ("value", "committed_value", "ratio"))
    counts = " and ".join(filter(None, (readable_cell("", row[name]) for name in ("n", "committed_n"))))
    reason = readable_cell("", row["reason"])
    return (f"{place} {row['name']}", str(row["quantity"]), *values, low and f"{low} to {high}", counts, reason)
