"""Sharding groups of any layout: counted as sent on real ranks, and equal to the models that they train."""

import re
from dataclasses import replace

import numpy as np
import pytest
import records as make
from problems import RandomWorkload, machine
from unsharded import on_ranks, train_in_groups

from shardbench.advice.best_plan import best_plan
from shardbench.advice.drift import check_drifting
from shardbench.base.errors import BadInput, InvalidPlan, Unsupported
from shardbench.cost.bounds.step import StepBounds
from shardbench.cost.collectives import Calls
from shardbench.cost.traffic import count
from shardbench.engine.lower import lower
from shardbench.engine.measure import rank_job
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    ShardingGroups,
    Tier,
    row_ranges,
    whole_table,
)
from shardbench.model.problem import Sees
from shardbench.model.strategy import Move, Role, Strategy
from shardbench.model.table import Precision
from shardbench.model.validate import used_moves, validate
from shardbench.report.compare.explain import explain
from shardbench.trials.described import declaration_fault
from shardbench.trials.evaluate import answer_of
from shardbench.trials.simulate import CountedQuestion, simulate
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Split

SHAPES = [(60, 8), (37, 8), (50, 16), (44, 8), (40, 8)]
WORKLOAD = RandomWorkload(SHAPES, 32, unpooled=frozenset({3}))


def copying(world: int, groups: ShardingGroups | None) -> Plan:
    """Tables dealt over a group and whole on one of its ranks, pooled and not; one is cut into rows of all kinds."""
    t, size = WORKLOAD.tables, groups.size if groups is not None else world
    ends = (10, Replicated(ranks=tuple(range(world)))), (30, GroupSharded()), (40, OnRank(rank=world - 1))
    segments = (
        whole_table(t[0], GroupSharded()),
        whole_table(t[1], OnLocalRank(local_rank=0)),
        whole_table(t[2], OnLocalRank(local_rank=size - 1)),
        whole_table(t[3], GroupSharded()),
        *row_ranges(t[4], *ends),
    )
    return Plan(world_size=world, segments=segments, groups=groups)


def run(tmp_path, plan, nodes, devices, batches=3):
    problem = WORKLOAD.problem(machine(nodes, devices))
    ran = on_ranks(tmp_path, WORKLOAD, problem, plan, batches, warmup=0, iterations=batches)
    ran.check_sent()
    return ran


LAYOUTS = [(2, True, 1, 4), (2, False, 1, 4), (2, True, 2, 2), (1, False, 2, 2), (4, False, 2, 2)]


@pytest.mark.parametrize(("size", "interleaved", "nodes", "devices"), LAYOUTS[::2])
def test_groups_equal_the_unsharded_model_and_send_what_is_counted(tmp_path, size, interleaved, nodes, devices):
    plan = copying(4, ShardingGroups(size=size, interleaved=interleaved))
    run(tmp_path, plan, nodes, devices).check_trained()


COPIED = [(0, 0, 60), (1, 0, 37), (2, 0, 50), (3, 0, 44), (4, 10, 30)]
"""The rows that ``copying`` has a copy of in every group."""


@pytest.mark.parametrize(("size", "interleaved", "nodes", "devices"), [(1, False, 1, 2), (2, True, 2, 2)])
def test_copies_that_are_averaged_every_two_steps_equal_groups_that_train_apart(
    tmp_path, size, interleaved, nodes, devices
):
    plan = copying(nodes * devices, ShardingGroups(size=size, interleaved=interleaved, sync_every=2))
    ran = run(tmp_path, plan, nodes, devices, batches=4)
    reference = train_in_groups(ran.job, COPIED)
    ran.check_trained(reference)
    # It is another model: the second step's copies have drifted apart.
    assert np.abs(reference.logits[1] - ran.unsharded.logits[1]).max() > 1e-4
    every_step = replace(plan, groups=replace(plan.groups, sync_every=1))
    averaged = train_in_groups(ran.job.model_copy(update={"plan": every_step}), COPIED)
    np.testing.assert_allclose(averaged.weights[0], ran.unsharded.weights[0], atol=2e-6)
    # Half of the steps average, and every iteration is the mean of a period.
    once = ran.measured.ranks[0].calls[0]["rows_all_reduce"]
    assert sum(once[:5]) == 1.0 + 0.5
    steps = ran.measured.timing.step_ms
    assert steps[0] == steps[1] != steps[2] == steps[3]


