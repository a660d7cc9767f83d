"""Placing with trained networks: the best device with room for every table, without measuring anything."""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.learning.training import one_thread
from shardbench.tasks.task import TableSet

from .acting import Policy, play
from .training import Trained


def place(trained: Trained, tasks: Sequence[TableSet]) -> list[Ints]:
    """Device of every table of every task, int64 [tables] a task; all tasks at once.

    Raises Infeasible, naming the task, where a table has no device with room: in the order of
    predicted cost, and then, once more, largest table first (deviation 2).
    """
    with one_thread():
        policy = Policy(trained.networks, trained.scaling)
        encodings = [policy.encode(task.features) for task in tasks]
        first = play(policy, tasks, encodings, None, masked=True).placing
        found = first.placements()
        stuck = np.flatnonzero(first.failed).tolist()
        if stuck:
            crowded = [tasks[i] for i in stuck]
            by_size = [np.argsort(-task.sizes_bytes, kind="stable") for task in crowded]
            chosen = [encodings[i] for i in stuck]
            again = play(policy, crowded, chosen, None, masked=True, orders=by_size).placing
            for i, placement, failed in zip(stuck, again.placements(), again.failed):
                if failed:
                    raise Infeasible(_reason(tasks[i]))
                found[i] = placement
    return found


def _reason(task: TableSet) -> str:
    return (
        f"task {task.problem.name}: a table has no device with room, neither in order of cost nor of size: "
        f"{int(task.sizes_bytes.sum())} bytes of tables on {task.devices} devices of {task.capacity_bytes}"
    )
