"""Random placement tasks for tests."""

import numpy as np
from problems import machine

from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Precision, Table


def random_problem(
    tables: int, seed: int = 0, *, on: Machine | None = None, batch_size: int = 240, rows: int = 2000
) -> Problem:
    """Tables of random rows, widths and skew in fp16."""
    rng = np.random.default_rng(seed)
    shapes = tuple(
        Table(name=f"t{i}", rows=int(rng.integers(10, rows)), dim=int(rng.choice([16, 32, 64]))) for i in range(tables)
    )
    profiles = tuple(
        AccessProfile.from_counts(
            rng.zipf(1.5, t.rows // 2).clip(1, 500).astype(np.int64), rows=t.rows, samples=1000, present=900
        )
        for t in shapes
    )
    place = on if on is not None else machine(devices=4)
    return Problem.of("random", shapes, profiles, place, batch_size=batch_size, precision=Precision.FP16)


def random_task(tables: int, seed: int = 0, *, on: Machine | None = None, batch_size: int = 240) -> Task:
    """Task of such a problem."""
    return Task.of(random_problem(tables, seed, on=on, batch_size=batch_size))
