"""The cost of a placement: one interface, and the simulated oracle (the cost model) behind it.

Costs are DreamShard's four columns (NeurIPS 2022; its multi-GPU benchmark): per device forward,
forward all-to-all, backward all-to-all, backward; the cost of a placement is the slowest device's
row sum. That is not the cost model's step, where every phase waits for its slowest rank.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.load import Load
from shardbench.learned.tasks.task import Task, one_hot
from shardbench.model.machine import Machine

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
        """Add up the rows, [episodes, devices]."""
        return self.forward_ms + self.forward_comm_ms + self.backward_comm_ms + self.backward_ms

    @property
    def overall_ms(self) -> Floats:
        """Cost each placement: its slowest device's row sum, [episodes]."""
        return np.asarray(self.device_ms.max(axis=1))


class Oracle(ABC):
    """Answers what placements cost, and counts what it was asked: that is part of a strategy's budget."""

    def __init__(self) -> None:
        self.calls = 0
        """Placements and sets that were asked about so far."""

    def measure(self, task: Task, assignments: Ints) -> Costs:
        """Cost placements int [episodes, tables] (device of every table).

        Raises BadInput for placements that are malformed or exceed a device's memory.
        """
        task.check(assignments)
        self.calls += len(assignments)
        return self._measure(task, assignments)

    def measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        """Time forward and backward of each set of tables alone on one device, ms, float64 [sets] each.

        ``sets`` int [sets, most] are numbers of the task's tables, padded with NO_TABLE. Raises BadInput for others.
        """
        if sets.ndim != 2 or (sets.size and (sets.min() < NO_TABLE or sets.max() >= task.tables)):
            raise BadInput(f"task {task.problem.name}: sets must be [sets, most] of tables 0..{task.tables - 1}")
        self.calls += len(sets)
        return self._measure_sets(task, sets)

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name what the answers depend on besides task and placement; it is part of the key of what is learned."""

    @abstractmethod
    def _measure(self, task: Task, assignments: Ints) -> Costs:
        """Cost placements that are known to be well-formed."""

    @abstractmethod
    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        """Time sets that are known to be well-formed."""


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
        """Name the loads that the answers rest on."""
        return "simulated on a counted batch" if self.counted else "simulated on training profiles"

    def _measure(self, task: Task, assignments: Ints) -> Costs:
        load = device_loads(task.loads(counted=self.counted), assignments, task.devices)
        return costs_of(load, task.problem.machine, task.problem.sent_ratio)

    def _measure_sets(self, task: Task, sets: Ints) -> tuple[Floats, Floats]:
        load = set_loads(task.loads(counted=self.counted), sets)
        constants = task.problem.machine.constants
        return 1e3 * forward_s(load, constants), 1e3 * backward_s(load, constants)


def costs_of(load: Load, machine: Machine, sent_ratio: float = 1.0) -> Costs:
    """Cost devices with these loads, [episodes, devices]; ``sent_ratio`` is ``Problem.sent_ratio``."""
    exchange_ms = 1e3 * vectors_exchange_s(load.bag_bytes * sent_ratio, machine)
    return Costs(
        forward_ms=1e3 * forward_s(load, machine.constants),
        forward_comm_ms=exchange_ms,
        # Gradients travel the same way back: what a rank sent it now receives.
        backward_comm_ms=exchange_ms.copy(),
        backward_ms=1e3 * backward_s(load, machine.constants),
    )


def set_loads(loads: Load, sets: Ints) -> Load:
    """Add up loads of tables [tables] per set int [sets, most], fields [sets]; the longest bag is a maximum."""
    # The padding, -1, is the last row: a table of no load.
    padded = np.concatenate([loads.values, np.zeros((1, loads.values.shape[1]))])
    sums = Load.zeros(len(sets))
    step = max(1, _CHUNK // max(1, sets.shape[1] * padded.shape[1]))
    for first in range(0, len(sets), step):
        member_loads = padded[sets[first : first + step]]
        sums.values[first : first + step] = member_loads.sum(axis=1)
        sums.chain[first : first + step] = Load(member_loads).chain.max(axis=1, initial=0.0)
    return sums


def device_loads(loads: Load, assignments: Ints, devices: int) -> Load:
    """Add up loads of tables [tables] per device, fields [episodes, devices]; the longest bag is a maximum."""
    step = max(1, _CHUNK // (devices * max(1, len(loads.values))))
    sums = Load.zeros(len(assignments), devices)
    for first in range(0, len(assignments), step):
        membership = one_hot(assignments[first : first + step], devices)
        sums.values[first : first + step] = membership @ loads.values
        sums.chain[first : first + step] = (membership * loads.chain).max(axis=2, initial=0.0)
    return sums
