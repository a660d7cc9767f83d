"""Problems, lookups and clocks of the benchmarks, alike whatever code is measured; made once a process."""

import resource
import time
from functools import cache

import numpy as np

from shardbench.model.machine import load_machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile, InputSample
from shardbench.model.table import Table
from shardbench.workloads.trace import Bags

BATCH = 65_536
INPUTS = 500
"""Single inputs that a problem tells of."""
TABLES = (20, 80, 200)
"""Sizes of problems."""


def cpu_s() -> float:
    """CPU seconds of this process and of those that it started and that ended.

    A machine that others use, too, takes its time: that is no regression of ours.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@cache
def made_problem(tables: int, seed: int = 0) -> Problem:
    """Tables of log-uniform rows (1e3..1e7) and mixed widths, with skewed profiles, on 16 A100s."""
    rng = np.random.default_rng(seed)
    shapes, profiles, coldest = [], [], []
    for i in range(tables):
        rows = int(np.exp(rng.uniform(np.log(1e3), np.log(1e7))))
        counts = np.unique(rng.zipf(1.3, 100).clip(1, 10**6))[::-1]
        each = np.minimum(rng.integers(1, 50, len(counts)), max(1, rows // len(counts)))
        shapes.append(Table(name=f"table{i}", rows=rows, dim=int(rng.choice([16, 32, 64, 128]))))
        profiles.append(
            AccessProfile(
                rows=rows,
                samples=BATCH,
                present=BATCH,
                counts=tuple(counts.tolist()),
                row_counts=tuple(each.tolist()),
            )
        )
        coldest.append(tuple((rng.random(INPUTS) ** 6 * rows).astype(int).tolist()))
    return Problem.of(
        f"made-up-{tables}",
        tuple(shapes),
        tuple(profiles),
        load_machine("a100-40gb-2x8"),
        batch_size=BATCH,
        inputs=InputSample(coldest=tuple(coldest)),
    )


@cache
def made_bags(rows: int, batch: int, pooling: int, seed: int = 0) -> Bags:
    """Bags of one length, in which low (hot) rows are asked for more often."""
    offsets = np.arange(batch + 1, dtype=np.int64) * pooling
    values = (np.random.default_rng(seed).random(offsets[-1]) ** 3 * rows).astype(np.int64)
    return Bags(values=values, offsets=offsets)
