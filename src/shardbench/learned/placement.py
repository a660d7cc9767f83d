"""Placing with trained networks, and once more by size where that leaves a table without room."""

from collections.abc import Callable, Sequence

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.task import TableSet

Play = Callable[[Sequence[int], Sequence[Ints] | None], Placing]
"""Finished episodes, one a task: places tasks of these numbers in these orders [tables], its own orders for None."""


def place_or_by_size(tasks: Sequence[TableSet], play: Play) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task; ``play`` takes devices with room where there are any.

    Raises Infeasible, naming the task and the table, where a table finds none: in ``play``'s own
    order, and then, once more, largest table first.
    """
    first = play(range(len(tasks)), None)
    placements = first.placements()
    stuck: list[int] = np.flatnonzero(first.failed).tolist()
    if stuck:
        by_size = [np.argsort(-tasks[i].sizes_bytes, kind="stable") for i in stuck]
        again = play(stuck, by_size)
        for at, (i, placement) in enumerate(zip(stuck, again.placements())):
            if again.failed[at]:
                raise Infeasible(_reason(tasks[i], by_size[at], again.chosen[at, : tasks[i].tables]))
            placements[i] = placement
    return placements


def _reason(task: TableSet, order: Ints, devices: Ints) -> str:
    sizes = task.sizes_bytes[order]
    # The first table after which a device holds more than it has room for.
    table_bytes = np.zeros((task.tables, task.devices), dtype=np.int64)
    table_bytes[np.arange(task.tables), devices] = sizes
    over = (np.cumsum(table_bytes, axis=0) > task.capacity_bytes).any(axis=1)
    at = int(over.argmax())
    table = task.problem.tables[order[at]]
    return (
        f"task {task.problem.name}: table '{table.name}' ({int(sizes[at])} bytes) has no device with room, neither in "
        f"the policy's order nor largest first: {int(sizes.sum())} bytes of tables on {task.devices} devices of "
        f"{task.capacity_bytes}"
    )
