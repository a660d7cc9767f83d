"""Ways to get a placement out of a trained RNN, and the two that use its order of tables alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import SCALARS
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.subsets import part
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Trained, one_thread

from ..decoder import play
from ..networks import RnnNetworks

DIM, POOLING = SCALARS.index("dim"), SCALARS.index("pooling")


def by_cost(task: Task) -> Task:
    """Give the same task with its tables listed by width times pooling factor, dearest first.

    That is the cost of the papers' lookup heuristic: it asks no oracle, and the RNN has no cost network.
    """
    costs = task.features[:, DIM] * task.features[:, POOLING]
    return part(task, np.argsort(-costs, kind="stable"))


@one_thread()
def sample(
    trained: Trained[RnnNetworks, Any], tasks: Sequence[Task], count: int, rng: np.random.Generator
) -> list[Ints]:
    """Draw ``count`` placements a task from the policy, int64 [at most count, tables]: those in which all tables fit.

    Raises BadInput where none of a task's does.
    """
    draws = []
    for task in tasks:
        scaled, order = trained.scaling(task.features), np.arange(task.tables)
        placing = play(trained.networks, task, scaled, order, episodes=count, rng=rng)
        if placing.failed.all():
            raise BadInput(f"task {task.problem.name}: none of {count} sampled placements fits; draw more of them")
        draws.append(np.stack(placing.placements())[~placing.failed])
    return draws


def cheapest_of(tasks: Sequence[Task], placements: Sequence[Ints]) -> list[Ints]:
    """Pick each task's placement, out of int64 [n, tables], that the oracle calls cheapest under training profiles."""
    oracle = SimulatedOracle()
    return [each[int(oracle.measure(task, each).overall_ms.argmin())] for task, each in zip(tasks, placements)]


def deal(task: Task) -> Ints:
    """Place by round robin, int64 [tables]: tables dealt out in turn as they are listed, past devices without room."""
    placing = Placing([task], [np.arange(task.tables)], np.zeros((1, task.tables, 0), dtype=np.float32))
    for table in range(task.tables):
        turns = (np.arange(task.devices) - table) % task.devices
        placing.put(np.where(placing.legal(), turns, task.devices).argmin(axis=1))
    if placing.failed[0]:
        raise BadInput(f"task {task.problem.name}: dealing its tables out leaves one without room")
    return placing.placements()[0]


def in_turn_pct(task: Task, placement: Ints) -> float:
    """Count, of runs of as many tables as there are devices, those that use every device once, in per cent.

    100 is round robin; of random placements it is ``D! / D^D``.
    """
    rows = np.lib.stride_tricks.sliding_window_view(placement, task.devices)
    different = (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(axis=1)
    return 100.0 * float(different.mean())