@pytest.mark.parametrize(("size", "interleaved", "nodes", "devices"), LAYOUTS)
def test_every_group_has_a_whole_copy_and_looks_up_what_its_samples_ask(size, interleaved, nodes, devices):
    groups = ShardingGroups(size=size, interleaved=interleaved)
    problem, places = WORKLOAD.problem(machine(nodes, devices)), [GroupSharded(), OnLocalRank(local_rank=size - 1)]
    tables = [whole_table(table, places[i % 2]) for i, table in enumerate(WORKLOAD.tables)]
    plan = Plan(world_size=4, segments=tuple(tables), groups=groups)
    members = groups.ranks(4)
    whole = sum(problem.weight_bytes(table) for table in problem.tables)
    assert validate(plan, problem, frozenset(Move)).hbm[members].sum(axis=1).tolist() == [whole] * len(members)
    bags = [WORKLOAD.bags(Split.TEST, 0, i) for i in range(len(tables))]
    traffic = count(plan, problem, bags.__getitem__, WORKLOAD.dense)
    asked = [sum(own.samples(8 * rank, 8 * rank + 8).lengths.sum() for own in bags) for rank in range(4)]
    assert traffic.load.lookups[members].sum(axis=1).tolist() == np.array(asked)[members].sum(axis=1).tolist()


def test_ranks_of_groups_are_torchrecs():
    assert ShardingGroups(size=4, interleaved=True).ranks(8).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert ShardingGroups(size=4, interleaved=False).ranks(8).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ShardingGroups(size=2, interleaved=True).ranks(8).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_groups_that_are_the_nodes_count_as_none():
    problem = WORKLOAD.problem(machine(2, 2))
    stated = copying(4, ShardingGroups(size=2, interleaved=False))
    left = replace(stated, groups=None)
    one, other = (
        count(plan, problem, lambda i: WORKLOAD.bags(Split.TEST, 0, i), WORKLOAD.dense) for plan in (stated, left)
    )
    assert {n: (c.sent.tolist(), c.calls) for n, c in one.collectives.items()} == {
        n: (c.sent.tolist(), c.calls) for n, c in other.collectives.items()
    }
    assert one.load.values.tolist() == other.load.values.tolist()
    assert "groups" not in left.to_json()
    assert Plan.from_json(stated.to_json()) == stated


def test_calls_wait_for_the_ranks_that_meet():
    # Copies of neighbours are averaged inside a node, over two of its four ranks; groups span the nodes.
    problem = RandomWorkload(SHAPES, 32).problem(machine(2, 4))
    plan = Plan(
        world_size=8,
        segments=tuple(whole_table(t, GroupSharded()) for t in problem.tables),
        groups=ShardingGroups(size=4, interleaved=True, sync_every=2),
    )
    sent = count(plan, problem, lambda i: WORKLOAD.bags(Split.TEST, 0, i), WORKLOAD.dense).collectives
    assert sent["rows_all_reduce"].calls == Calls(inner=0.5, peers=0.5)
    assert sent["rows_all_reduce"].sent_inter.sum() == 0 < sent["rows_all_reduce"].sent_intra.sum()
    assert sent["input_all_to_all"].calls == Calls(outer=2, peers=2 * 3)


WRONG = {
    "no divisor": (ShardingGroups(size=3, interleaved=True), "groups of 3 ranks do not divide the plan's 4 ranks"),
    "too large": (ShardingGroups(size=8, interleaved=False), "groups of 8 ranks do not divide the plan's 4 ranks"),
    "too small": (
        ShardingGroups(size=1, interleaved=False),
        "local rank 1 does not exist, a sharding group has 1 rank",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_groups_that_cannot_be_are_refused_with_one_line(case):
    problem = WORKLOAD.problem(machine(2, 2))
    with pytest.raises(InvalidPlan) as caught:
        validate(
            replace(copying(4, ShardingGroups(size=2, interleaved=True)), groups=WRONG[case][0]),
            problem,
            frozenset(Move),
        )
    assert WRONG[case][1] in str(caught.value)


@pytest.mark.parametrize(("name", "number"), [("size", 0), ("sync_every", 0)])
def test_sizes_and_periods_below_one_are_refused_where_a_plan_is_read(name, number):
    text = copying(4, ShardingGroups(size=2, interleaved=True)).to_json()
    wrong = re.sub(f'"{name}":[12]', f'"{name}":{number}', text)
    with pytest.raises(BadInput, match=rf"groups\.{name}.*greater than or equal to 1"):
        Plan.from_json(wrong)


def test_averaging_every_few_steps_is_declared():
    problem, everything = WORKLOAD.problem(machine(2, 2)), frozenset(Move)
    local = copying(4, ShardingGroups(size=2, interleaved=True, sync_every=2))
    validate(local, problem, everything)
    with pytest.raises(InvalidPlan, match="does not declare: local_steps"):
        validate(local, problem, everything - {Move.LOCAL_STEPS})
    # With one group there is nothing to average, nor without copies.
    alone = copying(4, ShardingGroups(size=4, interleaved=True, sync_every=2))
    assert Move.LOCAL_STEPS not in used_moves(alone, problem)
    steps = StepBounds(demand=None, problem=problem, dense=WORKLOAD.dense)  # type: ignore[arg-type]
    assert steps.of(local) is None, "nothing is proven about another model"


class Local(Strategy):
    """Copies everything to groups of two and averages every other step."""

    name = "local"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.ROWS, Move.REPLICATE, Move.LOCAL_STEPS})
    role = Role.OTHER_MODEL

    def plan(self, problem, budget, seed):
        segments = tuple(whole_table(table, GroupSharded()) for table in problem.tables)
        groups = ShardingGroups(size=2, interleaved=True, sync_every=2)
        return Plan(world_size=problem.world_size, segments=segments, groups=groups)


