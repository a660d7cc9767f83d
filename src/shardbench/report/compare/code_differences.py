"""Counts the records that were made by other code than what is here now, and says so in words."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from shardbench.base.code import checkout
from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record
from shardbench.runs.discovery import strategy_codes


@dataclass(frozen=True, kw_only=True)
class OtherCode:
    """Records of other code than this process would run; of the same code none is counted."""

    records: int
    """The number of records looked at."""
    differing: int
    """The number of them that count under any of what follows."""
    own: dict[str, int]
    """Records by strategy or study whose own code differs, or is no longer here."""
    package: int
    """The number of records of another harness or other data sets; that alone makes no trial run again."""
    unstated: dict[str, int]
    """Records by strategy or study that an older version wrote, which did not state its code."""

    def lines(self) -> list[str]:
        """Say it in lines; none where all records are of this code."""
        if not self.differing:
            return []
        said = [f"{self.differing} of {self.records} records were recorded with other code than this:"]
        if self.own:
            said.append(f"  other code of their own: {_counted(self.own)}; a run makes these again")
        if self.package:
            said.append(f"  other code of the harness or the data sets: {self.package}; --force runs them again")
        if self.unstated:
            said.append(f"  code not stated: {_counted(self.unstated)}; a run makes these again")
        return said


def other_code(records: Iterable[Record]) -> OtherCode:
    """Compare the code of trials with that of this process."""
    return compared((record, trial_code(record)) for record in records)


def trial_code(record: Record) -> str | None:
    """Return the hash of the code that would make a trial now; that of a plan that was given is the plan's."""
    if record.of_given_plan and record.planned:
        return record.planned.plan_hash
    return _strategy_code(record.about)


@cache
def _strategy_code(name: str) -> str | None:
    return strategy_codes([name])[name]


def outdated(record: BaseRecord, code: str | None) -> bool:
    """Tell whether other code made a record than would make it now, of its own, of the harness or of the data sets."""
    made = record.provenance
    return made is None or not record.made_by(code) or made.package_code != checkout().package


def compared(records: Iterable[tuple[BaseRecord, str | None]]) -> OtherCode:
    """Compare each record with the hash of the code that would make it now."""
    package, looked_at = checkout().package, list(records)
    others = [record for record, code in looked_at if not record.made_by(code)]
    stated = ((record, record.provenance) for record, _ in looked_at)
    elsewhere = [record for record, code in stated if code is not None and code.package_code != package]
    return OtherCode(
        records=len(looked_at),
        differing=len({id(record) for record in (*others, *elsewhere)}),
        own=_by_name(record for record in others if record.provenance is not None),
        package=len(elsewhere),
        unstated=_by_name(record for record in others if record.provenance is None),
    )


def _by_name(records: Iterable[BaseRecord]) -> dict[str, int]:
    return dict(sorted(Counter(record.about for record in records).items()))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
