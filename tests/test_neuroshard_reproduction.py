"""NeuroShard's reproduction: strategies compared task by task, the numbers behind its claims, cells of studies."""

import importlib

import numpy as np
import pandas as pd
import pytest
from learned_tasks import random_task

from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.studies.claim import Evidence
from shardbench.studies.contests.contest_tasks import task_table
from shardbench.studies.reproduction import find_reproduction

claims = importlib.import_module("shardbench.baselines.neuroshard.reproduction.claims")
studies = importlib.import_module("shardbench.baselines.neuroshard.reproduction.studies")
training = importlib.import_module("shardbench.baselines.neuroshard.training")


def rows_of(**costs):
    """Rows of strategies, one a seed: cost of three tasks, of which None was declined."""
    return pd.DataFrame(
        [
            {
                "strategy": name.replace("_", "-"), "seed": seed, "task": "table", "split": "test",
                "task_cost_ms": ms, "task_bound_ms": (5.0, 5.0, 5.0), "kernel_ms": 1.0, "balance": 0.5,
                "segments_a_table": 1.0, "oracle_calls": 7, "fit_cpu_s": 1.0, "plan_cpu_s": 0.1,
            }
            for name, seeds in costs.items()
            for seed, ms in enumerate(seeds)
        ]
    )  # fmt: skip


ROWS = rows_of(
    neuroshard=[(10.0, 20.0, 30.0), (10.0, 20.0, 50.0)],
    greedy_dim=[(11.0, None, 44.0)],
    greedy_size=[(9.0, 60.0, 80.0)],
    neuroshard_untrained=[(20.0, 20.0, 80.0)],
)


def test_strategies_stand_beside_ours_on_the_tasks_that_both_placed():
    table = studies.compare(ROWS, task_table(ROWS)).set_index("strategy")
    assert table.index[0] == "neuroshard"
    ours, dim = table.loc["neuroshard"], table.loc["greedy-dim"]
    assert (ours["cost_ms"], ours["seeds"], ours["infeasible"]) == (pytest.approx(70 / 3), 2, 0)
    assert np.isnan(ours["over_ours_pct"])
    # 11 / 10 and 44 / 40.
    assert (dim["over_ours_pct"], dim["pairs"], dim["infeasible"]) == (pytest.approx(10.0), 2, 1)
    assert dim["cost_ms"] == pytest.approx(27.5)
    assert dim["over_bound_pct"] == pytest.approx(100 * ((11 * 44) ** 0.5 / 5 - 1))


def test_claims_are_ratios_task_by_task():
    tables = {"table_tasks": task_table(ROWS), "production_tasks": task_table(ROWS)}
    found = claims.observations(Evidence(records=(), tables=tables))
    # The best other is that of the task: greedy-size, greedy-size, since the other declined the task, and greedy-dim.
    assert found["largest-margin"] == pytest.approx([0.9, 3.0, 1.1])
    assert found["production-cost-stand-in"] == found["largest-margin"]
    assert found["pre-training-helps"] == pytest.approx([2.0, 1.0, 2.0])
    assert "halving-helps" not in found
    known = {claim.name for claim in find_reproduction("neuroshard").claims}
    assert known > set(found)
    assert claims.observations(Evidence(records=(), tables={})) == {}
    alone = task_table(rows_of(neuroshard=[(1.0, 1.0, 1.0)]))
    assert claims.observations(Evidence(records=(), tables={"table_tasks": alone})) == {}


def test_errors_are_of_unseen_tables():
    tasks = [random_task(8, i, batch_size=24_000) for i in range(2)]
    settings = training.NeuroShardSettings(samples=400, epochs=20, batch=64)
    run = training.NeuroShardTraining(tasks, SimulatedOracle(), 0, settings)
    unseen = [random_task(8, 9, batch_size=24_000)]
    learned, drawn = studies.unseen_errors(run.train(), unseen), studies.unseen_errors(run.untrained(), unseen)
    assert learned["compute_ms2"] < drawn["compute_ms2"]
    assert learned["compute_spearman"] > max(0.5, drawn["compute_spearman"])
    assert set(learned) == {f"{n}_{what}" for n in training.NETWORKS for what in ("ms2", "error_pct", "spearman")}


def test_all_others_are_asked_and_who_draws_with_several_seeds():
    asked = [cell["strategy"] for cell in find_reproduction("neuroshard").study("table").cells(False)]
    assert [asked.count(name) for name in (studies.OURS, "autoshard", "greedy-dim")] == [3, 1, 1]
    assert set(studies.OTHERS) < set(asked)


def test_rows_of_a_study_make_its_tables():
    study = find_reproduction("neuroshard").study("table")
    tables = study.tables(ROWS)
    assert list(tables) == ["table", "table_tasks"]
    ablation = find_reproduction("neuroshard").study("ablation")
    renamed = ROWS.drop(columns=["strategy", "seed", "task", "split"]).assign(
        search=["as published", "no caps", "1 beam", "5 halvings", "3 candidates"]
    )
    made = ablation.tables(renamed)["ablation"]
    assert set(made["search"]) == set(renamed["search"])
    # 10, 20 and 50 against 10, 20 and 30.
    no_caps = made.set_index("search").loc["no caps"]
    assert (no_caps["pairs"], no_caps["over_ours_pct"]) == (3, pytest.approx(100 * ((5 / 3) ** (1 / 3) - 1)))
