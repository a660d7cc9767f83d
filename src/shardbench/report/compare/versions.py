"""Counts the records of other versions than those that are here now, of the judge or of what it judged."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.trials.discovery import strategy_version


@dataclass(frozen=True, kw_only=True)
class OtherVersions:
    """Records that a run would make again, since the judge or what they are about has another version by now."""

    records: int
    """The number of records looked at."""
    other: dict[str, int]
    """Records of other versions, or that state none, by strategy or study."""

    def lines(self) -> list[str]:
        """Say it in a line; none where all records are of the versions that are here."""
        if not self.other:
            return []
        counts = ", ".join(f"{name} ({count})" for name, count in self.other.items())
        number = sum(self.other.values())
        return [f"{number} of {self.records} records are of other versions, a run makes them again: {counts}"]


def other_versions(records: Iterable[Record]) -> OtherVersions:
    """Count trials of other versions than those that are here."""
    return compare_versions((record, trial_version(record)) for record in records)


def trial_version(record: Record) -> str | None:
    """Return the version by which a trial would be made now; a plan that was given has none but its own."""
    if record.of_given_plan and record.provenance:
        return record.provenance.made_by
    return strategy_version(record.about)


def compare_versions(records: Iterable[tuple[BaseRecord, str | None]]) -> OtherVersions:
    """Compare each record with the version by which it would be made now."""
    pairs = list(records)
    other = Counter(record.about for record, version in pairs if not record.is_of(version))
    return OtherVersions(records=len(pairs), other=dict(sorted(other.items())))
