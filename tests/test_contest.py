"""Contests and their trainings: none is made twice, and the cheapest of some is named."""

import numpy as np
import pandas as pd
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import cheapest, fit_strategy, judge, judge_tasks, learner_of, place_all
from shardbench.studies.contests.contest_tasks import best_of, over_rows, ratios, task_table
from shardbench.trials.discovery import get_strategy


def tasks(count):
    shapes = [(1000, 8), (400, 16), (3000, 32), (50, 8), (700, 16)]
    on = machine(devices=2)
    return tuple(Task.of(RandomWorkload(shapes, batch_size=64, pooling=4, seed=i).problem(on)) for i in range(count))


def counted(some):
    """The same tasks with their expected loads as the counted ones, which a contest judges by."""
    return tuple(Task(problem=t.problem, features=t.features, expected=t.expected, counted=t.expected) for t in some)


def test_a_training_is_kept_with_what_it_took(tmp_path):
    some, budget = tasks(2), Budget(fit_s=30.0)
    # What a first training imports would count as its seconds.
    fit_strategy("dreamshard", some, budget, 0, tmp_path / "imports")
    strategy, cpu_s = fit_strategy("dreamshard", some, budget, 0, tmp_path)
    assert len(list((tmp_path / "training").glob("dreamshard-*.pt"))) == 1
    again, of_that = fit_strategy("dreamshard", some, budget, 0, tmp_path)
    assert of_that > 0.5 * cpu_s, "what a training took does not vanish when it is taken up"
    mine, theirs = (place_all(s, some, budget, 0).judged for s in (strategy, again))
    assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


def test_who_learns_nothing_keeps_nothing(tmp_path):
    fit_strategy("greedy-size", (), Budget(fit_s=0.5), 0, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="greedy-size does not learn"):
        learner_of("greedy-size")


def test_the_cheapest_is_named_with_its_mean():
    some, names = counted(tasks(3)), ("greedy-size", "greedy-dim", "greedy-lookup")
    budget = Budget(fit_s=1.0)
    of_each = {}
    for name in names:
        strategy, _ = fit_strategy(name, (), budget, 0, None)
        of_each[name] = judge(place_all(strategy, some, budget, 0).judged, some)["kernel_ms"]
    best, best_ms = cheapest(names, some, "kernel_ms")
    assert best_ms == of_each[best] == min(of_each.values())


def test_a_contest_keeps_the_cost_of_every_task():
    some = counted(tasks(3))
    every = place_all(get_strategy("greedy-dim"), some, Budget(fit_s=1.0), 0)
    two_of_three = (*every.judged[:2], None)
    judged = judge_tasks(two_of_three, some)
    row = judged.of_tasks()
    assert row["task_cost_ms"][2] is None
    assert judged.means() == judge(two_of_three, some)
    assert np.mean(row["task_cost_ms"][:2]) == pytest.approx(judged.means()["cost_ms"], abs=1e-6)
    assert np.mean(row["task_kernel_ms"][:2]) == pytest.approx(judged.means()["kernel_ms"], abs=1e-6)
    assert (judged.means()["tasks"], judged.means()["infeasible"]) == (2, 1)
    with pytest.raises(BadInput, match="no task was placed"):
        judge_tasks((None,) * 3, some)


def test_tasks_are_paired_with_seeds_averaged_and_rows_weighted_alike():
    def rows(task, **of_strategies):
        return [
            {"task": task, "split": "test", "strategy": name, "seed": seed, "task_cost_ms": costs}
            for name, seeds in of_strategies.items()
            for seed, costs in enumerate(seeds)
        ]

    table = task_table(
        pd.DataFrame(
            [
                *rows("a", ours=[(1.0, 2.0, 4.0), (3.0, 2.0, None)], dim=[(4.0, 1.0, 8.0)], size=[(9.0, 9.0, 9.0)]),
                *rows("b", ours=[(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], dim=[(8.0, 2.0, 1.0)]),
            ]
        )
    )
    assert table.columns.tolist() == ["task", "split", "number", "ours", "dim", "size"]
    a, b = (table[table["task"] == name] for name in "ab")
    assert a["ours"].tolist()[:2] == [2.0, 2.0]
    assert (best_of(a, ("size", "dim")), best_of(b, ("size", "dim")), best_of(b, ("size",))) == ("dim", "dim", None)
    assert ratios(a, "dim", "ours").tolist() == [2.0, 0.5], "a task that one seed did not place is no pair"
    # Task 0: 2 on row a and 8 on row b; task 1: a half and 2.
    assert over_rows(table, {"a": "dim", "b": "dim"}, "ours") == pytest.approx([4.0, 1.0])
    assert over_rows(table, {"a": "dim", "c": "dim"}, "ours") == []
