"""Measured equals counted, and sharded equals unsharded, for random plans over all placements."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from problems import RandomWorkload, machine
from random_plans import random_plans
from unsharded import on_ranks, train_unsharded

from shardbench.cost.collectives import Calls, CollectiveName, group_calls
from shardbench.model.plan import (
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Tier,
    sharding_groups,
    whole_table,
)
from shardbench.model.table import Precision

DEFAULT, MANY = 12, 200
"""Examples. All placements at once have a test of their own; these are of cuts by rows and by columns and of groups."""
ROUNDED = {Precision.FP32: 1, Precision.FP16: 50, Precision.BF16: 400}
"""Times by which results may be further off: a number has 24, 11 or 8 binary digits."""
SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck), "print_blob": True}


def without_copies(calls, plan, rank, topology) -> Calls:
    """The calls of the all-reduce of copies and replicas on a rank that has perhaps no copies."""
    places = [segment.placement for segment in plan.segments]
    groups = sharding_groups(plan.groups, topology)
    (_,), (own,) = np.nonzero(groups == rank)
    if any(isinstance(p, GroupSharded) or (isinstance(p, OnLocalRank) and p.local_rank == own) for p in places):
        return calls
    copied = any(isinstance(p, OnLocalRank) for p in places)
    return calls.plus(group_calls(groups.T, topology).times(-int(copied) / plan.sync_every))


def check(workload, problem, plan) -> None:
    """One step on one batch; bytes and calls are compared per rank, collective and link."""
    folder = Path(tempfile.mkdtemp(prefix="random-plan-"))
    try:
        ran = on_ranks(folder, workload, problem, plan, warmup=0, iterations=1)
        ran.check_sent()
        for rank in ran.measured.ranks:
            for name in CollectiveName:
                calls = ran.counted[0].collectives[name].calls
                if name is CollectiveName.ROWS_ALL_REDUCE:
                    calls = without_copies(calls, plan, rank.rank, problem.topology)
                assert rank.calls[0].get(name, Calls()) == calls, (rank.rank, name)
        # Parts of sums are rounded on ranks, and no two plans have the same.
        exact, times = (
            train_unsharded(ran.job.model_copy(update={"exchange": Precision.FP32})),
            ROUNDED[ran.job.exchange],
        )
        ran.check_trained(exact, logits=1e-5 * times, weights=5e-6 * times)
    finally:
        if "KEEP_RANDOM_PLANS" not in os.environ:
            shutil.rmtree(folder)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("features", "exchange", "distinct"),
    [
        (2, "fp32", True), (1, "fp16", False), pytest.param(1, "fp32", False, marks=SLOW),
        pytest.param(2, "bf16", True, marks=SLOW), pytest.param(2, "fp32", False, marks=SLOW),
    ],
)  # fmt: skip
def test_every_placement_at_once_on_two_nodes(features, exchange, distinct):
    everyone = (0, 1, 2, 3)
    places = [
        OnRank(rank=1), OnRank(rank=2, tier=Tier.UVM), RowWise(ranks=everyone), Replicated(ranks=everyone),
        GroupSharded(), OnLocalRank(local_rank=1), Host(node=1), RowWise(ranks=(2, 3)),
    ]  # fmt: skip
    # Table-row-wise sharding is of pooled tables only; the sequences are of two widths.
    shapes = [(40, 16)] * len(places) + [(40, 8), (40, 16)] * (len(places) - 1)
    sequences = range(len(places), len(shapes))
    shared = dict.fromkeys(range(len(shapes)), features)
    workload = RandomWorkload(
        shapes, 12, pooling=3, seed=1, unpooled=frozenset(sequences), shared=shared, distinct=distinct
    )
    homes = places + [place for place in places[:-1] for _ in range(2)]
    segments = tuple(map(whole_table, workload.tables, homes))
    problem = replace(workload.problem(machine(2, 2)), exchange=Precision(exchange))
    check(workload, problem, Plan(world_size=4, segments=segments))


@settings(max_examples=DEFAULT, **SETTINGS)
@given(random_plans())
def test_measured_equals_counted(case):
    check(*case)


@pytest.mark.slow
@settings(max_examples=MANY, **SETTINGS)
@given(random_plans())
def test_measured_equals_counted_over_many_plans(case):
    check(*case)
