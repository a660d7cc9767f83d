"""Sharding groups of any layout: counted as sent on real ranks, and equal to the models that they train."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, machine
from unsharded import read_sharded, train_unsharded

from shardbench.base.errors import InvalidPlan
from shardbench.base.serialise import content_hash
from shardbench.cost.collectives import Calls
from shardbench.cost.traffic import count, mean
from shardbench.engine.measure import measure, rank_job
from shardbench.model.plan import (
    NodeSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    Segment,
    ShardingGroups,
    whole_table,
)
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling
from shardbench.model.validate import memory_bytes, used_moves, validate
from shardbench.runs.simulate import totals
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Split

SHAPES = [(60, 8), (37, 8), (50, 16), (44, 8), (40, 8)]
WORKLOAD = RandomWorkload(SHAPES, 32, unpooled=frozenset({3}))


def copying(world: int, groups: ShardingGroups | None, *, everything: bool = False) -> Plan:
    """Tables dealt over a group and whole on one of its ranks, pooled and not; one is cut into rows of all kinds."""
    t, size = WORKLOAD.tables, groups.size if groups is not None else world
    cuts = [(0, 10, Replicated(ranks=tuple(range(world)))), (10, 30, NodeSharded()), (30, 40, OnRank(rank=world - 1))]
    pieces = [Segment(table=t[4].name, row_start=a, row_stop=b, column_stop=8, placement=p) for a, b, p in cuts]
    segments = (
        whole_table(t[0], NodeSharded()),
        whole_table(t[1], OnLocalRank(local_rank=0)),
        whole_table(t[2], OnLocalRank(local_rank=size - 1)),
        whole_table(t[3], NodeSharded()),
        *([whole_table(t[4], NodeSharded())] if everything else pieces),
    )
    return Plan(world_size=world, segments=segments, groups=groups)


def run(tmp_path, plan, nodes, devices, batches=3, **settings):
    problem = WORKLOAD.problem(machine(nodes, devices))
    validate(plan, problem, frozenset(Move))
    stored = materialise(WORKLOAD, tmp_path / "batches", range(batches))
    options = {"warmup": 0, "iterations": batches, "seed": 1, "timeout_s": 100, "dump": True, "learning_rate": 0.5}
    job = rank_job(plan, problem, WORKLOAD.dense, tmp_path / "batches", **(options | settings))
    traffic = mean(count(plan, problem, lambda i, n=n: stored.bags(n, i), WORKLOAD.dense) for n in range(batches))
    return job, measure(job, tmp_path / "job"), traffic


def compare(job, measured, traffic, folder, reference):
    sent = {name: pair for name, pair in totals(traffic).collectives.items() if sum(pair)}
    assert {name: pair for name, pair in measured.sent.items() if sum(pair)} == {
        name: pytest.approx(pair, rel=1e-9) for name, pair in sent.items()
    }
    sharded = read_sharded(job, folder)
    for ours, theirs in zip(sharded.logits, reference.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for i, (ours, theirs) in enumerate(zip(sharded.weights, reference.weights, strict=True)):
        np.testing.assert_allclose(ours, theirs, atol=5e-6, err_msg=f"table {i}")


LAYOUTS = [(2, True, 1, 4), (2, False, 1, 4), (2, True, 2, 2), (1, False, 2, 2), (4, False, 2, 2)]


@pytest.mark.parametrize(("size", "interleaved", "nodes", "devices"), LAYOUTS)
def test_groups_equal_the_unsharded_model_and_send_what_is_counted(tmp_path, size, interleaved, nodes, devices):
    plan = copying(4, ShardingGroups(size=size, interleaved=interleaved))
    job, measured, traffic = run(tmp_path, plan, nodes, devices)
    compare(job, measured, traffic, tmp_path / "job", train_unsharded(job))
