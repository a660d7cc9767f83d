"""Compares two results folders: which numbers and answers are equal, and how far off the others are.

Simulated rows come from the same program on the same numbers, so they should be equal. Measured rows have a ratio, and
are apart where it is beyond the scatter of repeats of one plan within the two runs; that says nothing of why, as
another machine has another speed. The ratio of steps over those of the control plan leaves that speed out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.base.statistics import pooled
from shardbench.records.cell import CellRecord, Scalar, Series, SeriesRow
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.compare.order import Agreement, agreements
from shardbench.report.compare.same_numbers import same
from shardbench.report.groups import Group, groups
from shardbench.report.results import backends, cell_records, load_claims, results_folder, trial_records
from shardbench.report.rows import Condition, Row

IDENTITY = ("suite", "committed_suite", *Condition._fields, "strategy", "where", "outcome", "committed_outcome", "n")
SIMULATED_COLUMNS = (*IDENTITY, "step_ms", "committed_step_ms", "difference_pct", "equal", "reason")
MEASURED_COLUMNS = (
    *IDENTITY, "committed_n", "quantity", "value", "committed_value", "ratio", "ratio_low", "ratio_high",
    "beyond_noise", "reason",
)  # fmt: skip
CELL_COLUMNS = (
    "baseline", "study", "backend", "cells_in_both", "only_this_run", "only_committed", "equal", "difference_pct",
    "column", "key",
)  # fmt: skip
VERDICTS = ("direction", "magnitude")
CLAIM_COLUMNS = (
    "paper", "claim", "backend", "where", "direction", "committed_direction", "magnitude", "committed_magnitude",
    "ours", "committed_ours", "unit", "equal",
)  # fmt: skip
BOTH, ONLY, COMMITTED_ONLY = "both", "this run only", "committed only"
STEP, OVER_CONTROL = "step (ms)", "step over the control's"
SECONDS = "_s"
"""The ending of columns of seconds that our own process took: clocks are never equal, whatever the row's backend."""
_WORDS = float("inf")
"""The difference of what is no number."""

Cells = dict[str, object]
Place = tuple[str, Condition, str]
"""The suite, the condition and the strategy of a row."""
Studies = Mapping[tuple[str, str], Sequence[CellRecord]]
Value = Scalar | Series


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A results folder beside another one, the committed; ``where`` says whether both have a row, or which one."""

    folder: Path
    committed: Path
    simulated: pd.DataFrame
    """A row a strategy under a condition: over the ``n`` trials (seeds and repeats) that both have, whether all steps
    are ``equal`` (to six digits), the largest ``difference_pct`` of a trial's median step, and the ``reason`` where
    not. ``step_ms`` is the median over iterations of all of them."""
    measured: pd.DataFrame
    """A row a strategy, condition and quantity: geometric means over ``n`` and ``committed_n`` trials, their ratio, its
    95 % interval by the noise of repeats, and whether 1 lies outside it (none where nothing was repeated)."""
    cells: pd.DataFrame
    """A row a study: how many cells both have, how many are equal but for seconds that our own process took, the
    largest difference, and where."""
    claims: pd.DataFrame
    """A row a statement: both answers of both, and whether the answers are the same."""
    order: Mapping[str, tuple[Agreement, ...]]
    """A suite's groups: whether measured strategies come in the same order in both."""


def compare_results(folder: Path | str, committed: Path | str) -> Comparison:
    """Compare a results folder with another one, the committed.

    Trials are the same where condition, strategy, seed and repeat are; of the suite of that name, or else of the
    first that has them. Raises BadInput for a folder that is missing, damaged, or the same as the other.
    """
    ours, theirs = results_folder(folder), results_folder(committed)
    if ours.resolve() == theirs.resolve():
        raise BadInput(f"{ours} and {theirs} are one folder; name another one with --with")
    matches = _matches(trial_records(ours), trial_records(theirs))
    simulated = [_simulated(match) for match in matches if match.condition.backend is Backend.SIMULATED]
    of_ranks = [match for match in matches if match.condition.backend is Backend.MEASURED]
    measured = [row for match in of_ranks for row in _measured(match)]
    return Comparison(
        folder=ours,
        committed=theirs,
        simulated=pd.DataFrame(simulated, columns=list(SIMULATED_COLUMNS)),
        measured=pd.DataFrame(measured, columns=list(MEASURED_COLUMNS)),
        cells=pd.DataFrame(_studies(cell_records(ours), cell_records(theirs)), columns=list(CELL_COLUMNS)),
        claims=_claims(load_claims(ours), load_claims(theirs)),
        order=_order(of_ranks),
    )


@dataclass(frozen=True, kw_only=True)
class _RowOfRun:
    """A strategy's row in one of the folders, with its suite and its group."""

    suite: str
    group: Group
    row: Row


