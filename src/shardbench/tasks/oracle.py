"""What a placement costs: one interface, and the simulated oracle (the cost model) behind it.

Costs are DreamShard's four columns (NeurIPS 2022; its multi-GPU benchmark): per device forward,
forward all-to-all, backward all-to-all, backward; the cost of a placement is the slowest device's
row sum. That is not the cost model's step, where every phase waits for its slowest rank.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.load import Load
from shardbench.model.machine import Machine
from shardbench.tasks.task import Task, one_hot

NO_TABLE = -1
"""Pads sets that are smaller than others."""
_CHUNK = 1 << 22
"""(episode, device, table) triples that are summed at once: 32 MiB."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Milliseconds by placement and device, float64 [episodes, devices] each."""

    forward_ms: Floats
    forward_comm_ms: Floats
    backward_comm_ms: Floats
    backward_ms: Floats

    @property
    def device_ms(self) -> Floats:
        """Row sums, [episodes, devices]."""
        return self.forward_ms + self.forward_comm_ms + self.backward_comm_ms + self.backward_ms

    @property
    def overall_ms(self) -> Floats:
        """Cost of each placement: its slowest device's row sum, [episodes]."""
        return np.asarray(self.device_ms.max(axis=1))


@dataclass(frozen=True, kw_only=True)
class OracleUse:
    """What was asked of an oracle: placements, different ones among them, and CPU seconds."""

    calls: int
    distinct: int
    cpu_s: float


class Oracle(ABC):
    """Answers what placements cost, and counts what it was asked: that is part of a strategy's budget."""

    def __init__(self) -> None:
        self._calls = 0
        self._cpu_s = 0.0
        self._asked: set[tuple[str, int]] = set()

    def measure(self, task: Task, assignments: Ints) -> Costs:
        """Costs of placements int [episodes, tables] (device of every table).

        Raises BadInput for placements that are malformed or exceed a device's memory.
        """
        task.check(assignments)
        start = time.process_time()
        costs = self._measure(task, assignments)
        self._cpu_s += time.process_time() - start
        self._calls += len(assignments)
        self._asked.update((task.key, mark) for mark in _marks(assignments))
        return costs

    def measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        """Forward and backward ms of each set of tables alone on one device, float64 [sets] each.

        ``sets`` int [sets, most] are numbers of the task's tables, padded with NO_TABLE. Raises BadInput for others.
        """
        if sets.ndim != 2 or (sets.size and (sets.min() < NO_TABLE or sets.max() >= task.tables)):
            raise BadInput(f"task {task.problem.name}: sets must be [sets, most] of tables 0..{task.tables - 1}")
        start = time.process_time()
        forward_ms, backward_ms = self._measure_sets(task, sets)
        self._cpu_s += time.process_time() - start
        self._calls += len(sets)
        held = np.sort(sets, axis=1) + 1
        self._asked.update((f"sets {task.key}", mark) for mark in _marks(held))
        return forward_ms, backward_ms

    @property
    def spent(self) -> OracleUse:
        """What was asked so far."""
        return OracleUse(calls=self._calls, distinct=len(self._asked), cpu_s=self._cpu_s)

    @property
    @abstractmethod
    def identity(self) -> str:
        """What the answers depend on besides task and placement: a part of the key of what is learned from them."""

    @abstractmethod
    def _measure(self, task: Task, assignments: Ints) -> Costs:
        """Costs of well-formed placements."""

    @abstractmethod
    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        """Forward and backward ms of well-formed sets."""


def _marks(assignments: Ints) -> list[int]:
    """A 64-bit mark of every placement, computed for all at once."""
    factors = np.random.default_rng(0).integers(1, 1 << 63, assignments.shape[1], dtype=np.uint64) | np.uint64(1)
    marks: list[int] = (assignments.astype(np.uint64) @ factors).tolist()
    return marks


class SimulatedOracle(Oracle):
    """The cost model on loads added up per device, on the task's own machine.

    Under training profiles (``counted=False``, what a strategy may train on) or on a counted test
    batch (``counted=True``, for judging).
    """

    def __init__(self, *, counted: bool = False) -> None:
        super().__init__()
        self.counted = counted

    @property
    def identity(self) -> str:
        """See Oracle."""
        return "simulated on a counted batch" if self.counted else "simulated on training profiles"

    def _measure(self, task: Task, assignments: Ints) -> Costs:
        return costs_of(device_loads(task.loads(counted=self.counted), assignments, task.devices), task.problem.machine)

    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        load = set_loads(task.loads(counted=self.counted), sets)
        constants = task.problem.machine.constants
        return 1e3 * forward_s(load, constants), 1e3 * backward_s(load, constants)


def costs_of(load: Load, machine: Machine) -> Costs:
    """What devices with these loads, [episodes, devices], cost."""
    exchange_ms = 1e3 * vectors_exchange_s(load.bag_bytes, machine)
    return Costs(
        forward_ms=1e3 * forward_s(load, machine.constants),
        forward_comm_ms=exchange_ms,
        # Gradients travel the same way back: what a rank sent it now receives.
        backward_comm_ms=exchange_ms.copy(),
        backward_ms=1e3 * backward_s(load, machine.constants),
    )


def set_loads(loads: Load, sets: Ints) -> Load:
    """Loads of tables [tables] added up per set int [sets, most], fields [sets]; the longest bag is a maximum."""
    # The padding, -1, is the last row: a table of no load.
    padded = np.concatenate([loads.values, np.zeros((1, loads.values.shape[1]))])
    sums = Load.zeros(len(sets))
    step = max(1, _CHUNK // max(1, sets.shape[1] * padded.shape[1]))
    for first in range(0, len(sets), step):
        held = padded[sets[first : first + step]]
        sums.values[first : first + step] = held.sum(axis=1)
        sums.longest_bag[first : first + step] = Load(held).longest_bag.max(axis=1, initial=0.0)
    return sums


def device_loads(loads: Load, assignments: Ints, devices: int) -> Load:
    """Loads of tables [tables] added up per device, fields [episodes, devices]; the longest bag is a maximum."""
    step = max(1, _CHUNK // (devices * max(1, len(loads.values))))
    sums = Load.zeros(len(assignments), devices)
    for first in range(0, len(assignments), step):
        held = one_hot(assignments[first : first + step], devices)
        sums.values[first : first + step] = held @ loads.values
        sums.longest_bag[first : first + step] = (held * loads.longest_bag).max(axis=2, initial=0.0)
    return sums
