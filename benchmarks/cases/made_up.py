"""Problems and lookups of the cases, alike whatever code is measured; made once a process."""

from functools import cache

import numpy as np

from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, resized
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, whole_table
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile, InputSample
from shardbench.model.table import Table
from shardbench.workloads.trace import Bags

BATCH = 65_536
INPUTS = 500
"""Number of single inputs that a problem tells of."""
TABLES = (20, 80, 200)
"""Numbers of tables of a small, a middle and a large problem."""


@cache
def cluster(devices: int) -> Machine:
    """Return the machine of 16 A100s with another number of nodes of eight devices."""
    return resized(load_machine("a100-40gb-2x8"), max(1, devices // 8), min(devices, 8))


@cache
def made_problem(tables: int, devices: int = 16, seed: int = 0) -> Problem:
    """Return a problem of tables of log-uniform rows (1e3 to 1e7) and mixed widths, with skewed profiles."""
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
        cluster(devices),
        batch_size=BATCH,
        inputs=InputSample(coldest=tuple(coldest)),
    )


@cache
def made_bags(rows: int, batch: int, pooling: int, seed: int = 0) -> Bags:
    """Return bags of one length, in which low (hot) rows are asked for more often."""
    offsets = np.arange(batch + 1, dtype=np.int64) * pooling
    values = (np.random.default_rng(seed).random(offsets[-1]) ** 3 * rows).astype(np.int64)
    return Bags(values=values, offsets=offsets)


def mixed_plan(problem: Problem, small: int, large: int) -> Plan:
    """Replicate tables of fewer than ``small`` rows, deal those of ``large`` and more, and place the others in turn."""
    everyone = tuple(range(problem.world_size))
    segments = []
    for i, table in enumerate(problem.tables):
        place: OnRank | Replicated | RowWise
        if table.rows < small:
            place = Replicated(ranks=everyone)
        elif table.rows >= large:
            place = RowWise(ranks=everyone)
        else:
            place = OnRank(rank=i % problem.world_size)
        segments.append(whole_table(table, place))
    return Plan(world_size=problem.world_size, segments=tuple(segments))
