"""Two results folders, a run of one's own and the committed archive, say: what is equal, how far the rest is off.

Simulated rows are the same program on the same numbers, so that they are to be equal. Measured ones have a ratio, and
are apart where it is beyond what repeats of one plan within the two runs scatter; that says nothing of why, as another
machine is another speed. The ratio of steps over the control plan's leaves the machine's speed out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.base.statistics import log_mean, pooled_noise
from shardbench.records.record import Record
from shardbench.records.trial import Backend
from shardbench.report.compare.cells import CELL_COLUMNS, compare_cells
from shardbench.report.compare.same_numbers import same
from shardbench.report.compare.second_run import Agreement, agreement
from shardbench.report.groups import Condition, Group, Row, groups
from shardbench.report.results import cell_records, load_claims, results_folder, trial_records

IDENTITY = ("suite", "committed_suite", *Condition._fields, "strategy", "where", "outcome", "committed_outcome", "n")
SIMULATED_COLUMNS = (*IDENTITY, "step_ms", "committed_step_ms", "difference_pct", "equal", "reason")
MEASURED_COLUMNS = (
    *IDENTITY, "committed_n", "quantity", "value", "committed_value", "ratio", "ratio_low", "ratio_high",
    "beyond_noise", "reason",
)  # fmt: skip
VERDICTS = ("direction", "magnitude")
CLAIM_COLUMNS = (
    "paper", "claim", "backend", "where", "direction", "committed_direction", "magnitude", "committed_magnitude",
    "ours", "committed_ours", "unit", "equal",
)  # fmt: skip
BOTH, ONLY, COMMITTED_ONLY = "both", "this run only", "committed only"
STEP, OVER_CONTROL = "step (ms)", "step over the control's"

Cells = dict[str, object]
Place = tuple[str, Condition, str]
"""Suite, condition, strategy."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A folder held against another one, the committed; a row has ``where`` it is: in both, or in which one only."""

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
    """By suite: whether measured strategies come in the same order, group by group."""


def compare_results(folder: Path | str, committed: Path | str) -> Comparison:
    """Holds a results folder against another one, the committed.

    Trials are the same where condition, strategy, seed and repeat are; of the suite of that name, or else of the
    first that has them. Raises BadInput for a folder that is missing, damaged, or the same as the other.
    """
    ours, theirs = results_folder(folder), results_folder(committed)
    if ours.resolve() == theirs.resolve():
        raise BadInput(f"{ours} and {theirs} are one folder; name another one with --with")
    pairs = _paired(trial_records(ours), trial_records(theirs))
    measured = [pair for pair in pairs if pair.condition.backend is Backend.MEASURED]
    return Comparison(
        folder=ours,
        committed=theirs,
        simulated=pd.DataFrame(
            [_simulated(pair) for pair in pairs if pair.condition.backend is Backend.SIMULATED],
            columns=list(SIMULATED_COLUMNS),
        ),
        measured=pd.DataFrame([row for pair in measured for row in _measured(pair)], columns=list(MEASURED_COLUMNS)),
        cells=pd.DataFrame(compare_cells(cell_records(ours), cell_records(theirs)), columns=list(CELL_COLUMNS)),
        claims=_claims(load_claims(ours), load_claims(theirs)),
        order=_order(measured),
    )


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """One strategy under one condition, in one folder or in both."""

    condition: Condition
    strategy: str
    suite: str | None
    committed_suite: str | None
    group: Group | None
    row: Row | None
    committed_group: Group | None
    committed_row: Row | None

    @property
    def where(self) -> str:
        if self.row is None:
            return COMMITTED_ONLY
        return ONLY if self.committed_row is None else BOTH

    @property
    def other_version(self) -> str:
        """Why its numbers are of unlike things."""
        if self.row is None or self.committed_row is None:
            return ""
        a, b = self.row.records[-1].spec, self.committed_row.records[-1].spec
        if a.workload_fingerprint != b.workload_fingerprint:
            return "another version of the workload"
        return "another machine file" if a.machine_hash != b.machine_hash else ""

    def identity(self) -> Cells:
        """The columns that all kinds of rows have."""
        return {
            "suite": self.suite,
            "committed_suite": self.committed_suite,
            **{name: getattr(value, "value", value) for name, value in self.condition._asdict().items()},
            "strategy": self.strategy,
            "where": self.where,
            "outcome": None if self.row is None else self.row.worst.outcome.value,
            "committed_outcome": None if self.committed_row is None else self.committed_row.worst.outcome.value,
            "n": 0 if self.row is None else len(self.row.records),
        }

    @property
    def both_ok(self) -> tuple[Row, Row] | None:
        """Both rows, where all trials of both ended well."""
        if self.row is None or self.committed_row is None or not (self.row.ok and self.committed_row.ok):
            return None
        return self.row, self.committed_row