class Undeclared(Local):
    """The same, as a competitor."""

    role = Role.COMPETITOR


class Careful(Local):
    """One that averages every step has no business there."""

    moves = frozenset({Move.ROWS, Move.REPLICATE})


def test_who_declares_it_has_a_role_of_its_own_and_the_record_keeps_the_groups(tmp_path):
    assert declaration_fault(Local()) == ""
    for wrong in (Undeclared(), Careful()):
        assert "role other_model if it declares the move local_steps, and only then" in declaration_fault(wrong)
    batches = materialise(WORKLOAD, tmp_path / "batches", range(1))
    question = CountedQuestion(WORKLOAD.problem(machine(2, 2)), batches, WORKLOAD.dense)
    answer = answer_of(question, Local())
    assert answer.planned.groups == ShardingGroups(size=2, interleaved=True, sync_every=2)
    assert Move.LOCAL_STEPS in answer.planned.moves
    every = simulate(replace(answer.plan, groups=replace(answer.plan.groups, sync_every=1)), question.problem, batches,
                     WORKLOAD.dense, 1)  # fmt: skip
    halved, whole = (s.traffic.collectives["rows_all_reduce"].sent.sum() for s in (answer.judged, every))
    assert halved == whole / 2 > 0
    assert answer.bounds.of_step(answer.plan) is None is answer.bounds.of(answer.plan, answer.planned.moves)


def test_explain_says_the_groups_of_the_records_and_refuses_other_models():
    def of(name, size, **changes):
        made = make.ok(name, (5.0, 5.0), **changes)
        groups = ShardingGroups(size=size, interleaved=size > 1, sync_every=size)
        return made.model_copy(update={"planned": made.planned.model_copy(update={"groups": groups})})

    one, other = of("a", 1), of("b", 2)
    of_groups = explain(one, other, [one, other]).differences.set_index("quantity").loc["sharding_groups"]
    assert of_groups["faster"] == "1 rank each, contiguous; copies are averaged every step"
    assert of_groups["slower"] == "2 ranks each, interleaved; copies are averaged every 2 steps"
    with pytest.raises(BadInput, match=r"differ in trains .the unsharded model and another model: c.: only equal ones"):
        explain(one, of("c", 2, role=Role.OTHER_MODEL), [one])


def test_iterations_must_be_whole_periods(tmp_path):
    plan = copying(4, ShardingGroups(size=2, interleaved=True, sync_every=2))
    with pytest.raises(
        BadInput, match=r"3 iterations are no whole periods .* every 2 steps: set iterations to a multiple"
    ):
        rank_job(
            plan, WORKLOAD.problem(machine(2, 2)), WORKLOAD.dense, tmp_path, warmup=0, iterations=3, seed=1, timeout_s=1
        )


def test_it_is_compared_with_no_other() -> None:
    problem = WORKLOAD.problem(machine(2, 2))
    with pytest.raises(BadInput, match="strategy local trains another model, so that its step is compared with no"):
        best_plan(WORKLOAD, problem.machine, [Local()])
    plan = copying(4, ShardingGroups(size=2, interleaved=True, sync_every=2))
    with pytest.raises(BadInput, match="averages copies every 2 steps: it trains another model than new plans do"):
        check_drifting(plan, problem)


def test_copies_behind_caches_are_refused() -> None:
    table = WORKLOAD.tables[0]
    cached = GroupSharded(tier=Tier.CACHED, cache_ratio=0.5)
    others = tuple(whole_table(each, GroupSharded()) for each in WORKLOAD.tables[1:])
    plan = Plan(world_size=4, segments=(whole_table(table, cached), *others))
    problem = WORKLOAD.problem(machine(2, 2))
    with pytest.raises(Unsupported, match="copies by group are averaged in host memory, behind their caches"):
        lower(plan, problem.tables, problem.topology, Precision.FP32, device="cuda")
