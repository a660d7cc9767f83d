"""The reward of an episode: how even the devices' kernel times are, or how far memory is exceeded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.oracle import Costs, Oracle
from shardbench.learned.tasks.task import Task


def kernel_ms(costs: Costs) -> Floats:
    """Add up forward and backward kernel time of every device, without communication, [episodes, devices]."""
    return costs.forward_ms + costs.backward_ms


def balance(device_ms: Floats) -> Floats:
    """Divide smallest by largest time, [episodes, devices] -> [episodes]; 1 where nothing takes time (deviation 6)."""
    slowest = device_ms.max(axis=1)
    even = np.ones(len(device_ms))
    return np.asarray(np.divide(device_ms.min(axis=1), slowest, out=even, where=slowest > 0))


def overfull(placing: Placing, tasks: Sequence[Task]) -> Floats:
    """Give (cap - fullest device's bytes) / cap of every episode, [E]: negative where memory is exceeded."""
    capacity = np.array([task.capacity_bytes for task in tasks], dtype=np.float64)
    free_bytes = np.where(placing.real, placing.free, np.iinfo(np.int64).max).min(axis=1)
    return np.asarray(free_bytes / capacity)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rewards:
    """Rewards [E], which episodes fit, and the kernel times of those that do, [E, D] (NaN elsewhere)."""

    reward: Floats
    fits: Bools
    device_ms: Floats


def rewards(placing: Placing, tasks: Sequence[Task], oracle: Oracle) -> Rewards:
    """Reward finished episodes; only those that fit are measured, one call a different task."""
    reward = overfull(placing, tasks)
    fits: Bools = reward >= 0.0
    device_ms = np.full(placing.free.shape, np.nan)
    placements = placing.placements()
    groups: dict[int, list[int]] = {}
    for episode in np.flatnonzero(fits).tolist():
        groups.setdefault(id(tasks[episode]), []).append(episode)
    for members in groups.values():
        task = tasks[members[0]]
        measured = kernel_ms(oracle.measure(task, np.stack([placements[e] for e in members])))
        device_ms[members, : task.devices] = measured
        reward[members] = balance(measured)
    return Rewards(reward=reward, fits=fits, device_ms=device_ms)