def _paired(ours: Mapping[str, list[Record]], theirs: Mapping[str, list[Record]]) -> list[_Pair]:
    """Those of our folder first, in its order, then what only the committed one has."""
    committed = _rows(theirs)
    places: dict[tuple[Condition, str], list[Place]] = {}
    for place in committed:
        places.setdefault(place[1:], []).append(place)
    pairs: list[_Pair] = []
    taken: set[Place] = set()
    for (suite, condition, strategy), (group, row) in _rows(ours).items():
        found = places.get((condition, strategy), [])
        match = next((place for place in found if place[0] == suite), found[0] if found else None)
        taken |= {match} if match is not None else set()
        other = committed[match] if match is not None else (None, None)
        pairs.append(
            _Pair(
                condition=condition, strategy=strategy, suite=suite, committed_suite=match[0] if match else None,
                group=group, row=row, committed_group=other[0], committed_row=other[1],
            )
        )  # fmt: skip
    for place, (group, row) in committed.items():
        if place not in taken:
            suite, condition, strategy = place
            pairs.append(
                _Pair(
                    condition=condition, strategy=strategy, suite=None, committed_suite=suite,
                    group=None, row=None, committed_group=group, committed_row=row,
                )
            )  # fmt: skip
    return pairs


def _rows(suites: Mapping[str, list[Record]]) -> dict[Place, tuple[Group, Row]]:
    return {
        (suite, group.condition, row.strategy): (group, row)
        for suite, records in suites.items()
        for group in groups(records)
        for row in group.rows
    }


def _simulated(pair: _Pair) -> Cells:
    cells, rows = pair.identity(), pair.both_ok
    if rows is None:
        alike = pair.where == BOTH and cells["outcome"] == cells["committed_outcome"]
        reason = "" if alike or pair.where != BOTH else "another outcome"
        return cells | {"equal": alike if pair.where == BOTH else None, "reason": reason}
    trials = _matched(*rows)
    steps = [(a.timing.step_ms, b.timing.step_ms) for a, b in trials if a.timing and b.timing]
    if not steps:
        return cells | {"n": 0, "equal": False, "reason": "no seed in common"}
    off = [100.0 * (float(np.median(a)) / float(np.median(b)) - 1.0) for a, b in steps]
    equal = all(same(a, b) for a, b in steps)
    mine, theirs = (float(np.median(np.concatenate([pair[side] for pair in steps]))) for side in (0, 1))
    return cells | {
        "n": len(steps),
        "step_ms": mine,
        "committed_step_ms": theirs,
        "difference_pct": 0.0 if equal else max(off, key=abs),
        "equal": equal,
        "reason": "" if equal else pair.other_version or _why(trials),
    }


def _matched(row: Row, other: Row) -> list[tuple[Record, Record]]:
    theirs = {(record.spec.seed, record.spec.repeat): record for record in other.records}
    return [(r, theirs[r.spec.seed, r.spec.repeat]) for r in row.records if (r.spec.seed, r.spec.repeat) in theirs]


def _why(trials: Iterable[tuple[Record, Record]]) -> str:
    """Why trials of one workload and machine differ."""
    for ours, theirs in trials:
        if (
            ours.planned is not None
            and theirs.planned is not None
            and ours.planned.plan_hash != theirs.planned.plan_hash
        ):
            return "another plan"
        if ours.spec.iterations != theirs.spec.iterations:
            return "another number of batches"
    return "the same plan, other charges"


