"""Studies of AutoShard: its own tasks, DreamShard's, transfer, unrolls, its region, seconds."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import DLRM_ROWS, POOL_TABLES, TaskRow, join, machine_of
from shardbench.learned.tasks.task import one_hot, random_placements
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import (
    BEST_FOUND,
    SIDES,
    SPLITS,
    beside,
    fit_strategy,
    judge,
    pool_of,
    tasks_of,
    trained_with,
)
from shardbench.studies.contests.contest_study import contest_means, contest_study, transfer_study
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.regions.placement_region import placement_region
from shardbench.studies.study import Plot, Row, Study, Tables, grid
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import RulesOnly, answer_of

from .. import AutoShard

OURS = "autoshard"
UNTRAINED = "autoshard-untrained"
RANDOM = "shuffle"
LOOKUP = "greedy-lookup"
GREEDIES = ("greedy-size", "greedy-dim", LOOKUP, "greedy-size-lookup")
COST_GREEDY = "greedy-cost"
"""It looks at the oracle's own costs of single tables."""
DREAMSHARD = "dreamshard"
SEARCH = "search"
CAP_BYTES = 7 * 2**30  # deviation 11
WIDTHS = (16, 32)
ROWS = {
    row.name: row
    for row in (
        TaskRow(name=f"Auto-{tables} ({devices})", tables=tables, devices=devices, widths=WIDTHS, cap_bytes=CAP_BYTES)
        for tables, devices in ((40, 4), (80, 8), (120, 8), (40, 2))
    )
}
"""The repository's tasks are 80 tables of widths 16 and 32 on 8 devices of 7 GB; the others test transfer."""
CONTEST_ROWS = ("Auto-40 (4)", "Auto-80 (8)")
EQUAL_ROWS = {row.name: row for row in DLRM_ROWS}
DRAWN = (*GREEDIES[1:], OURS, COST_GREEDY, DREAMSHARD, SEARCH, BEST_FOUND)
"""Plots show these; a strategy far below random would flatten all others."""
ROOMY_BYTES = 40 << 30
"""Memory of a device that holds its share of all 856 tables."""


def _own_columns(task: str, split: str, strategy: str, part: pd.DataFrame) -> Mapping[str, object]:
    """Give the balance, and DreamShard's cost, which has a bound."""
    cost_ms, bound_ms = float(part["cost_ms"].mean()), float(part["bound_ms"].mean())
    return {
        "balance_min_over_max": float(part["balance"].mean()),
        "cost_ms_mean": cost_ms,
        "cost_bound_ms": bound_ms,
        "cost_over_bound_pct": 100.0 * (cost_ms / bound_ms - 1.0),
    }


def _kernel_contest(
    *,
    name: str,
    title: str,
    task_rows: Mapping[str, TaskRow],
    quick_rows: Collection[str],
    strategies: Sequence[str],
    shown: tuple[str, ...],
    bars: bool,
    version: int,
    same_as: tuple[str, str] | None = None,
) -> Study:
    """Make a contest by what AutoShard balances: kernel time of the slowest device, over 50 tasks of a row."""

    def tables(rows: pd.DataFrame) -> Tables:
        asking = (COST_GREEDY, SEARCH, BEST_FOUND)
        means = contest_means(rows, task_rows, RANDOM, _own_columns, asking=asking, measure="kernel_ms")
        return {name: means, f"{name}_tasks": task_table(rows, "kernel_ms")}

    gain = Plot(
        title="Embedding kernel time of the slowest device: speed-up over random placement, in percent.",
        table=name, x="task", y="vs_random_pct", series="strategy", facet="split", shown=shown, bars=bars,
    )  # fmt: skip
    return contest_study(
        name=name, title=title, version=version, task_rows=task_rows, quick_rows=quick_rows, strategies=strategies,
        seeded=(RANDOM, OURS, UNTRAINED, DREAMSHARD), measure="kernel_ms", same_as=same_as, summary=tables,
        plots=(gain,),
    )  # fmt: skip


