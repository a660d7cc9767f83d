"""Counting the lookups of one table, by placement and number of devices, beside sorting them."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ratios import beside
from workloads import cluster, random_bags

from shardbench.cost.traffic import count
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, whole_table
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Table

pytestmark = pytest.mark.benchmark(timer=time.process_time)
ROWS, BATCH, POOLING = 1_000_000, 65_536, 16


@pytest.mark.parametrize("kind", ["on_rank", "row_wise", "replicated"])
@pytest.mark.parametrize("devices", [8, 128])
def test_counting(benchmark, kind, devices):
    everyone = tuple(range(devices))
    placement = {
        "on_rank": OnRank(rank=0),
        "row_wise": RowWise(ranks=everyone),
        "replicated": Replicated(ranks=everyone),
    }[kind]
    table = Table(name="table", rows=ROWS, dim=16)
    profile = AccessProfile(rows=ROWS, samples=1, present=0, counts=(), row_counts=())
    problem = Problem.of("one", (table,), (profile,), cluster(devices), batch_size=BATCH)
    plan = Plan(world_size=devices, segments=(whole_table(table, placement),))
    bags = random_bags(ROWS, BATCH, POOLING)
    traffic = benchmark(count, plan, problem, lambda i: bags, DenseShape())
    assert traffic.load.lookups.sum() == BATCH * POOLING
    beside(benchmark, "sorting them", lambda: np.sort(bags.values))
