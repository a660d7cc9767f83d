"""Record files of suites, and which trials need not run again."""

from pathlib import Path
from typing import Protocol

from shardbench.base.jsonlines import JsonLines
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome


class RecordStore(JsonLines[Record]):
    """Records of one suite in ``<results>/records/<suite>.jsonl``, failures included."""

    def __init__(self, results: Path, suite: str) -> None:
        super().__init__(results / "records" / f"{suite}.jsonl", Record, "trial")

    def latest(self) -> dict[str, Record]:
        """The last record of every trial key."""
        return {record.key: record for record in self.read()}


def is_settled(
    record: Record | None,
    *,
    code: str | None,
    force: bool = False,
    retry: frozenset[Outcome] = frozenset(),
    environment: str | None = None,
) -> bool:
    """Whether a trial need not run (again) in ``environment`` (a hash; None: whichever it was).

    It is settled only while ``code`` is the hash of its strategy's code, and None is that of no
    code. A measurement holds only where it was taken; a simulated trial is the same everywhere.
    """
    if record is None or force or record.outcome in retry or not made_by(record, code):
        return False
    return record.spec.backend is Backend.SIMULATED or environment in (None, record.environment)


class _Made(Protocol):
    @property
    def provenance(self) -> Provenance | None: ...


def made_by(record: _Made, code: str | None) -> bool:
    """Whether the record says that the code it is about had this hash; nothing is made by None."""
    return record.provenance is not None and code is not None and record.provenance.strategy_code == code