OWN_TASKS = _kernel_contest(
    name="table",
    title="AutoShard's tasks (widths 16 and 32): kernel time of the slowest device, min/max balance, over 50 tasks.",
    task_rows={name: ROWS[name] for name in CONTEST_ROWS},
    quick_rows=CONTEST_ROWS,
    strategies=(RANDOM, *GREEDIES, OURS, UNTRAINED, COST_GREEDY, DREAMSHARD, SEARCH, BEST_FOUND),
    shown=DRAWN,
    bars=True,
    version=2,
)
EQUAL_WIDTHS = _kernel_contest(
    name="equal",
    title="The ten equal-width rows of DreamShard's table, by what AutoShard balances: kernel time; heuristics beside "
    "it.",
    task_rows=EQUAL_ROWS,
    quick_rows=("DLRM-20 (4)",),
    strategies=(RANDOM, *GREEDIES, OURS),
    shown=DRAWN[:4],
    bars=False,  # the rows have an order
    version=1,
    same_as=("dreamshard", "table"),
)
TRANSFER = transfer_study(
    title="AutoShard trained on one row and used, untuned, on other numbers of tables and devices and on unseen "
    "tables.",
    version=2,
    strategy=OURS,
    greedies=GREEDIES,
    measure="kernel_ms",
    beside="balance",
    task_rows=ROWS,
    training_rows=CONTEST_ROWS,
    columns=("backend", "used_on", "task_set", "unseen_tables_pct", "kernel_ms", "best_greedy", "best_greedy_ms"),
)


def _train_by_unroll(folder: Path, task: str, seed: int) -> Row:
    """Train by the published settings as they are; kernel time of the plans for test tasks."""
    tasks = {split: tasks_of(EQUAL_ROWS[task], split, folder) for split in SPLITS}
    trained, _ = trained_with(AutoShard(), tasks["train"], seed, folder)
    placements = AutoShard().place(trained, tasks["test"])
    ours = judge(placements, tasks["test"])
    largest = [np.bincount(placement).max() / len(placement) for placement in placements]
    return {
        "steps": trained.settings.unroll,
        "kernel_ms": ours["kernel_ms"],
        "balance": ours["balance"],
        "largest_share_pct": 100.0 * float(np.mean(largest)),
        **beside(RANDOM, GREEDIES, tasks["test"], "kernel_ms", seed),
    }


UNROLL = Study(
    name="unroll",
    title="AutoShard with unrolls of 100 steps, as published, on rows of more than 100 tables; `equal` has "
    "longer ones.",
    # A training takes a minute, too long for a quick run. What is looked for happens to some trainings only, so that
    # none here, with a seed a row, does not mean never.
    cells=lambda quick: [] if quick else grid(task=[row.name for row in DLRM_ROWS if row.tables > 100], seed=[0]),
    judge=_train_by_unroll,  # deviation 8
    uses=(OURS, *GREEDIES, RANDOM),
    columns=("backend", "steps", "kernel_ms", "largest_share_pct", "random_ms", "best_greedy", "best_greedy_ms"),
)
REGION = placement_region(
    title="Kernel time of the slowest device, the best heuristic's over AutoShard's, at 64 points of four knobs. Each "
    "point is one short training for tasks of its own; `effort` is the share of the 100,000 published steps.",
    strategy=OURS,
    scaled=("total_steps",),
    greedies=GREEDIES,
    judged="kernel_ms",
)
PLACEMENTS = 16
"""Drawn for a task, to hold the cost network's predictions against."""


