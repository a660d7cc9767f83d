"""How many records were made by other code than what is here now, in words and numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.base.code import checkout
from shardbench.model.discovery import strategy_codes
from shardbench.records.base_record import BaseRecord
from shardbench.records.record import Record


@dataclass(frozen=True, kw_only=True)
class OtherCode:
    """Records of other code than this process would run; of the same code none is counted."""

    records: int
    """Looked at."""
    differing: int
    """Of these, how many count under any of what follows."""
    own: dict[str, int]
    """By strategy or study: its own code differs, or it is no longer here."""
    package: int
    """The harness or the data sets differ; that alone makes no trial run again."""
    unstated: dict[str, int]
    """By strategy or study: recorded by a version that did not state its code."""

    def lines(self) -> list[str]:
        """What to say; nothing where all is of this code."""
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
    """Holds the code of trials against that of this process."""
    looked_at = list(records)
    codes = strategy_codes(record.about for record in looked_at)
    return compared((record, codes[record.about]) for record in looked_at)


def compared(records: Iterable[tuple[BaseRecord, str | None]]) -> OtherCode:
    """Holds each record against the hash of the code that it would be made by now."""
    package, looked_at, differing, elsewhere = checkout().package, 0, 0, 0
    own: Counter[str] = Counter()
    unstated: Counter[str] = Counter()
    for record, code in records:
        looked_at += 1
        same = record.made_by(code)
        other = record.provenance is not None and record.provenance.package_code != package
        unstated[record.about] += record.provenance is None
        own[record.about] += record.provenance is not None and not same
        elsewhere += other
        differing += other or not same
    return OtherCode(
        records=looked_at, differing=differing, own=_some(own), package=elsewhere, unstated=_some(unstated)
    )


def _some(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
