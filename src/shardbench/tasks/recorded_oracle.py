"""Costs of table sets on disk: what a measured oracle keeps, and an oracle that answers from such a file alone.

A file is JSON lines: a header with what the times were measured on, then one line a table set. A
set's key is the hash of its tables and of the lookups' source, so that a file may be committed as
data and answers only the questions that were measured.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

from shardbench.base.arrays import Floats, Ints
from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.serialise import STRICT, content_hash, from_json, to_json
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.model.table import Table
from shardbench.tasks.oracle import NO_TABLE, Costs, Oracle
from shardbench.tasks.task import Task, one_hot


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Conditions:
    """What the times of a file depend on besides the table set."""

    environment: str
    """Hash of the hardware, versions and thread settings (``shardbench.base.host``)."""
    device: str
    lookups: str
    """Where the lookups came from: a workload's fingerprint, split and batch."""
    batch_size: PositiveInt
    precision: str
    warmups: int
    runs: PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SetTime:
    """Median milliseconds of the fused kernels of one table set on one device."""

    key: str
    tables: tuple[str, ...]
    """Names, for the reader; the key decides."""
    forward_ms: NonNegativeFloat
    backward_ms: NonNegativeFloat


class SetTimes:
    """Times of table sets under one set of conditions, in memory and, where a path is given, on disk."""

    def __init__(self, conditions: Conditions, path: Path | None = None) -> None:
        self.conditions, self.path = conditions, path
        self.times: dict[str, SetTime] = {}
        if path is not None and path.is_file():
            known, self.times = read(path)
            if known != conditions:
                raise BadInput(f"{path} was measured under other conditions: give another file or delete it")

    def add(self, times: Sequence[SetTime]) -> None:
        """Remember times and, where there is a file, write it anew."""
        self.times |= {time.key: time for time in times}
        if self.path is not None and times:
            write(self.path, self.conditions, self.times)


def read(path: Path) -> tuple[Conditions, dict[str, SetTime]]:
    """Conditions and times of a file; raises BadInput that names the first bad line."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as recorded costs: {' '.join(str(error).split())}") from error
    if not lines:
        raise BadInput(f"{path} is empty: record costs with a measured oracle first")
    conditions = from_json(Conditions, lines[0], f"{path}, line 1")
    times = [from_json(SetTime, line, f"{path}, line {number}") for number, line in enumerate(lines[1:], 2)]
    return conditions, {time.key: time for time in times}


def write(path: Path, conditions: Conditions, times: dict[str, SetTime]) -> None:
    """Write a file whole, sets in order of their keys."""
    lines = [to_json(conditions), *(to_json(times[key]) for key in sorted(times))]
    write_atomically(path, "\n".join(lines) + "\n")


def table_key(table: Table, conditions: Conditions) -> str:
    """Hash of a table and of the lookups that it gets."""
    return content_hash(table, conditions.lookups, conditions.batch_size, conditions.precision)


def set_key(keys: Sequence[str]) -> str:
    """Hash of a set of tables by their keys; the order does not count."""
    return content_hash(json.dumps(sorted(keys)))


class SetOracle(Oracle):
    """An oracle that knows kernel times by table set; exchanges are the cost model's of the task's machine.

    A placement of E x D sets asks for each different set once. Subclasses say what to do about sets
    that are not known yet.
    """

    def __init__(self, sets: SetTimes) -> None:
        super().__init__()
        self.sets = sets

    @abstractmethod
    def _find(self, task: Task, wanted: dict[str, tuple[int, ...]]) -> None:
        """Make the times of ``wanted`` sets (key -> numbers of the task's tables) known, or raise."""

    def _exchange_ms(self, task: Task, assignments: Ints) -> tuple[Floats, Floats]:
        """Forward and backward all-to-all ms, [episodes, devices] each: modelled, not measured."""
        bag_bytes = one_hot(assignments, task.devices) @ task.expected.bag_bytes
        modelled = 1e3 * vectors_exchange_s(bag_bytes, task.problem.machine)
        return modelled, modelled.copy()

    def _measure(self, task: Task, assignments: Ints) -> Costs:
        held = one_hot(assignments, task.devices).astype(np.bool_).reshape(-1, task.tables)
        different, which = np.unique(held, axis=0, return_inverse=True)
        times = self._times(task, [tuple(np.flatnonzero(row).tolist()) for row in different])
        per_device = times[which.reshape(-1)].reshape(len(assignments), task.devices, 2)
        forward_comm, backward_comm = self._exchange_ms(task, assignments)
        return Costs(
            forward_ms=per_device[:, :, 0],
            forward_comm_ms=forward_comm,
            backward_comm_ms=backward_comm,
            backward_ms=per_device[:, :, 1],
        )

    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        different, which = np.unique(np.sort(sets, axis=1), axis=0, return_inverse=True)
        times = self._times(task, [tuple(row[row != NO_TABLE].tolist()) for row in different])[which.reshape(-1)]
        return times[:, 0], times[:, 1]

    def _times(self, task: Task, members: Sequence[tuple[int, ...]]) -> Floats:
        """Forward and backward ms of sets of the task's tables, float64 [sets, 2]; those not known yet are found."""
        conditions, problem = self.sets.conditions, task.problem
        if (problem.batch_size, problem.precision.value) != (conditions.batch_size, conditions.precision):
            raise BadInput(
                f"task {problem.name} has batches of {problem.batch_size} in {problem.precision.value}, the times are "
                f"for {conditions.batch_size} in {conditions.precision}: use the same"
            )
        keys = [table_key(table, conditions) for table in problem.tables]
        found = [set_key([keys[i] for i in numbers]) for numbers in members]
        wanted = {key: numbers for key, numbers in zip(found, members) if numbers and key not in self.sets.times}
        if wanted:
            self._find(task, wanted)
        # An empty device runs no kernel.
        times = [(self.sets.times[k].forward_ms, self.sets.times[k].backward_ms) if m else (0.0, 0.0)
                 for k, m in zip(found, members)]  # fmt: skip
        return np.array(times)


class RecordedOracle(SetOracle):
    """Answers from a file of recorded times; refuses a table set that is not in it."""

    def __init__(self, path: Path) -> None:
        conditions, times = read(path)
        super().__init__(SetTimes(conditions))
        self.sets.times = times
        self._path = path

    @property
    def identity(self) -> str:
        """See Oracle."""
        return f"recorded {content_hash(self.sets.conditions, sorted(self.sets.times))}"

    def _find(self, task: Task, wanted: dict[str, tuple[int, ...]]) -> None:
        numbers = next(iter(wanted.values()))
        names = ", ".join(task.problem.tables[i].name for i in numbers)
        raise BadInput(
            f"{self._path} has no cost of the tables {names} together ({len(wanted)} sets are unknown): "
            "record them with a measured oracle"
        )