def _measured(pair: _Pair) -> list[Cells]:
    cells, rows = pair.identity(), pair.both_ok
    cells |= {"committed_n": 0 if pair.committed_row is None else len(pair.committed_row.records), "quantity": STEP}
    if rows is None or pair.group is None or pair.committed_group is None:
        failed = pair.where == BOTH and cells["outcome"] != cells["committed_outcome"]
        return [cells | {"reason": "another outcome" if failed else ""}]
    made = [cells | _ratio(pair, STEP, lambda row: row.medians_ms)]
    control = pair.group.control
    if control is not None and control == pair.committed_group.control:
        made.append(cells | _ratio(pair, OVER_CONTROL, lambda row: row.ratios))
    return made


def _ratio(pair: _Pair, quantity: str, numbers: Callable[[Row], tuple[float, ...]]) -> Cells:
    """The ratio of two rows that are ok, and its interval by the noise of repeats of both groups."""
    assert pair.row and pair.committed_row and pair.group and pair.committed_group  # noqa: S101 - the caller looked
    mine, theirs = (log_mean(numbers(row)) for row in (pair.row, pair.committed_row))
    cells: Cells = {"quantity": quantity, "value": mine.value, "committed_value": theirs.value}
    if pair.row.records[-1].spec.workload_fingerprint != pair.committed_row.records[-1].spec.workload_fingerprint:
        return cells | {"reason": pair.other_version}
    noise = pooled_noise(
        numbers(Row(strategy=row.strategy, records=tuple(trials)))
        for group in (pair.group, pair.committed_group)
        for row in group.ok_rows
        for trials in row.same_plan.values()
    )
    ratio = mine.value / theirs.value
    cells |= {"ratio": ratio, "reason": pair.other_version}
    if noise is None:
        return cells
    reach = noise.least_log(mine.n, theirs.n)
    return cells | {
        "ratio_low": ratio * float(np.exp(-reach)),
        "ratio_high": ratio * float(np.exp(reach)),
        "beyond_noise": bool(abs(np.log(ratio)) > reach),
    }


def _order(pairs: Iterable[_Pair]) -> dict[str, tuple[Agreement, ...]]:
    mine: dict[str, dict[Condition, Group]] = {}
    theirs: dict[str, dict[Condition, Group]] = {}
    for pair in pairs:
        if pair.suite is not None and pair.group is not None and pair.committed_group is not None:
            mine.setdefault(pair.suite, {}).setdefault(pair.condition, pair.group)
            theirs.setdefault(pair.suite, {}).setdefault(pair.condition, pair.committed_group)
    return {suite: tuple(agreement(_trials(mine[suite]), _trials(theirs[suite]))) for suite in mine}


def _trials(found: Mapping[Condition, Group]) -> list[Record]:
    return [record for group in found.values() for row in group.rows for record in row.records]


def _claims(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    keys = ["paper", "claim"]
    wanted = [*keys, "backend", *VERDICTS, "ours", "unit"]
    both = ours[wanted].merge(
        theirs[wanted], on=keys, how="outer", suffixes=("", "_committed"), sort=False, indicator="where"
    )
    committed = [f"{name}_committed" for name in VERDICTS]
    alike = (both[list(VERDICTS)].to_numpy() == both[committed].to_numpy()).all(axis=1)
    names = {"left_only": ONLY, "right_only": COMMITTED_ONLY, "both": BOTH}
    where = both["where"].astype(str).map(names)
    found = both.assign(
        where=where,
        backend=both["backend"].where(where != COMMITTED_ONLY, both["backend_committed"]),
        unit=both["unit"].where(where != COMMITTED_ONLY, both["unit_committed"]),
        equal=pd.Series(alike, index=both.index, dtype="boolean").where(where == BOTH),
    ).rename(columns={f"{name}_committed": f"committed_{name}" for name in (*VERDICTS, "ours")})
    return found[list(CLAIM_COLUMNS)]
