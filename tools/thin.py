"""Leave in records of measured trials what tables of steps read: the steps, their plan, and who made them when.

``python tools/thin.py FILE``: no more is kept of a suite's second run.
"""

import sys
from pathlib import Path

from shardbench.base.atomic import whole_file
from shardbench.base.jsonlines import digested
from shardbench.base.serialise import to_json
from shardbench.records.record import Record
from shardbench.records.store import RecordStore


def thin(record: Record) -> Record:
    """Return a record without times by phase, predictions but of steps, counts and draws."""
    timing, predicted = record.timing, record.predicted
    alone: dict[str, object] = {"phases_ms": {}, "ranks": None}
    changes: dict[str, object] = dict.fromkeys(("draws", "traffic", "measured_bytes"))
    changes["timing"] = timing and timing.model_copy(update=alone)
    changes["predicted"] = predicted and predicted.model_copy(update=alone | {"embedding_ms": ()})
    return record.model_copy(update=changes)


def thin_file(path: Path) -> None:
    """Write a file of records again, each thin."""
    records = RecordStore(path, Record, "trial").read()
    with whole_file(path) as file:
        file.writelines(digested(to_json(thin(one), exclude_none=True).encode()) + b"\n" for one in records)


if __name__ == "__main__":
    thin_file(Path(sys.argv[1]))
