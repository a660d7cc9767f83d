"""Records as a page lists them: where each number comes from, by which code, when and on what."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.report.groups import Group
from shardbench.report.tables.text import significant

_COMMIT = 12
_COMMITS = 4


@dataclass(frozen=True, kw_only=True)
class RecordLine:
    """One record in words."""

    strategy: str
    key: str
    seed: int
    repeat: int
    outcome: str
    step: str
    """Median over its iterations, ms; empty where it has none."""
    plan_hash: str
    commit: str
    started: str
    environment: str


def record_rows(group: Group) -> list[RecordLine]:
    """Return all records of a group, by strategy, seed and repeat."""
    return [_record_line(record, row.strategy) for row in group.rows for record in row.records]


def made_by(records: Sequence[BaseRecord]) -> list[str]:
    """Return the commits and the days of the records, one line each."""
    provenances = [record.provenance for record in records if record.provenance is not None]
    lines = []
    if provenances:
        days = sorted(f"{one.started:%Y-%m-%d}" for one in provenances)
        lines.append(f"Recorded {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else ""))
        commits = Counter(_commit(one.commit, dirty=one.dirty) for one in provenances).most_common()
        names = ", ".join(f"{commit} ({count})" for commit, count in commits[:_COMMITS])
        more = f" and {len(commits) - _COMMITS} more" if len(commits) > _COMMITS else ""
        lines.append(f"by commit {names}{more}")
    if len(provenances) < len(records):
        lines.append(f"{len(records) - len(provenances)} state no commit")
    return lines


def _record_line(record: Record, strategy: str) -> RecordLine:
    provenance, spec = record.provenance, record.spec
    steps = record.timing.step_ms if record.timing is not None else ()
    return RecordLine(
        strategy=strategy,
        key=record.key,
        seed=spec.seed,
        repeat=spec.repeat,
        outcome=record.outcome.value,
        step=significant(float(np.median(steps))) if steps else "",
        plan_hash=record.planned.plan_hash if record.planned else "",
        commit=_commit(provenance.commit, dirty=provenance.dirty) if provenance else "not stated",
        started=f"{provenance.started:%Y-%m-%d %H:%M}" if provenance else "",
        environment=record.environment,
    )


def _commit(commit: str | None, *, dirty: bool | None) -> str:
    if commit is None:
        return "none"
    return commit[:_COMMIT] + (" and changes" if dirty else "")
