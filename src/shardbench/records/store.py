"""Record files of suites and of studies."""

from pathlib import Path
from typing import TypeVar

from shardbench.base.jsonlines import JsonLines
from shardbench.records.base_record import BaseRecord
from shardbench.records.cell import CellRecord
from shardbench.records.record import Record

R = TypeVar("R", bound=BaseRecord)


class RecordStore(JsonLines[R]):
    """Records of one suite or study, failures included; of one piece of work the last line counts."""

    def latest(self) -> dict[str, R]:
        """Return the last record of every key."""
        return {record.key: record for record in self.read()}


def trial_store(results: Path, suite: str) -> RecordStore[Record]:
    """Return the store of one suite's records, ``<results>/records/<suite>.jsonl``."""
    return RecordStore(results / "records" / f"{suite}.jsonl", Record, "trial")


def cell_store(results: Path, owner: str, study: str) -> RecordStore[CellRecord]:
    """Return the store of one study's records, ``<results>/studies/<owner>/<study>.jsonl``."""
    return RecordStore(results / "studies" / owner / f"{study}.jsonl", CellRecord, "cell")
