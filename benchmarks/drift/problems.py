"""The problems of the study: unlike workloads on committed machine files, and logs that users have prepared."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.model.machine_file import load_machine
from shardbench.model.problem import Problem
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.drift import LaterBatches, Period
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import BatchSource, DrawnBatches
from shardbench.workloads.recorded import RecordedWorkload
from shardbench.workloads.workload import Workload

PROBLEMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # One lookup a sample in each of 26 tables, and one width.
    "criteo": ("a100-40gb-1x8", {"dataset": "criteo_like", "form": "kaggle", "batch_size": 65_536}),
    # Bags of 1 to 139 lookups, widths 16 to 128, skew as fitted: the tables of the suite `measured`.
    "mixed": (
        "a100-40gb-1x8",
        {
            "dataset": "synthetic", "tables": 32, "subset_seed": 4234, "dims": [16, 32, 64, 128], "batch_size": 8192,
            "dense": {"bottom": [16], "top": [16, 1]},
        },
    ),
    # Histories whose vectors cross nodes, as in the suite `flexshard`, half as long.
    "sequences": ("a100-40gb-2x8", {"dataset": "sequence", "form": "production", "batch_size": 8192}),
    # Tables of which not even the rows that the profile saw fit HBM, as in the suite `recshard`.
    "off-hbm": (
        "a100-24gb-512th-2x8",
        {
            "dataset": "rm", "form": "rm2", "row_scale": 1 / 512, "batch_size": 32, "profile_samples": 204_800,
            "test_batches": 8, "dense": {"bottom": [64], "top": [1]},
        },
    ),
}  # fmt: skip
"""Machine and workload by name; all have the number of test batches that their workload states, or one."""
DAYS = ("avazu", "taobao", "criteo_terabyte")
"""Data sets whose prepared folders have days: those that train, and later ones that test."""
DAYS_MACHINE, DAYS_BATCH = "a100-40gb-1x8", 4096
BATCHES = 5
"""Test batches of each period of a log."""


@lru_cache(maxsize=1)
def question(name: str) -> CountedQuestion:
    """Return a problem that is judged on its undrifted test batches; the last one is kept for the next strategy."""
    machine, parameters = PROBLEMS[name]
    data = {"test_batches": 1, **parameters, "name": name}
    workload = workload_config(data, f"problem {name}").build(Path())
    batches = DrawnBatches(workload, workload.test_batches)
    return CountedQuestion(_problem(workload, machine), batches, workload.dense, workload.test_batches)


@lru_cache(maxsize=1)
def periods(dataset: str, data: Path, batch_size: int) -> tuple[Period, Period]:
    """Return the days of a prepared log that train, and those that test."""
    parameters = {"dataset": dataset, "name": dataset, "batch_size": batch_size, "test_batches": 1}
    log = workload_config(parameters, f"log {dataset}").build(data)
    if not isinstance(log, RecordedWorkload):
        raise BadInput(f"{dataset} has no recorded samples, and so no days")
    return Period(log, 0, log.train_samples, BATCHES), Period(log, log.train_samples, log.samples, BATCHES)


def days_question(plans_on: Period, judged_on: Period, batch: int) -> CountedQuestion:
    """Return the question of a period's profile, judged on one batch of that period or of another one."""
    batches: BatchSource = LaterBatches(judged_on, plans_on, first=batch)
    return CountedQuestion(_problem(plans_on, DAYS_MACHINE), batches, plans_on.dense)


def _problem(workload: Workload, machine: str) -> Problem:
    # All strategies are asked the same problem: what one does not declare is withheld from it.
    return Problem.of(
        workload.name, workload.tables, workload.profiles, load_machine(machine), batch_size=workload.batch_size,
        inputs=workload.input_sample,
    )  # fmt: skip
