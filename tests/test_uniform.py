"""row-wise, column-wise, table-row-wise: what lies where, by hand, and what cannot be placed."""

import numpy as np
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import Infeasible
from shardbench.baselines.uniform import column_shards
from shardbench.cost.traffic import count
from shardbench.model.plan import OnRank, Plan, RowWise
from shardbench.model.strategy import Budget
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.workloads.trace import Split

SHAPES = [(100, 16), (40, 64), (3, 16), (60, 32)]
NAMES = ["row-wise", "column-wise", "table-row-wise"]


def planned(name: str, nodes: int = 2, devices: int = 2, **memory: int) -> Plan:
    strategy = get_strategy(name)
    problem = RandomWorkload(SHAPES, 16).problem(machine(nodes, devices, **memory))
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
