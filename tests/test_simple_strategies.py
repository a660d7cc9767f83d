"""The greedy heuristics and the uniform strategies against orders and placements worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import Infeasible
from shardbench.baselines.uniform import column_shards
from shardbench.cost.traffic import count
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, RowWise
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer, Table
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.trace import Split


def problem(
    shapes: list[tuple[int, int, float]],
    *,
    devices: int = 2,
    hbm: int = 1 << 40,
    uvm: int = 1 << 40,
    optimizer: Optimizer = Optimizer.SGD,
) -> Problem:
    """Tables of (rows, dim, mean pooling) on one node."""
    topology = Topology(nodes=1, devices_per_node=devices, hbm_bytes=hbm, uvm_bytes=uvm, host_bytes=0)
    machine = replace(load_machine("h100-1x8"), topology=topology)
    tables = tuple(Table(name=f"t{i}", rows=rows, dim=dim) for i, (rows, dim, _) in enumerate(shapes))
    profiles = tuple(
        AccessProfile.from_counts(np.array([round(pooling * 100)]), rows=rows, samples=100, present=100)
        for rows, _, pooling in shapes
    )
    return Problem.of("p", tables, profiles, machine, batch_size=64, optimizer=optimizer)


def homes(plan: Plan) -> dict[str, str]:
    """Table -> rank, with a u where it lies in host memory."""
    placed = {}
    for segment in plan.segments:
        assert isinstance(segment.placement, OnRank)
        placed[segment.table] = f"{segment.placement.rank}{'u' * (segment.placement.tier.value == 'uvm')}"
    return placed


SHAPES = [(100, 32, 10.0), (1000, 8, 10.0), (10, 64, 1.0), (1000, 16, 1.0)]


@pytest.mark.parametrize(
    ("name", "costs", "expected"),
    [
        # Costs of size are rows * dim * 4. t3 64000 -> 0; t1 32000 -> 1; t0 12800 -> 1 (44800); t2 -> 1
        ("greedy-size", [12_800, 32_000, 2_560, 64_000], {"t3": "0", "t1": "1", "t0": "1", "t2": "1"}),
        # t2 64 -> 0; t0 32 -> 1; t3 16 -> 1 (48); t1 8 -> 1
        ("greedy-dim", [32, 8, 64, 16], {"t2": "0", "t0": "1", "t3": "1", "t1": "1"}),
        # Of lookups dim * pooling. t0 320 -> 0; t1 80 -> 1; t2 64 -> 1; t3 -> 1
        ("greedy-lookup", [320, 80, 64, 16], {"t0": "0", "t1": "1", "t2": "1", "t3": "1"}),
        # That times log10(rows). t0 640 -> 0; t1 240 -> 1; t2 64 -> 1; t3 -> 1
        ("greedy-size-lookup", [640, 240, 64, 48], {"t0": "0", "t1": "1", "t2": "1", "t3": "1"}),
    ],
)
def test_costs_and_the_order_and_placement_that_they_give(
    name: str, costs: list[float], expected: dict[str, str]
) -> None:
    asked, strategy = problem(SHAPES), get_strategy(name)
    assert strategy.costs(asked).tolist() == pytest.approx(costs)  # type: ignore[attr-defined]
    plans = [strategy.plan(asked.restricted_to(strategy.sees), Budget(), seed) for seed in (0, 1)]
    assert [homes(plan) for plan in plans] == [expected] * 2


@pytest.mark.parametrize(
    ("name", "shapes", "rest", "expected"),
    [
        # Equal widths: larger first (t2, then t0 before t3 by index, then t1); with cost sums equal
        # the device with less memory in use takes the next one: t2 -> 0, t0 -> 1, t3 -> 1 (1,280 < 2,560), t1 -> 0.
        (
            "greedy-dim", [(20, 16, 1.0), (10, 16, 1.0), (40, 16, 1.0), (20, 16, 1.0)], {},
            {"t2": "0", "t0": "1", "t3": "1", "t1": "0"},
        ),
        # HBM holds 2,560 bytes: t0 (2,560) fills rank 0, t1 and t2 (1,280 each) rank 1 although its cost is higher.
        (
            "greedy-size", [(40, 16, 1.0), (20, 16, 9.0), (20, 16, 9.0)], {"hbm": 2560},
            {"t0": "0", "t1": "1", "t2": "1"},
        ),
        # HBM 2,560: t0 cost 144 -> rank 0 and fills it; t1 cost 128 -> rank 1 (1,280); t2 cost 112 -> rank 1, full;
        # t3 cost 16 spills: rank 0 has the smaller sum (144 against 240); t4 cost 8 too (160 against 240).
        (
            "greedy-lookup", [(40, 16, 9.0), (20, 16, 8.0), (20, 16, 7.0), (40, 16, 1.0), (20, 16, 0.5)], {"hbm": 2560},
            {"t0": "0", "t1": "1", "t2": "1", "t3": "0u", "t4": "0u"},
        ),
        # A later small table still gets HBM.
        ("greedy-lookup", [(100, 16, 9.0), (20, 16, 1.0)], {"hbm": 2560}, {"t0": "0u", "t1": "1"}),
        # Host memory of 6,400 takes one table of 6,400 a device.
        ("greedy-lookup", [(100, 16, 3.0), (100, 16, 2.0)], {"hbm": 64, "uvm": 6400}, {"t0": "0u", "t1": "1u"}),
        # 20 rows of 16 columns: 1,280 bytes of weights; Adam adds 2,560.
        ("greedy-dim", [(20, 16, 1.0)], {"hbm": 1280}, {"t0": "0"}),
        ("greedy-dim", [(20, 16, 1.0)], {"hbm": 1280, "optimizer": Optimizer.ADAM}, {"t0": "0u"}),
    ],
)  # fmt: skip
def test_ties_full_devices_and_spills(
    name: str, shapes: list[tuple[int, int, float]], rest: dict[str, Any], expected: dict[str, str]
) -> None:
    assert homes(get_strategy(name).plan(problem(shapes, **rest), Budget(), 0)) == expected


def test_what_fits_no_host_memory_is_infeasible() -> None:
    shapes = [(100, 16, 3.0), (100, 16, 2.0), (100, 16, 1.0)]
    with pytest.raises(Infeasible, match=r"'t2' .6400 bytes. fits on no device: at most 64 bytes of HBM and 0 of UVM"):
        get_strategy("greedy-lookup").plan(problem(shapes, hbm=64, uvm=6400), Budget(), 0)


def test_shuffle_is_uniform_and_respects_the_capacity() -> None:
    strategy = get_strategy("shuffle")
    asked = problem([(10, 16, 1.0)] * 40, devices=4)
    ranks = [int(home) for seed in range(50) for home in homes(strategy.plan(asked, Budget(), seed)).values()]
    counts = np.bincount(ranks, minlength=4)
    assert counts.sum() == 2000
    # Binomial(2000, 1/4): standard deviation 19.4, five of them.
    assert np.abs(counts - 500).max() < 97
    tight = problem([(10, 16, 1.0)] * 8, devices=4, hbm=640, uvm=640)
    placed = homes(strategy.plan(tight, Budget(), 3))
    assert sorted(placed.values()) == ["0", "0u", "1", "1u", "2", "2u", "3", "3u"]
    validate(strategy.plan(tight, Budget(), 3), tight, strategy.moves)


def test_shuffle_differs_by_seed_and_declines_what_does_not_fit() -> None:
    strategy = get_strategy("shuffle")
    asked = problem(SHAPES * 5, devices=4)
    assert strategy.plan(asked, Budget(), 1) == strategy.plan(asked, Budget(), 1)
    assert strategy.plan(asked, Budget(), 1) != strategy.plan(asked, Budget(), 2)
    with pytest.raises(Infeasible, match="none of 100 random orders fits"):
        strategy.plan(problem(SHAPES, hbm=64, uvm=64), Budget(), 0)


CUT_SHAPES = [(100, 16), (40, 64), (3, 16), (60, 32)]
NAMES = ["row-wise", "column-wise", "table-row-wise"]


def planned(name: str, nodes: int = 2, devices: int = 2, **memory: int) -> Plan:
    strategy = get_strategy(name)
    problem = RandomWorkload(CUT_SHAPES, 16).problem(machine(nodes, devices, **memory))
    plan = strategy.plan(problem.restricted_to(strategy.sees), Budget(), 0)
    validate(plan, problem, strategy.moves)
    return plan


def test_row_wise_deals_every_table_that_has_enough_rows() -> None:
    by_table = planned("row-wise").by_table()
    assert [by_table[f"table{i}"][0].placement for i in (0, 1, 3)] == [RowWise(ranks=(0, 1, 2, 3))] * 3
    # Three rows cannot be dealt over four ranks.
    assert isinstance(by_table["table2"][0].placement, OnRank)


def test_table_row_wise_goes_to_the_emptiest_node() -> None:
    places = {name: segments[0].placement for name, segments in planned("table-row-wise").by_table().items()}
    # Bytes / 4: table1 2,560 and then 1,920 to node 1, 1,600 to node 1; the last 48 to the emptier one.
    assert places["table1"] == RowWise(ranks=(0, 1))
    assert places["table3"] == RowWise(ranks=(2, 3))
    assert places["table0"] == RowWise(ranks=(2, 3))
    assert places["table2"] == RowWise(ranks=(0, 1))


def test_column_wise_cuts_equal_shards_to_different_devices() -> None:
    by_table = planned("column-wise").by_table()
    assert [(s.column_start, s.column_stop) for s in by_table["table1"]] == [(0, 16), (16, 32), (32, 48), (48, 64)]
    for segments in by_table.values():
        assert len({s.placement for s in segments}) == len(segments)
    assert [len(by_table[f"table{i}"]) for i in range(4)] == [2, 4, 2, 4]


@pytest.mark.parametrize(("dim", "devices", "shards"), [(64, 8, 8), (64, 3, 2), (16, 8, 2), (4, 8, 1), (24, 8, 3)])
def test_column_shards(dim: int, devices: int, shards: int) -> None:
    assert column_shards(dim, devices) == shards


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_no_device_is_declined(name: str) -> None:
    with pytest.raises(Infeasible, match=f"{name} needs [0-9]+ bytes of HBM on one device, it has 1000"):
        planned(name, hbm=1000)


def test_unpooled_table_row_wise_is_counted() -> None:
    # By hand: every vector travels from the node's ranks to the sample's rank, none between others.
    workload = RandomWorkload([(100, 16)], 16, unpooled=frozenset({0}))
    problem = workload.problem(machine(2, 2))
    plan = get_strategy("table-row-wise").plan(problem, Budget(), 0)
    bags = workload.bags(Split.TEST, 0, 0)
    sent = count(plan, problem, lambda _: bags, workload.dense).collectives["output_all_to_all"]
    quarters = [int(bags.samples(4 * r, 4 * r + 4).values.size) for r in range(4)]
    odd = [int((bags.samples(4 * r, 4 * r + 4).values % 2).sum()) for r in range(4)]
    even = [total - one for total, one in zip(quarters, odd)]
    # Row 0 is on the second device (plan.deal_start).
    np.testing.assert_array_equal(sent.sent_intra, [64 * odd[1], 64 * even[0], 0, 0])
    np.testing.assert_array_equal(sent.sent_inter, [64 * (odd[2] + odd[3]), 64 * (even[2] + even[3]), 0, 0])
