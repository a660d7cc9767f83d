"""Sharding groups of any layout: counted as sent on real ranks, and equal to the models that they train."""

from dataclasses import replace

import numpy as np
import pytest
from problems import RandomWorkload, machine
from unsharded import read_sharded, train_in_groups, train_unsharded

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
from shardbench.model.validate import validate
from shardbench.runs.simulate import totals
from shardbench.workloads.materialise import materialise

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


COPIED = [(0, 0, 60), (1, 0, 37), (2, 0, 50), (3, 0, 44), (4, 10, 30)]
"""The rows that ``copying`` has a copy of in every group."""


@pytest.mark.parametrize(("size", "interleaved", "nodes", "devices"), [(1, False, 1, 2), (2, True, 2, 2)])
def test_copies_that_are_averaged_every_two_steps_equal_groups_that_train_apart(
    tmp_path, size, interleaved, nodes, devices
):
    plan = copying(nodes * devices, ShardingGroups(size=size, interleaved=interleaved, sync_every=2))
    job, measured, traffic = run(tmp_path, plan, nodes, devices, batches=4)
    reference = train_in_groups(job, COPIED)
    compare(job, measured, traffic, tmp_path / "job", reference)
    # It is another model: the second step's copies have drifted apart.
    assert np.abs(reference.logits[1] - train_unsharded(job).logits[1]).max() > 1e-4
    every_step = replace(plan, groups=replace(plan.groups, sync_every=1))
    averaged = train_in_groups(job.model_copy(update={"plan": every_step}), COPIED)
    np.testing.assert_allclose(averaged.weights[0], train_unsharded(job).weights[0], atol=2e-6)
    # Half of the steps average, and every iteration is the mean of a period.
    once = measured.ranks[0].calls[0]["rows_all_reduce"]
    assert sum(once[:5]) == 1.0 + 0.5
    steps = measured.timing.step_ms
    assert steps[0] == steps[1] != steps[2] == steps[3]
