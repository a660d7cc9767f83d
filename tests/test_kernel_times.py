"""DreamShard's study of real kernels: its rows by any oracles, and its differences task by task."""

from functools import partial

import pandas as pd

from shardbench.baselines.dreamshard.reproduction import studies
from shardbench.baselines.dreamshard.reproduction.studies import PARTS, paired_table
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import load_pool


def test_rows_are_judged_by_the_oracle_that_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "load_pool", partial(load_pool, tables=24))
    monkeypatch.setattr(studies, "TEST_TASKS", 2)
    judged = SimulatedOracle(counted=True)
    names = ("greedy-size", "dreamshard-untrained")
    rows = studies.timed_rows(0, tmp_path / "cache" / "dreamshard", SimulatedOracle(), judged, names)
    assert [(row["strategy"], row["test_task"]) for row in rows] == [(name, i) for name in names for i in range(2)]
    assert judged.calls == 4
    for row in rows:
        assert row["cost_ms_partly_modelled"] == row["modelled_cost_ms"] > row["kernel_ms"] > 0.0
        assert row["training_placements"] == 0


def test_differences_are_task_by_task():
    of_all = {"task": "DLRM-20 (4)", "batch_size": 1024, "seed": 0, "training_placements": 0}
    times = {"dreamshard": (10.0, 20.0, 60.0), "greedy-size": (11.0, 21.0, 61.0)}
    rows = [
        {**of_all, "strategy": name, "test_task": task, **dict.fromkeys(PARTS, ms)}
        for name, of_task in times.items()
        for task, ms in enumerate(of_task)
    ]
    ours, theirs = paired_table(pd.DataFrame(rows)).to_dict("records")
    # Tasks differ by far more than strategies: only pairs show the one millisecond.
    assert theirs["kernel_ms_sem"] > 10.0
    assert (theirs["kernel_over_ours_ms"], theirs["kernel_over_ours_low_ms"]) == (1.0, 1.0)
    assert (ours["cost_over_ours_ms"], ours["cost_over_ours_high_ms"]) == (0.0, 0.0)
    alone = paired_table(pd.DataFrame(rows[3:]))
    assert "kernel_over_ours_ms" not in alone.columns
