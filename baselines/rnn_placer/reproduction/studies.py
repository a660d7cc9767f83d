"""A study of the RNN baseline: its best devices beside its samples, and tables as they come beside sorted ones."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import SCALARS
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import DLRM_ROWS
from shardbench.learned.tasks.task import Task, part, random_placements
from shardbench.studies.contests.contest import SPLITS, beside, judge, tasks_of, trained_with
from shardbench.studies.study import Plot, Row, Study

from .. import RnnPlacer

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained

OURS = "rnn-rl"
RANDOM = "shuffle"
GREEDIES = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
AS_GIVEN, BY_COST = "as given", "by cost"
DIM, POOLING = SCALARS.index("dim"), SCALARS.index("pooling")
SAMPLES = 64
"""Placements drawn from the policy for a task; asking the oracle for the cheapest is as many calls."""
ROWS = MappingProxyType(
    {row.name: row for row in DLRM_ROWS if row.name in ("DLRM-20 (4)", "DLRM-40 (4)", "DLRM-40 (8)", "DLRM-80 (8)")}
)
"""Two numbers of tables on each number of devices; larger rows take minutes a training."""
SEEDS = MappingProxyType({name: range(3) if name == "DLRM-20 (4)" else range(1) for name in ROWS})
"""Seeds by row: how they differ is asked where a training is shortest."""


def by_cost(task: Task) -> Task:
    """Give the same task with its tables listed by width times pooling factor, dearest first.

    That is the cost of the papers' lookup heuristic: it asks no oracle, and the RNN has no cost network.
    """
    costs = task.features[:, DIM] * task.features[:, POOLING]
    return part(task, np.argsort(-costs, kind="stable"))


def sample(trained: "AnyTrained", tasks: Sequence[Task], count: int, rng: np.random.Generator) -> list[Ints]:
    """Draw ``count`` placements a task from the policy, int64 [at most count, tables]: those in which all tables fit.

    Raises BadInput where none of a task's does.
    """
    from shardbench.learned.training import one_thread  # noqa: PLC0415 - needs torch, which listing does not

    from ..networks import play  # noqa: PLC0415 - as above

    draws = []
    for task in tasks:
        scaled, order = trained.scaling(task.features), np.arange(task.tables)
        with one_thread():
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


def _acting(folder: Path, task: str, strategy: str, order: str, seed: int) -> list[Row]:
    """Train once, then one row a way of acting."""
    tasks = {split: tasks_of(ROWS[task], split, folder) for split in SPLITS}
    others = beside(RANDOM, GREEDIES, tasks["test"], "cost_ms", seed)
    if order == BY_COST:
        tasks = {split: tuple(map(by_cost, own)) for split, own in tasks.items()}
    trained, _ = trained_with(RnnPlacer(), tasks["train"], seed, folder)
    return [{"acting": acting, **numbers, **others} for acting, numbers in act(trained, tasks["test"], seed).items()]


def act(trained: "AnyTrained", tasks: Sequence[Task], seed: int) -> dict[str, Row]:
    """Give the mean cost over test tasks, and how like round robin the plans are, by way of acting.

    ``in_turn_pct`` as the function; ``different_plans`` of as many tasks; ``oracle_calls_a_task`` in placing.
    """
    rng = np.random.default_rng([seed, 3])
    draws = sample(trained, tasks, SAMPLES, rng)
    randoms = [random_placements(task, SAMPLES, rng) for task in tasks]
    return {
        "best device": _row(tasks, RnnPlacer().place(trained, tasks), 0),
        "one sample": _row_of_all(tasks, draws),
        f"best of {SAMPLES} samples": _row(tasks, cheapest_of(tasks, draws), SAMPLES),
        f"best of {SAMPLES} random placements": _row(tasks, cheapest_of(tasks, randoms), SAMPLES),
        "dealt out": _row(tasks, [deal(task) for task in tasks], 0),
    }


def _row(tasks: Sequence[Task], placements: Sequence[Ints], calls: int) -> Row:
    means = judge(placements, tasks)
    return {
        "cost_ms": means["cost_ms"],
        "in_turn_pct": float(np.mean([in_turn_pct(*each) for each in zip(tasks, placements, strict=True)])),
        "different_plans": len({placement.tobytes() for placement in placements}),
        "oracle_calls_a_task": calls,
    }


def _row_of_all(tasks: Sequence[Task], draws: Sequence[Ints]) -> Row:
    """Give the expected cost of one sample: the mean over all of them."""
    oracle = SimulatedOracle(counted=True)
    means = [float(oracle.measure(task, each).overall_ms.mean()) for task, each in zip(tasks, draws, strict=True)]
    return {**_row(tasks, [each[0] for each in draws], 0), "cost_ms": float(np.mean(means))}


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a task, order and way of acting: mean and spread over seeds."""
    return rows.groupby(["task", "order", "acting"], sort=False, as_index=False).agg(
        backend=("backend", "first"),
        cost_ms_mean=("cost_ms", "mean"),
        cost_ms_std=("cost_ms", "std"),
        n=("seed", "size"),
        random_ms=("random_ms", "mean"),
        best_greedy=("best_greedy", "first"),
        best_greedy_ms=("best_greedy_ms", "mean"),
        in_turn_pct=("in_turn_pct", "mean"),
        different_plans=("different_plans", "mean"),
        oracle_calls_a_task=("oracle_calls_a_task", "max"),
    )


ACTING = Study(
    name="acting",
    title="The RNN's plans for test tasks by how it acts, trained on tables in the task's order and on tables by cost.",
    cells=lambda quick: [
        {"task": name, "strategy": OURS, "order": order, "seed": seed}
        for name in (list(ROWS)[:1] if quick else ROWS)
        for order in (AS_GIVEN, BY_COST)
        for seed in (SEEDS[name][:1] if quick else SEEDS[name])
    ],
    judge=_acting,
    summary=_table,
    uses=(*GREEDIES, RANDOM),
    columns=("backend", "acting", "cost_ms", "random_ms", "best_greedy", "best_greedy_ms"),
    plots=(
        Plot(
            title="Cost (ms) of the RNN's plans for test tasks by how it acts; means over seeds.",
            table="acting", x="task", y="cost_ms_mean", series="acting", facet="order", bars=True,
        ),
    ),
)  # fmt: skip


def studies() -> Sequence[Study]:
    """Give the one study of this folder."""
    return (ACTING,)
