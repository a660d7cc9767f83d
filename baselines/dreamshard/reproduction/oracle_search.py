"""A plain search that asks the oracle about every placement: what so many calls buy without any learning."""

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task

DRAWS = 100
"""Changes that are drawn for one that fits; none of them fitting ends the search."""


def oracle_search(task: Task, start: Ints, oracle: Oracle, calls: int, seed: int) -> Ints:
    """Find the cheapest placement int64 [tables] with ``calls`` calls, the first of which asks about ``start``.

    A change gives a table of the costliest device (as the last answer has it) to another device, or swaps it with a
    table there, all drawn alike; it is kept where the oracle says that it is cheaper.
    """
    rng, best = np.random.default_rng(seed), start
    costs = oracle.measure(task, best[None])
    for _ in range(calls - 1):
        changed = _draw_change(task, best, int(costs.device_ms[0].argmax()), rng)
        if changed is None:
            break
        changed_costs = oracle.measure(task, changed[None])
        if changed_costs.overall_ms[0] < costs.overall_ms[0]:
            best, costs = changed, changed_costs
    return best


def _draw_change(task: Task, placement: Ints, giver: int, rng: np.random.Generator) -> Ints | None:
    giver_tables = np.flatnonzero(placement == giver)
    for _ in range(DRAWS):
        changed = placement.copy()
        device = (giver + int(rng.integers(1, task.devices))) % task.devices
        device_tables = np.flatnonzero(placement == device)
        changed[rng.choice(giver_tables)] = device
        if back := int(rng.integers(len(device_tables) + 1)):
            changed[device_tables[back - 1]] = giver
        if not task.over_capacity(changed[None])[0]:
            return changed
    return None
