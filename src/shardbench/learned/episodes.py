"""Placing tables one after the other in many episodes at once.

One step places one table in every episode; nothing loops over episodes or devices. Episodes may
be of different tasks: shorter ones are padded with tables of no size, smaller ones with devices
that are never legal.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardbench.base.arrays import Bools, Floats32, Ints
from shardbench.base.errors import Infeasible
from shardbench.learned.tasks.task import TableSet

NO_DEVICE = -1
"""Free bytes of a padding device: below every table's size, zero included."""


class Placing:
    """The state of E episodes of at most T tables on at most D devices.

    ``tasks`` [E] and ``orders`` [E] (a permutation of each task's tables: the order of placing);
    ``vectors`` float32 [E, T, H] are what to add up per device, in the order of placing, zeros where
    padded; ``start`` float32 [H] is what a device's sum starts from (zeros if not given).

    ``free`` int64 [E, D] bytes, ``held`` int64 [E, D] tables, ``sums`` float32 [E, D, H], ``step``,
    ``legal_at`` bool [E, T, D] and ``chosen`` int64 [E, T] are kept up to date; ``failed`` bool [E]
    tells where a table had no legal device, ``failed_at`` int64 [E] at which step the first such one came.
    """

    def __init__(
        self, tasks: Sequence[TableSet], orders: Sequence[Ints], vectors: Floats32, start: Floats32 | None = None
    ) -> None:
        episodes, steps, width = vectors.shape
        self.steps = int(steps)
        self.tables: Ints = np.array([task.tables for task in tasks], dtype=np.int64)
        self.devices: Ints = np.array([task.devices for task in tasks], dtype=np.int64)
        self.orders, self._vectors = orders, vectors
        most = int(self.devices.max())
        capacity = np.array([task.capacity_bytes for task in tasks], dtype=np.int64)
        real = np.arange(most) < self.devices[:, None]
        self.real: Bools = real
        self.free: Ints = np.where(real, capacity[:, None], NO_DEVICE)
        self.sizes: Ints = np.zeros((episodes, self.steps), dtype=np.int64)
        for row, task, order in zip(self.sizes, tasks, orders):
            row[: task.tables] = task.sizes_bytes[order]
        self.held: Ints = np.zeros((episodes, most), dtype=np.int64)
        self.sums: Floats32 = np.zeros((episodes, most, width), dtype=np.float32)
        if start is not None:
            self.sums += start
        self.legal_at: Bools = np.zeros((episodes, self.steps, most), dtype=np.bool_)
        self.chosen: Ints = np.zeros((episodes, self.steps), dtype=np.int64)
        self.failed: Bools = np.zeros(episodes, dtype=np.bool_)
        self.failed_at: Ints = np.zeros(episodes, dtype=np.int64)
        self.step = 0
        self._rows = np.arange(episodes)
        self._ragged = bool((self.tables != self.steps).any())

    def legal(self) -> Bools:
        """Tell which devices have room for the current table, bool [E, D]; at least one an episode.

        An episode without any is marked as failed and may use its emptiest device, so that the
        others can go on; its placement is not legal and must not be used.
        """
        legal: Bools = self.free >= self.sizes[:, self.step, None]
        if not legal.all():
            stuck = ~legal.any(axis=1)
            if stuck.any():
                self.failed_at[stuck & ~self.failed] = self.step
                self.failed |= stuck
                # After a failure free bytes may be negative: padding must stay the worst choice.
                free = np.where(self.real, self.free, np.iinfo(np.int64).min)
                legal[stuck, free[stuck].argmax(axis=1)] = True
        self.legal_at[:, self.step] = legal
        return legal

    def put(self, devices: Ints) -> Floats32:
        """Place the current table of every episode on ``devices`` int [E]; gives the new sums there, [E, H]."""
        at = (self._rows, devices)
        step = self.step
        self.free[at] -= self.sizes[:, step]
        self.held[at] += step < self.tables if self._ragged else 1
        new: Floats32 = self.sums[at] + self._vectors[:, step]
        self.sums[at] = new
        self.chosen[:, step] = devices
        self.step = step + 1
        return new

    def placements(self) -> list[Ints]:
        """Give the device of every table in the task's own order, int64 [tables] an episode."""
        placements = []
        for devices, order in zip(self.chosen, self.orders):
            placement = np.empty(len(order), dtype=np.int64)
            placement[order] = devices[: len(order)]
            placements.append(placement)
        return placements


Play = Callable[[Sequence[TableSet], Sequence[Ints] | None], Placing]
"""Finished episodes, one a task: places tasks in these orders [tables], its own orders for None."""


def place_or_by_size(tasks: Sequence[TableSet], play: Play) -> list[Ints]:
    """Place every table of every task, int64 [tables] a task; ``play`` takes devices with room where there are any.

    Raises Infeasible, naming the task and the table, where a table finds none: in ``play``'s own
    order, and then, once more, largest table first.
    """
    first = play(tasks, None)
    placements = first.placements()
    stuck: list[int] = np.flatnonzero(first.failed).tolist()
    if stuck:
        by_size = [np.argsort(-tasks[i].sizes_bytes, kind="stable") for i in stuck]
        again = play([tasks[i] for i in stuck], by_size)
        for at, (i, placement) in enumerate(zip(stuck, again.placements())):
            if again.failed[at]:
                raise Infeasible(_reason(tasks[i], int(by_size[at][again.failed_at[at]])))
            placements[i] = placement
    return placements


def _reason(task: TableSet, number: int) -> str:
    return (
        f"task {task.problem.name}: table '{task.problem.tables[number].name}' ({int(task.sizes_bytes[number])} bytes) "
        "has no device with room, neither in the policy's order nor largest first: "
        f"{int(task.sizes_bytes.sum())} bytes of tables on {task.devices} devices of {task.capacity_bytes}"
    )
