"""Samples for the pre-training: sets of augmented tables on a device, and exchanges of random placements."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.load import VECTOR_BYTES
from shardbench.learned.tasks.oracle import NO_TABLE, Oracle
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine

WIDTHS = (4, 8, 16, 32, 64, 128)
"""Every table is augmented to these."""
SET_TABLES = 15
"""Most tables of a set: 60 tables on 4 devices."""
LEAST_TABLES, MOST_TABLES = 2.5, 15.0
"""Tables a device of a random placement: 10 to 60 on 4 devices."""
LATEST_MS = (1.0, 20.0)
"""Range of the latest start of an exchange's devices."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSets:
    """Sets of a task's tables and their kernels' time.

    ``members`` int64 [all] are the tables of all sets, those of set i from ``starts[i]`` on, int64 [sets]; ``ms``
    float32 [sets] is forward and backward.
    """

    members: Ints
    starts: Ints
    ms: Floats32

    def some(self, chosen: Ints) -> "TableSets":
        """Pick sets by number, int64 [chosen]."""
        ends = np.append(self.starts[1:], len(self.members))
        sizes = (ends - self.starts)[chosen]
        starts = np.cumsum(sizes) - sizes
        at = np.repeat(self.starts[chosen] - starts, sizes) + np.arange(sizes.sum())
        return TableSets(members=self.members[at], starts=starts, ms=self.ms[chosen])


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanges:
    """Widths and starts of all devices, and how long each is in either exchange; float32 [exchanges, devices] each."""

    widths: Floats32
    late_ms: Floats32
    """Delay after the first device, in the forward exchange; the backward one begins everywhere at once."""
    forward_ms: Floats32
    backward_ms: Floats32


def draw_sets(sizes_bytes: Ints, capacity_bytes: int, most: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw random sets of 1 to ``most`` tables that fit a device, int64 [count, most], padded with NO_TABLE.

    Tables are drawn independently, so that a set may hold two shards of one table, as plans may. A set ends before
    the first table that does not fit (deviation 4); its first table always does.
    """
    fitting = np.flatnonzero(sizes_bytes <= capacity_bytes)
    if not len(fitting):
        # Nothing can be placed, which planning will say: any sets do.
        return rng.integers(0, len(sizes_bytes), (count, 1))
    drawn = fitting[rng.integers(0, len(fitting), (count, most))]
    lengths = rng.integers(1, most + 1, (count, 1))
    fits = (np.cumsum(sizes_bytes[drawn], axis=1) <= capacity_bytes) & (np.arange(most) < lengths)
    return np.where(np.logical_and.accumulate(fits, axis=1), drawn, NO_TABLE)


def measure_sets(task: Task, sets: Ints, oracle: Oracle) -> TableSets:
    """Ask the oracle how long the kernels of sets, int64 [sets, most], take (deviation 1)."""
    forward_ms, backward_ms = oracle.measure_sets(task, sets)
    is_table = sets != NO_TABLE
    sizes = is_table.sum(axis=1)
    return TableSets(
        members=sets[is_table], starts=np.cumsum(sizes) - sizes, ms=(forward_ms + backward_ms).astype(np.float32)
    )


def draw_widths(vectors: Floats, devices: int, count: int, rng: np.random.Generator) -> Floats:
    """Draw sums of widths of random placements, float64 [count, devices]; ``vectors`` [tables] are numbers a sample.

    A table goes to the narrowest device or to a random one, by a probability that each placement draws.
    """
    tables = rng.integers(round(LEAST_TABLES * devices), round(MOST_TABLES * devices), count)
    greedy = rng.random(count)
    sums, rows = np.zeros((count, devices)), np.arange(count)
    for step in range(int(tables.max())):
        width = np.where(step < tables, vectors[rng.integers(0, len(vectors), count)], 0.0)
        device = np.where(rng.random(count) < greedy, sums.argmin(axis=1), rng.integers(0, devices, count))
        sums[rows, device] += width
    return sums


def draw_exchanges(
    vectors: Floats,
    machine: Machine,
    batch_size: int,
    count: int,
    rng: np.random.Generator,
    *,
    number_bytes: int = VECTOR_BYTES,
) -> Exchanges:
    """Draw exchanges of random placements under the cost model; all wait for the last device (deviation 3)."""
    devices = machine.topology.world_size
    widths = draw_widths(vectors, devices, count, rng)
    late_ms = rng.random((count, devices)) * rng.uniform(*LATEST_MS, (count, 1))
    late_ms -= late_ms.min(axis=1, keepdims=True)
    own_ms = exchange_ms(widths, machine, batch_size, number_bytes)
    waits_ms = late_ms.max(axis=1, keepdims=True) - late_ms
    return Exchanges(
        widths=widths.astype(np.float32),
        late_ms=late_ms.astype(np.float32),
        forward_ms=(waits_ms + own_ms).astype(np.float32),
        backward_ms=own_ms.astype(np.float32),
    )


def exchange_ms(widths: Floats, machine: Machine, batch_size: int, number_bytes: int = VECTOR_BYTES) -> Floats:
    """Compute milliseconds of each device in an exchange that all begin at once, [..., devices]."""
    return 1e3 * vectors_exchange_s(widths * float(batch_size * number_bytes), machine)
