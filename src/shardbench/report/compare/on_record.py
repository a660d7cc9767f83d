"""Trials of other strategies that are on record in another folder, such as the committed one, beside those of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shardbench.cost.uncertainty import sure
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend
from shardbench.report.groups import Group
from shardbench.report.rows import Condition, Row, current
from shardbench.report.standing import SAME, same

_SHORT = 10
"""Digits of a commit in print."""


@dataclass(frozen=True, kw_only=True)
class OnRecord:
    """Simulated trials on record that a run's trials are compared with."""

    folder: Path
    records: tuple[Record, ...] = ()
    moved: int = 0
    """Trials of the same conditions that are not compared: of another workload, machine or version."""

    @property
    def lines(self) -> list[str]:
        """Say with what a run was compared, and with what it was not."""
        lines = []
        if self.records:
            hashes = {one.provenance.commit for one in self.records if one.provenance is not None}
            commits = ", ".join(sorted(commit[:_SHORT] for commit in hashes if commit is not None)) or "not stated"
            lines.append(f"compared with {len(self.records)} trials in {self.folder} (commit {commits})")
        if self.moved:
            lines.append(
                f"not compared with {self.moved} trials in {self.folder}: they are of another workload, machine or "
                "version than what is here"
            )
        return lines or [f"nothing to compare with in {self.folder}: it has no simulated trial of what was run"]


def on_record(folder: Path, suite: str, run: Iterable[Record], here: Iterable[Record]) -> OnRecord:
    """Return what a folder has of a suite under the conditions of the simulated trials in ``run``.

    Strategies that are ``here``, in the run's own folder, are left out, and so are trials that another
    version judged. Measured ones never count, since they are of another session.
    """
    simulated = [one for one in run if one.spec.backend is Backend.SIMULATED]
    by_condition: dict[Condition, list[Record]] = {}
    for one in simulated:
        by_condition.setdefault(Condition.of(one), []).append(one)
    own_strategies = {(Condition.of(one), one.spec.strategy) for one in here}
    records = [one for one in current(trial_store(folder, suite).read()) if Condition.of(one) in by_condition]
    others = [one for one in records if (Condition.of(one), one.spec.strategy) not in own_strategies]
    comparable = [one for one in others if one.judged_here and _alike(one, by_condition[Condition.of(one)])]
    return OnRecord(folder=folder, records=tuple(comparable), moved=len(others) - len(comparable))


def _alike(one: Record, run: list[Record]) -> bool:
    """Tell whether a trial on record is of the workload and the machine of all those that ran."""
    versions = {(mine.spec.workload_fingerprint, mine.spec.machine_hash) for mine in run}
    return {(one.spec.workload_fingerprint, one.spec.machine_hash)} == versions


def place(group: Group, strategy: str) -> str:
    """Say which place a strategy has among the competitors of a group, or why it has none."""
    row = next((row for row in group.rows if row.strategy == strategy), None)
    rivals = [other for other in group.rows if other.competes and other is not row]
    why = _no_place(group, row, rivals)
    if row is None or why:
        return f"{strategy}: no rank, {why}"
    if group.condition.backend is Backend.MEASURED:
        places = group.places(row)
        return f"{strategy}: " + (f"rank {places} of {len(rivals) + 1}" if places else "no rank, nothing was repeated")
    own = group.estimate(row).value
    number = 1 + sum(group.estimate(other).value < own * (1.0 - SAME) for other in rivals)
    unsure = sum(not _differ(group, row, other) for other in rivals)
    more = f", not told apart from {unsure} of the others" if unsure else ""
    return f"{strategy}: rank {number} of {len(rivals) + 1}{more}"


def _no_place(group: Group, row: Row | None, rivals: list[Row]) -> str:
    if row is None or not row.ok:
        return f"it ended in {row.worst.outcome}" if row is not None else "it did not run"
    if not group.compared:
        return "its ranks shared cores"
    if not row.competes:
        return "it does not compete"
    if rivals:
        return ""
    measured = group.condition.backend is Backend.MEASURED
    return "no other strategy ran beside it" + (", and steps of other sessions are not compared" if measured else "")


def _differ(group: Group, row: Row, other: Row) -> bool:
    if same([group.estimate(row).value], [group.estimate(other).value]):
        return False
    p_slower = group.p_slower(row, other)
    return p_slower is not None and sure(p_slower)