@dataclass(frozen=True, kw_only=True)
class _Match:
    """One strategy under one condition, in one folder or in both."""

    condition: Condition
    strategy: str
    ours: _RowOfRun | None
    theirs: _RowOfRun | None

    @property
    def where(self) -> str:
        if self.ours is None:
            return COMMITTED_ONLY
        return ONLY if self.theirs is None else BOTH

    def identity(self) -> Cells:
        """Give the columns that rows of all kinds have."""
        ours, theirs = self.ours, self.theirs
        return {
            "suite": ours and ours.suite,
            "committed_suite": theirs and theirs.suite,
            **{name: getattr(value, "value", value) for name, value in self.condition._asdict().items()},
            "strategy": self.strategy,
            "where": self.where,
            "outcome": ours and ours.row.worst.outcome.value,
            "committed_outcome": theirs and theirs.row.worst.outcome.value,
            "n": len(ours.row.records) if ours else 0,
        }

    @property
    def other_outcome(self) -> str:
        """Say so where both have trials that ended in unlike ways; empty elsewhere."""
        if self.ours is None or self.theirs is None:
            return ""
        return "" if self.ours.row.worst.outcome is self.theirs.row.worst.outcome else "another outcome"

    @property
    def both_ok(self) -> tuple[_RowOfRun, _RowOfRun] | None:
        """Give both rows where all trials of both ended well."""
        if self.ours is None or self.theirs is None or not (self.ours.row.ok and self.theirs.row.ok):
            return None
        return self.ours, self.theirs


def _other_version(ours: Row, theirs: Row) -> str:
    """Say why the numbers of two rows are of unlike things; empty where they are not."""
    a, b = ours.records[-1].spec, theirs.records[-1].spec
    if a.workload_fingerprint != b.workload_fingerprint:
        return "another version of the workload"
    return "another machine file" if a.machine_hash != b.machine_hash else ""


def _matches(ours: Mapping[str, list[Record]], theirs: Mapping[str, list[Record]]) -> list[_Match]:
    """Match the rows of our folder, in its order, and then list what only the committed one has."""
    mine, committed = _rows(ours), _rows(theirs)
    first = {place[1:]: place for place in reversed(committed)}
    # The suite of that name, or else the first that has the row.
    places = {place: place if place in committed else first.get(place[1:]) for place in mine}
    pairs: list[tuple[Place, _RowOfRun | None, _RowOfRun | None]]
    pairs = [(place, mine[place], committed[other] if other else None) for place, other in places.items()]
    used_places = set(places.values())
    pairs += [(place, None, row) for place, row in committed.items() if place not in used_places]
    return [
        _Match(condition=condition, strategy=strategy, ours=row, theirs=other_row)
        for (_, condition, strategy), row, other_row in pairs
    ]


def _rows(suites: Mapping[str, list[Record]]) -> dict[Place, _RowOfRun]:
    return {
        (suite, group.condition, row.strategy): _RowOfRun(suite=suite, group=group, row=row)
        for suite, records in suites.items()
        for group in groups(records)
        for row in group.rows
    }


def _simulated(match: _Match) -> Cells:
    cells, rows = match.identity(), match.both_ok
    if rows is None:
        equal = not match.other_outcome if match.where == BOTH else None
        return cells | {"equal": equal, "reason": match.other_outcome}
    ours, theirs = (one.row for one in rows)
    committed = {(record.spec.seed, record.spec.repeat): record for record in theirs.records}
    trials = [(r, committed[key]) for r in ours.records if (key := (r.spec.seed, r.spec.repeat)) in committed]
    steps = [(a.timing.step_ms, b.timing.step_ms) for a, b in trials if a.timing and b.timing]
    if not steps:
        return cells | {"n": 0, "equal": False, "reason": "no seed in common"}
    differences_pct = [100.0 * (float(np.median(a)) / float(np.median(b)) - 1.0) for a, b in steps]
    equal = all(same(a, b) for a, b in steps)
    step_ms, committed_ms = (float(np.median(np.concatenate(of_run))) for of_run in zip(*steps))
    return cells | {
        "n": len(steps),
        "step_ms": step_ms,
        "committed_step_ms": committed_ms,
        "difference_pct": 0.0 if equal else max(differences_pct, key=abs),
        "equal": equal,
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


def _measured(match: _Match) -> list[Cells]:
    committed_n = len(match.theirs.row.records) if match.theirs else 0
    cells = match.identity() | {"committed_n": committed_n, "quantity": STEP}
    if match.both_ok is None:
        return [cells | {"reason": match.other_outcome}]
    ours, theirs = match.both_ok
    if not (ours.group.compared and theirs.group.compared):
        return [cells | {"reason": "more ranks than cores"}]
    rows = [cells | _ratio(ours, theirs, STEP)]
    if ours.group.control is not None and ours.group.control == theirs.group.control:
        rows.append(cells | _ratio(ours, theirs, OVER_CONTROL))
    return rows


def _ratio(ours: _RowOfRun, theirs: _RowOfRun, quantity: str) -> Cells:
    """Give the ratio of two rows that are ok, and its interval by the noise of repeats of both groups."""
    mine, other = (one.group.estimate(one.row).value / _unit_ms(one.group, quantity) for one in (ours, theirs))
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
        "beyond_noise": bool(abs(np.log(ratio)) > reach),
    }