def _predict(folder: Path, task: str, seed: int) -> list[Row]:
    """Train once, then one row a test task: errors of predicted device times, medians over random placements.

    Beside the network's stands the error of adding up what each table takes alone, which it would have to beat: the
    true times of single tables, not predictions.
    """
    from ..networks import AutoShardPolicy  # noqa: PLC0415 - needs torch, which listing does not

    training, tests = (tasks_of(ROWS[task], split, folder) for split in SPLITS)
    trained, _ = trained_with(AutoShard(), training, seed, folder)
    policy, oracle = AutoShardPolicy(trained.networks, trained.scaling), SimulatedOracle(counted=True)
    rows: list[Row] = []
    rng = np.random.default_rng([seed, 5])
    for number, test in enumerate(tests):
        drawn = random_placements(test, PLACEMENTS, rng)
        placements, costs = one_hot(drawn, test.devices), oracle.measure(test, drawn)
        true_ms = costs.forward_ms + costs.backward_ms
        sums = placements @ policy.encode(test.features) + policy.dummy
        predicted_ms = policy.device_ms(sums.reshape(-1, sums.shape[-1]).astype(np.float32)).reshape(true_ms.shape)
        alone_ms = np.sum(oracle.measure_sets(test, np.arange(test.tables)[:, None]), axis=0)
        errors = [100.0 * np.median(np.abs(ms / true_ms - 1.0)) for ms in (predicted_ms, placements @ alone_ms)]
        rows.append({"number": number, "network_error_pct": float(errors[0]), "sum_error_pct": float(errors[1])})
    return rows


PREDICTION = Study(
    name="prediction",
    title="Errors of the cost network on devices of 50 unseen tasks under random placement, in percent, beside those "
    "of adding up the tables' own times.",
    cells=lambda quick: grid(task=CONTEST_ROWS[:1] if quick else CONTEST_ROWS, seed=range(1 if quick else 3)),
    judge=_predict,
    uses=(OURS,),
    columns=("number", "backend", "network_error_pct", "sum_error_pct"),
)
REPEATS = 7


def _time_placing(folder: Path, strategy: str, tables: int, devices: int) -> Row:
    """Train briefly (placing costs the same whatever was learned), place a few times, each after the heuristic.

    ``busy_threads`` are CPU seconds over wall seconds of our plans; ``times_beside`` is the median of ours over the
    heuristic's CPU seconds, pair by pair.
    """
    budget, row = Budget(fit_s=20.0), ROWS[CONTEST_ROWS[1]]
    trained, _ = fit_strategy(strategy, tasks_of(row, "train", folder), budget, 0, folder)
    pools = [pool_of(side, folder, WIDTHS) for side in SIDES]
    own, others = np.arange(min(tables, POOL_TABLES)), np.arange(max(0, tables - POOL_TABLES))
    parts = ((pools[0], own), (pools[1], others))
    question = RulesOnly(join(parts, machine_of(row.machine, devices, ROOMY_BYTES), "placing").problem)
    heuristic = get_strategy(LOOKUP)
    pairs = [
        (answer_of(question, heuristic, budget).spent, answer_of(question, trained, budget, fitted=True).spent)
        for _ in range(REPEATS)
    ]
    ours, its = np.array([[our.plan_cpu_s, its.plan_cpu_s] for its, our in pairs]).T
    return {
        "plan_cpu_s_median": float(np.median(ours)),
        "plan_cpu_s_max": float(ours.max()),
        "busy_threads": float(ours.sum() / sum(our.plan_s for _, our in pairs)),
        "beside": LOOKUP,
        "beside_cpu_s_median": float(np.median(its)),
        "times_beside": float(np.median(ours / its)),
        "n": REPEATS,
    }


PLACING = Study(
    name="placing",
    title="CPU seconds to place 80 to 856 tables on 8 devices with a trained policy, beside the lookup heuristic's.",
    version=2,
    cells=lambda quick: grid(strategy=[OURS], tables=(80,) if quick else (80, 200, 300, 400, 600, 856), devices=[8]),
    judge=_time_placing,
    backend="measured",
    exclusive=True,
    uses=(LOOKUP,),
    columns=("backend", "plan_cpu_s_median", "plan_cpu_s_max", "busy_threads", "beside_cpu_s_median", "times_beside"),
)


def studies() -> Sequence[Study]:
    """Give the studies in the order in which they run."""
    return (OWN_TASKS, EQUAL_WIDTHS, TRANSFER, UNROLL, REGION, PREDICTION, PLACING)
