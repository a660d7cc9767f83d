"""Plans without a solver: vector packing of tables on devices, and filling a device's HBM by choices, then by rows."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.machine import Topology
from shardbench.model.problem import Problem

from .steps import RowSteps


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Device and choice (number of a step) of every table, int64 [tables] each."""

    device: Ints
    choice: Ints

    def times_ms(self, steps: RowSteps, world: int) -> Floats:
        """Return the time of each device, [devices]."""
        sums: Floats = np.bincount(self.device, weights=steps.cost_ms[self.choice], minlength=world).astype(np.float64)
        return sums

    def fits(self, steps: RowSteps, topology: Topology, devices: int) -> bool:
        """Return True where each of the topology's ``devices`` holds its rows."""
        limits = ((steps.hbm_bytes, topology.hbm_bytes), (steps.uvm_bytes, topology.uvm_bytes))
        return all((sums_of(used[self.choice], self.device, devices) <= limit).all() for used, limit in limits)


def sums_of(values: Ints, device: Ints, world: int) -> Ints:
    """Return the exact sums per device, int64 [devices]."""
    sums = np.zeros(world, dtype=np.int64)
    np.add.at(sums, device, values)
    return sums


def pack(steps: RowSteps, problem: Problem, choice: Ints, order: Ints) -> Ints | None:
    """Return the device of every table, [tables]; None where a table fits nowhere.

    Tables come in ``order``, counted at their ``choice``; each goes to the device on which
    the scarcest of time, HBM and UVM is then least used, relative to an even share or the capacity.
    """
    world, topology = problem.world_size, problem.topology
    even = max(float(steps.cost_ms[choice].sum()) / world, 1e-300)
    limits = np.array([even, topology.hbm_bytes, max(1, topology.uvm_bytes)])
    need = np.stack([steps.cost_ms[choice], steps.hbm_bytes[choice], steps.uvm_bytes[choice]], axis=1) / limits
    # What no choice can avoid decides whether a device has room at all.
    hbm_least = steps.hbm_bytes[steps.first[:-1]]
    uvm_least = steps.uvm_bytes[steps.first[1:] - 1]
    size = hbm_least + steps.uvm_bytes[steps.first[:-1]]
    floor = np.stack([hbm_least, uvm_least, size], axis=1)
    room = np.tile([topology.hbm_bytes, topology.uvm_bytes, topology.hbm_bytes + topology.uvm_bytes], (world, 1))
    device, used = np.zeros(steps.tables, dtype=np.int64), np.zeros((world, 3))
    for table in order.tolist():
        after = used + need[table]
        key = np.where((room >= floor[table]).all(axis=1), after.max(axis=1), np.inf)
        best = int(np.lexsort((after.sum(axis=1), key))[0])
        if not np.isfinite(key[best]):
            return None
        device[table] = best
        used[best] = after[best]
        room[best] -= floor[table]
    return device


def fill(steps: RowSteps, problem: Problem, device: Ints, begin: Ints, corners: Ints) -> Assignment:
    """Raise choices from ``begin`` along the hull's ``corners`` while HBM has room.

    Most time saved a byte first; then, where a whole table of equal cost fits, most unseen accesses
    a byte. The result may need more UVM than there is.
    """
    choice = begin.copy()
    table = steps.table[corners]
    # The first corner of a table is its first choice, so that an upgrade always has one before it.
    upgrades = np.flatnonzero(corners > begin[table])
    to, of = corners[upgrades], table[upgrades]
    before = np.maximum(corners[upgrades - 1], begin[of])
    grown = steps.hbm_bytes[to] - steps.hbm_bytes[before]
    gain = (steps.cost_ms[before] - steps.cost_ms[to]) / grown
    unseen = np.where(steps.uvm_bytes[to] == 0, steps.unseen_ms[of], 0.0) / grown
    free = problem.topology.hbm_bytes - sums_of(steps.hbm_bytes[begin], device, problem.world_size)
    for k in np.lexsort((to, -unseen, -gain)).tolist():
        home = device[of[k]]
        # Where an upgrade found no room the later ones of that table do not follow.
        if choice[of[k]] == before[k] and grown[k] <= free[home]:
            free[home] -= grown[k]
            choice[of[k]] = to[k]
    return Assignment(device=device, choice=choice)


def lowered(steps: RowSteps, choice: Ints) -> Ints:
    """Return each table's choice with fewest rows in HBM among those that cost no more than ``choice``, [tables].

    The program is indifferent between them, so that a solver may spend HBM on whole tables that
    ``topped_up`` has better uses for.
    """
    cheap = np.flatnonzero(steps.cost_ms <= steps.cost_ms[choice][steps.table])
    return np.asarray(cheap[np.searchsorted(steps.table[cheap], np.arange(steps.tables))])


def topped_up(steps: RowSteps, problem: Problem, assignment: Assignment) -> Ints:
    """Return every table's rows in HBM, int64 [tables]: the choice's, then more until its device is full or holds all.

    Row by row (deviation 5): most time saved a byte first; where rows of no sampled access remain,
    most unseen accesses a byte; then in the order of the tables.
    """
    rows, start = steps.rows[assignment.choice].copy(), steps.first[:-1]
    whole = np.array([table.rows for table in problem.tables])
    each = (steps.hbm_bytes[start] + steps.uvm_bytes[start]) // whole
    # A stretch of rows lies between two choices of a table, or between its last one and its end.
    last = np.zeros(len(steps.table), dtype=bool)
    last[steps.first[1:] - 1] = True
    end = np.where(last, whole[steps.table], np.append(steps.rows[1:], 0))
    size = (end - steps.rows) * each[steps.table]
    saved = np.where(last, 0.0, steps.cost_ms - np.append(steps.cost_ms[1:], 0.0))
    unseen = np.where(end == whole[steps.table], steps.unseen_ms[steps.table], 0.0)
    stretches = np.flatnonzero((np.arange(len(last)) >= assignment.choice[steps.table]) & (size > 0))
    gain, reach = saved[stretches] / size[stretches], unseen[stretches] / size[stretches]
    free = problem.topology.hbm_bytes - sums_of(rows * each, assignment.device, problem.world_size)
    for k in stretches[np.lexsort((stretches, -reach, -gain))].tolist():
        table = steps.table[k]
        home = assignment.device[table]
        # A later stretch may come first, where rounding decides between equal gains: it took this one's rows too.
        taken = max(0, min(end[k] - rows[table], free[home] // each[table]))
        rows[table] += taken
        free[home] -= taken * each[table]
    return rows


def reached(steps: RowSteps, rows: Ints) -> Ints:
    """Return the last choice of every table that ``rows`` [tables] in HBM hold, [tables]."""
    counts = np.bincount(steps.table, weights=steps.rows <= rows[steps.table], minlength=steps.tables)
    return np.asarray(steps.first[:-1] + counts.astype(np.int64) - 1)