def _unit_ms(group: Group, quantity: str) -> float:
    """Give what steps are counted in: milliseconds, or the mean step of the group's control."""
    return 1.0 if quantity == STEP else group.control_ms


def _order(matches: Iterable[_Match]) -> dict[str, tuple[Agreement, ...]]:
    both: dict[str, dict[Condition, tuple[Group, Group]]] = {}
    for match in matches:
        if match.ours is not None and match.theirs is not None and match.ours.group.compared:
            suite = both.setdefault(match.ours.suite, {})
            suite.setdefault(match.condition, (match.ours.group, match.theirs.group))
    return {suite: tuple(agreements(list(pairs.values()))) for suite, pairs in both.items()}


def _studies(ours: Studies, theirs: Studies) -> list[Cells]:
    """Give a row a study of either folder.

    A cell is equal where all its rows are, but for seconds; ``difference_pct`` is the largest of any number, in
    ``column`` of the cell ``key``, and none where what differs is no number, or was zero.
    """
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        mine, committed = ({cell.key: cell for cell in side.get(name, ())} for side in (ours, theirs))
        both = [key for key in mine if key in committed]
        differences = {key: _cell_difference(mine[key], committed[key]) for key in both}
        worst = max(differences, key=lambda key: differences[key][0], default=None)
        percent, column = differences[worst] if worst is not None else (None, "")
        rows.append({
            "baseline": name[0],
            "study": name[1],
            "backend": backends([*mine.values(), *committed.values()]),
            "cells_in_both": len(both),
            "only_this_run": len(mine) - len(both),
            "only_committed": len(committed) - len(both),
            "equal": sum(not column for _, column in differences.values()),
            "difference_pct": None if percent == _WORDS else percent,
            "column": column,
            "key": worst if column else "",
        })  # fmt: skip
    return rows


def _cell_difference(ours: CellRecord, theirs: CellRecord) -> tuple[float, str]:
    """Give the largest difference of two cells in percent and its column; no column where they are equal."""
    if len(ours.rows) != len(theirs.rows):
        return _WORDS, "number of rows"
    largest = (0.0, "")
    for a, b in zip(ours.rows, theirs.rows):
        for column in dict.fromkeys([*a, *b]):
            if not column.endswith(SECONDS):
                largest = max(largest, _of_column(column, a, b), key=lambda pair: pair[0])
    return largest


def _of_column(column: str, a: SeriesRow, b: SeriesRow) -> tuple[float, str]:
    if column not in a or column not in b:
        return _WORDS, column
    x, y = a[column], b[column]
    series = isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y)
    pairs: Iterable[tuple[Value, Value]] = zip(x, y) if series else [(x, y)]  # type: ignore[arg-type]
    percent = max((_percent(one, other) for one, other in pairs), default=0.0)
    return (percent, column) if percent else (0.0, "")


def _percent(x: Value, y: Value) -> float:
    if x == y:
        return 0.0
    if isinstance(x, int | float) and isinstance(y, int | float) and not isinstance(x, bool) and y:
        return 0.0 if same([x], [y]) else 100.0 * abs(x / y - 1.0)
    return _WORDS


def _claims(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    keys = ["paper", "claim"]
    columns = [*keys, "backend", *VERDICTS, "ours", "unit"]
    both = ours[columns].merge(
        theirs[columns], on=keys, how="outer", suffixes=("", "_committed"), sort=False, indicator="where"
    )
    committed = [f"{name}_committed" for name in VERDICTS]
    alike = (both[list(VERDICTS)].to_numpy() == both[committed].to_numpy()).all(axis=1)
    names = {"left_only": ONLY, "right_only": COMMITTED_ONLY, "both": BOTH}
    where = both["where"].astype(str).map(names)
    table = both.assign(
        where=where,
        backend=both["backend"].where(where != COMMITTED_ONLY, both["backend_committed"]),
        unit=both["unit"].where(where != COMMITTED_ONLY, both["unit_committed"]),
        equal=pd.Series(alike, index=both.index, dtype="boolean").where(where == BOTH),
    ).rename(columns={f"{name}_committed": f"committed_{name}" for name in (*VERDICTS, "ours")})
    return table[list(CLAIM_COLUMNS)]
