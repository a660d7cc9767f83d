import numpy as np
import pytest
import records as make
from hypothesis import given, settings
from problems import RandomWorkload, machine
from random_plans import random_plans

from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.model.plan import (
    BatchSchedule,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    row_ranges,
    whole_table,
    whole_tables,
)
from shardbench.model.validate import memory_bytes
from shardbench.records.store import keep_lookups, keep_plan, lookups_path, plan_path
from shardbench.report.groups import groups
from shardbench.report.page.explorer import BIGGEST, DEVICES, HOTTEST, devices_of, explored_plans
from shardbench.report.page.write import page


def held(plan, problem, lookups=None):
    """The rows of each device by its name, all of it first, and how many hold anything."""
    planned = make.planned(host_memory_bytes=(0,) * problem.topology.nodes)
    table, in_all = devices_of(plan, planned, problem.precision, problem.optimizer, lookups)
    return {name: rows.to_dict("records") for name, rows in table.groupby("device", sort=False)}, in_all


def by_name(plan, problem):
    memory = memory_bytes(plan, problem)
    ranks = {f"rank {rank}": bytes_ for rank, bytes_ in enumerate((memory.hbm + memory.uvm).tolist())}
    return ranks | {f"host of node {node}": bytes_ for node, bytes_ in enumerate(memory.host.tolist())}


@settings(max_examples=60)
@given(random_plans())
def test_parts_of_all_placements_add_up_to_the_memory_of_the_plan(given_plan):
    _, problem, plan = given_plan
    devices, in_all = held(plan, problem)
    expected = {name: bytes_ for name, bytes_ in by_name(plan, problem).items() if bytes_}
    assert (len(devices), in_all) == (len(expected), len(expected))
    for name, (whole, *parts) in devices.items():
        assert whole["held_bytes"] == expected[name]
        if whole["part_of"] == f"all {len(parts)} parts":
            assert sum(part["held_bytes"] for part in parts) == expected[name]
    assert [whole["held_bytes"] for whole, *_ in devices.values()] == sorted(expected.values(), reverse=True)


def test_a_host_keeps_the_master_copies_that_a_schedule_needs():
    problem = RandomWorkload([(100, 8)], 8).problem(machine(1, 2))
    schedule = BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1), Phase(kind=PhaseKind.COLD, batches=1)))
    copied = whole_table(problem.tables[0], Replicated(ranks=(0, 1)))
    plan = Plan(world_size=2, segments=(copied,), schedule=schedule)
    devices, _ = held(plan, problem)
    assert {name: whole["held_bytes"] for name, (whole, *_) in devices.items()} == by_name(plan, problem)


def test_the_fullest_devices_and_their_biggest_and_hottest_parts_come_first():
    shapes = [(10 * (i + 1), 8) for i in range(30)]
    problem = RandomWorkload(shapes, 12).problem(machine(1, 12))
    plan = Plan(world_size=12, segments=whole_tables(problem.tables, [0] * 20 + list(range(1, 11))))
    lookups = np.arange(30, 0, -1.0)
    devices, in_all = held(plan, problem, lookups)
    assert (len(devices), in_all) == (DEVICES, 11)
    assert next(iter(devices)) == "rank 0"
    whole, *parts = devices["rank 0"]
    assert (whole["part_of"], len(parts)) == ("all 20 parts", BIGGEST + HOTTEST)
    assert [part["part_of"] for part in parts[:BIGGEST]] == [f"table{i}" for i in range(19, 9, -1)]
    assert [part["part_of"] for part in parts[BIGGEST:]] == ["table0", "table1", "table2", "table3"]
    assert whole["lookups_a_sample"] == lookups[:20].sum()


def test_lookups_go_to_who_serves_them():
    problem = RandomWorkload([(100, 8)], 8).problem(machine(1, 4))
    ends = (20, Replicated(ranks=(0, 1, 2, 3))), (60, RowWise(ranks=(0, 1))), (100, OnRank(rank=3))
    segments = row_ranges(problem.tables[0], *ends)
    devices, _ = held(Plan(world_size=4, segments=segments), problem, np.array([8.0, 4.0, 1.0]))
    assert {name: whole["lookups_a_sample"] for name, (whole, *_) in devices.items()} == {
        "rank 0": 4.0, "rank 1": 4.0, "rank 2": 2.0, "rank 3": 3.0
    }  # fmt: skip
    _, copied, alone = devices["rank 3"]
    assert {part["rows"]: part["placed"] for part in (copied, alone)} == {
        "0 to 19": "a copy on each of 4 ranks", "60 to 99": "here alone"
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    """A results folder that keeps a plan and its lookups, and a record of it."""
    problem = RandomWorkload([(100, 8), (30, 16)], 8).problem(machine(1, 2))
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, [0, 1]))
    keep_plan(tmp_path, plan)
    keep_lookups(tmp_path, plan, problem, "f" * 16)
    planned = make.planned(plan_hash=content_hash(plan))
    return tmp_path, problem, make.ok("greedy-size", changes={"planned": planned})


def test_kept_lookups_are_those_of_the_profiles(kept):
    results, problem, record = kept
    (group,) = groups([record])
    ((plan,), lost) = explored_plans(results, group, 3)
    assert (lost, plan.strategies) == (0, ("greedy-size",))
    assert plan.text.startswith("Of 2 devices and hosts")
    wholes = plan.devices[plan.devices["rows"].isna()]
    asked = dict(zip(wholes["device"], wholes["lookups_a_sample"]))
    pooling = [profile.mean_pooling for profile in problem.profiles]
    assert asked == pytest.approx({"rank 0": pooling[0], "rank 1": pooling[1]})


def test_strategies_of_one_plan_share_it_and_what_is_lost_is_counted(kept):
    results, _, record = kept
    same = make.ok("twin", changes={"planned": record.planned})
    gone = make.ok("gone", changes={"planned": make.planned(plan_hash="1" * 16)})
    (group,) = groups([record, same, gone])
    (plan,), lost = explored_plans(results, group, 3)
    assert (plan.strategies, lost) == (("greedy-size", "twin"), 1)
    assert explored_plans(results, group, 1) == ([], 1), "the first by name of equal steps is gone"


def test_lookups_of_another_plan_are_refused(kept):
    results, _, record = kept
    lookups_path(results, record.planned.plan_hash, "f" * 16).write_text("[1.0]")
    with pytest.raises(BadInput, match="has lookups of 1 segments, the plan has 2"):
        explored_plans(results, *groups([record]), 1)
    plan_path(results, record.planned.plan_hash).write_text("{}")
    with pytest.raises(BadInput, match="world_size"):
        explored_plans(results, *groups([record]), 1)


def test_the_page_shows_what_lies_where(kept):
    results, _, record = kept
    text = page("quick", [record], results)
    assert "0 to 99" in text
    assert "all 1 parts" in text
    other = replace_plan(record, "1" * 16)
    assert "1 of the plans asked for is not in" in page("quick", [other], results)


def replace_plan(record, plan_hash):
    return record.model_copy(update={"planned": record.planned.model_copy(update={"plan_hash": plan_hash})})
