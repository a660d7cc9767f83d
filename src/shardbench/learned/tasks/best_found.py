"""The best placement that is found for a task: local search on the judged costs themselves, which no strategy sees."""

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.load import Load
from shardbench.learned.tasks.task import Task
from shardbench.model.problem import Problem

RESTARTS = 4
"""Starts: one greedy, the others with noise on its order."""
STEPS = 400
"""Moves or swaps of one start at the most."""
NOISE = 0.3


def _device_ms(load: Load, everyone: float, problem: Problem) -> Floats:
    """Give row sums of devices of a load [...], where all devices together hold ``everyone`` bag bytes."""
    machine = problem.machine
    # One node: a device's exchange depends on its own bytes and on the sum.
    own = load.bag_bytes
    pair = np.zeros((*own.shape, machine.topology.world_size))
    pair[..., 0], pair[..., 1] = own, everyone - own
    exchange = vectors_exchange_s(pair * problem.sent_ratio, machine)[..., 0]
    seconds = forward_s(load, machine.constants) + backward_s(load, machine.constants) + 2.0 * exchange
    return np.asarray(1e3 * seconds)


def best_found(task: Task, *, counted: bool) -> Ints:
    """Find the cheapest placement, int64 [tables]: moves and swaps off the costliest device until none helps.

    Raises Infeasible where no greedy start fits. One node only, as the papers' tasks are.
    """
    if task.problem.topology.nodes > 1 or task.devices < 2:
        raise Infeasible(f"task {task.problem.name}: best_found is for one node of several devices")
    loads = task.loads(counted=counted)
    rng = np.random.default_rng(0)
    alone = _device_ms(loads, float(loads.bag_bytes.sum()), task.problem)
    best, best_ms = None, np.inf
    for start in range(RESTARTS):
        noise = np.exp(NOISE * rng.standard_normal(len(alone))) if start else np.ones(len(alone))
        start_placement = _greedy(alone * noise, task)
        if start_placement is None:
            continue
        placement, placement_ms = _descend(start_placement, loads, task)
        if placement_ms < best_ms:
            best, best_ms = placement, placement_ms
    if best is None:
        raise Infeasible(f"task {task.problem.name}: none of {RESTARTS} greedy starts fits the devices' memory")
    return best


def _greedy(weights: Floats, task: Task) -> Ints | None:
    """Place the dearest first, each on the device with the smallest sum that has room."""
    placement = np.zeros(len(weights), dtype=np.int64)
    sums, free = np.zeros(task.devices), np.full(task.devices, task.capacity_bytes, dtype=np.int64)
    for table in np.argsort(-weights, kind="stable"):
        room = free >= task.sizes_bytes[table]
        if not room.any():
            return None
        device = int(np.where(room, sums, np.inf).argmin())
        placement[table] = device
        sums[device] += weights[table]
        free[device] -= task.sizes_bytes[table]
    return placement


def _descend(placement: Ints, loads: Load, task: Task) -> tuple[Ints, float]:
    placement, problem = placement.copy(), task.problem
    sizes, devices = task.sizes_bytes, task.devices
    everyone = float(loads.bag_bytes.sum())
    for _ in range(STEPS):
        device_loads, longest = _loads_by_device(placement, loads, devices)
        device_ms = _device_ms(device_loads, everyone, problem)
        used_bytes = np.bincount(placement, weights=sizes.astype(np.float64), minlength=devices)
        worst = int(device_ms.argmax())
        mine, others = np.flatnonzero(placement == worst), np.flatnonzero(placement != worst)
        # Pairs of a table of the costliest device and one of another device, or none of it (a move).
        give = np.concatenate([np.repeat(mine, len(others)), np.repeat(mine, devices - 1)])
        rest = np.delete(np.arange(devices), worst)
        take = np.concatenate([np.tile(others, len(mine)), np.full(len(mine) * len(rest), -1)])
        to = np.concatenate([placement[np.tile(others, len(mine))], np.tile(rest, len(mine))])
        leaving, coming = loads[give], Load(np.where(take[:, None] >= 0, loads.values[take], 0.0))
        coming_size = np.where(take >= 0, sizes[take], 0)
        fits = (used_bytes[worst] - sizes[give] + coming_size <= task.capacity_bytes) & (
            used_bytes[to] + sizes[give] - coming_size <= task.capacity_bytes
        )
        here = Load(device_loads.values[worst] - leaving.values + coming.values)
        there = Load(device_loads.values[to] + leaving.values - coming.values)
        here.chain[:] = np.maximum(_without(longest[worst], leaving.chain), coming.chain)
        there.chain[:] = np.maximum(_without(longest[to].T, coming.chain), leaving.chain)
        untouched = np.where(np.arange(devices) == to[:, None], -np.inf, device_ms)
        untouched[:, worst] = -np.inf
        after = np.maximum(_device_ms(here, everyone, problem), _device_ms(there, everyone, problem))
        after = np.where(fits, np.maximum(after, untouched.max(axis=1)), np.inf)
        step = int(after.argmin())
        if not after[step] < device_ms[worst] * (1.0 - 1e-9):
            break
        placement[give[step]] = to[step]
        if take[step] >= 0:
            placement[take[step]] = worst
    return placement, float(_device_ms(_loads_by_device(placement, loads, devices)[0], everyone, problem).max())


def _loads_by_device(placement: Ints, loads: Load, devices: int) -> tuple[Load, Floats]:
    """Give the load of devices, [devices], and the two longest bags of each, [devices, 2]."""
    member = placement[None, :] == np.arange(devices)[:, None]
    device_loads = Load(member.astype(np.float64) @ loads.values)
    bags = np.sort(np.where(member, loads.chain, 0.0), axis=1)
    longest = np.concatenate([np.zeros((devices, 2)), bags], axis=1)[:, [-1, -2]]
    device_loads.chain[:] = longest[:, 0]
    return device_loads, longest


def _without(longest: Floats, length: Floats) -> Floats:
    """Give the longest bag after one that is ``length`` long is gone; ``longest`` are the first and the second."""
    first, second = longest
    return np.asarray(np.where(length >= first, second, first))
