"""The files of a results folder: records of suites and studies, plans and what is expected of them, and logs."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from shardbench.base.atomic import whole_file, write_atomically
from shardbench.base.jsonlines import JsonLines
from shardbench.base.serialise import content_hash
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.records.base_record import BaseRecord
from shardbench.records.cell import CellRecord
from shardbench.records.record import Record

R = TypeVar("R", bound=BaseRecord)

_DECIMALS = 9
KEPT_LOG_BYTES = 1 << 20
"""Bytes that are kept of the end of what each process of a failed trial printed."""


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


def plan_path(results: Path, plan_hash: str) -> Path:
    """Return the path of a plan's file."""
    return results / "plans" / f"{plan_hash}.json"


def lookups_path(results: Path, plan_hash: str, workload_fingerprint: str) -> Path:
    """Return the path of the lookups of a plan's segments on a workload."""
    return results / "lookups" / f"{plan_hash}-{workload_fingerprint}.json"


def keep_plan(results: Path, plan: Plan) -> None:
    """Keep a plan as ``plans/<hash>.json``."""
    write_atomically(plan_path(results, content_hash(plan)), plan.to_json() + "\n")


def keep_lookups(results: Path, plan: Plan, problem: Problem, workload_fingerprint: str) -> None:
    """Keep beside a valid plan how often a sample looks each of its segments up, expected of the train split."""
    profiles = {table.name: profile for table, profile in zip(problem.tables, problem.profiles, strict=True)}
    lookups = [
        profiles[segment.table].share(segment.row_start, segment.row_stop) * profiles[segment.table].mean_pooling
        for segment in plan.segments
    ]
    path = lookups_path(results, content_hash(plan), workload_fingerprint)
    write_atomically(path, json.dumps([round(number, _DECIMALS) for number in lookups]) + "\n")


def keep_log(results: Path, key: str, parts: Iterable[Path]) -> None:
    """Make ``logs/<key>.log`` of those files that are there; without any there is none."""
    log = results / "logs" / f"{key}.log"
    log.unlink(missing_ok=True)
    files = [path for path in parts if path.is_file()]
    if not files:
        return
    with whole_file(log) as file:
        for part in files:
            file.write(f"== {part.name}\n".encode())
            before = max(part.stat().st_size - KEPT_LOG_BYTES, 0)
            if before:
                file.write(f"({before} bytes before this are left out)\n".encode())
            with part.open("rb") as text:
                text.seek(before)
                file.write(text.read(KEPT_LOG_BYTES))
