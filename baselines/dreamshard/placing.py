"""Placing with trained networks: the best legal device for every table, without measuring anything."""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.baselines.dreamshard.estimates import Episodes, Policy, play
from shardbench.baselines.dreamshard.training import Trained
from shardbench.tasks.task import TableSet


def place(trained: Trained, tasks: Sequence[TableSet]) -> list[Ints]:
    """Device of every table of every task, int64 [tables] a task; all tasks at once.

    Raises Infeasible, naming the task and the table, where a table has no device with room: in the
    order of predicted cost, and then, once more, largest table first (deviation 4).
    """
    policy = Policy(trained.networks, trained.scaling)
    encodings = [policy.encode(task.features) for task in tasks]
    orders = [policy.order(encoded) for encoded in encodings]
    first = play(policy, tasks, encodings, orders, None)
    found = first.placing.placements()
    stuck: list[int] = np.flatnonzero(first.placing.failed).tolist()
    if stuck:
        crowded = [tasks[i] for i in stuck]
        by_size = [np.argsort(-task.sizes_bytes, kind="stable") for task in crowded]
        again = play(policy, crowded, [encodings[i] for i in stuck], by_size, None)
        if again.placing.failed.any():
            _decline(again, crowded, by_size)
        for i, placement in zip(stuck, again.placing.placements()):
            found[i] = placement
    return found


def _decline(episodes: Episodes, tasks: Sequence[TableSet], orders: Sequence[Ints]) -> None:
    placing = episodes.placing
    at = int(np.flatnonzero(placing.failed)[0])
    task, order = tasks[at], orders[at]
    devices = placing.chosen[at, : task.tables]
    sizes = task.sizes_bytes[order]
    # The first table after which a device holds more than it has room for.
    held = np.zeros((task.tables, task.devices), dtype=np.int64)
    held[np.arange(task.tables), devices] = sizes
    over = (np.cumsum(held, axis=0) > task.capacity_bytes).any(axis=1)
    table = task.problem.tables[order[int(over.argmax())]]
    raise Infeasible(
        f"table '{table.name}' ({task.problem.weight_bytes(table)} bytes) has no device with room, neither in order of "
        f"cost nor of size: {int(sizes.sum())} bytes of tables on {task.devices} devices of {task.capacity_bytes}"
    )
