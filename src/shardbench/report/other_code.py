"""How many records were made by other code than what is here now, in words and numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.base.code import checkout
from shardbench.model.discovery import strategy_codes
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.store import made_by


@dataclass(frozen=True, kw_only=True)
class OtherCode:
    """Records of other code than this process would run; of the same code none is counted."""

    records: int
    """Looked at."""
    differing: int
    """Of these, how many count under any of what follows."""
    strategy: dict[str, int]
    """By strategy: its own code differs, or it is no longer here."""
    package: int
    """The harness or the data sets differ; that alone makes no trial run again."""
    unstated: dict[str, int]
    """By strategy: recorded by a version that did not state its code."""

    def lines(self) -> list[str]:
        """What to say; nothing where all is of this code."""
        if not self.differing:
            return []
        said = [f"{self.differing} of {self.records} records were recorded with other code than this:"]
        if self.strategy:
            said.append(f"  other code of the strategy: {_counted(self.strategy)}; a run plans these again")
        if self.package:
            said.append(f"  other code of the harness or the data sets: {self.package}; --force runs them again")
        if self.unstated:
            said.append(f"  code not stated: {_counted(self.unstated)}; a run plans these again")
        return said


def other_code(records: Iterable[Record]) -> OtherCode:
    """Holds the records' code against that of this process."""
    looked_at = list(records)
    codes = strategy_codes(record.spec.strategy for record in looked_at)
    return compared(
        (record.spec.strategy, record.provenance, made_by(record, codes[record.spec.strategy])) for record in looked_at
    )


def compared(made: Iterable[tuple[str, Provenance | None, bool]]) -> OtherCode:
    """Counts (name, provenance, whether its own code is this) of records."""
    package, records, differing, elsewhere = checkout().package, 0, 0, 0
    strategy: Counter[str] = Counter()
    unstated: Counter[str] = Counter()
    for name, provenance, same in made:
        records += 1
        other = provenance is not None and provenance.package_code != package
        unstated[name] += provenance is None
        strategy[name] += provenance is not None and not same
        elsewhere += other
        differing += other or not same
    return OtherCode(
        records=records, differing=differing, strategy=_some(strategy), package=elsewhere, unstated=_some(unstated)
    )


def _some(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())
