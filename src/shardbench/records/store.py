"""Record files of suites, and which trials need not run again."""

from pathlib import Path

from shardbench.base.jsonlines import JsonLines
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
    record: Record | None, *, force: bool, retry: frozenset[Outcome], environment: str | None = None
) -> bool:
    """Whether a trial need not run (again) in ``environment`` (a hash; None: whichever it was).

    A measurement holds only where it was taken; a simulated trial is the same everywhere.
    """
    if record is None or force or record.outcome in retry:
        return False
    return record.spec.backend is Backend.SIMULATED or environment in (None, record.environment)
