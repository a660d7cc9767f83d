"""EMBark's planner: costs by hand, splits that pay, buckets of both kinds, and a plan on real ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from problems import RandomWorkload
from problems import machine as small
from unsharded import on_ranks

from shardbench.base.errors import Infeasible
from shardbench.baselines.embark.rounds import RowSpread, TableSplit, TableSplits, best_round
from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes, validate
from shardbench.trials.discovery import get_strategy

SAMPLES = 100
Shape = tuple[int, int, int]
"""Rows, columns, mean pooling."""


def problem(shapes: list[Shape], *, nodes: int = 1, devices: int = 4, hbm: int = 1 << 30, batch: int = 8) -> Problem:
    topology = Topology(nodes=nodes, devices_per_node=devices, hbm_bytes=hbm, uvm_bytes=0, host_bytes=0)
    base = load_machine("a100-40gb-2x8")
    # Memory is 80 times as fast as either link, as in the planner's defaults for an A100.
    constants = replace(base.constants, hbm_bytes_per_s=2e12, intra_bytes_per_s=25e9, inter_bytes_per_s=25e9)
    tables = tuple(Table(name=f"t{i}", rows=rows, dim=dim) for i, (rows, dim, _) in enumerate(shapes))
    profiles = tuple(
        AccessProfile.from_counts(np.array([SAMPLES * pooling]), rows=rows, samples=SAMPLES, present=SAMPLES)
        for rows, _, pooling in shapes
    )
    machine = replace(base, topology=topology, constants=constants)
    return Problem.of("p", tables, profiles, machine, batch_size=batch)


def planned(asked: Problem, name: str = "embark") -> Plan:
    strategy = get_strategy(name)
    plan = strategy.plan(asked, Budget(), 0)
    validate(plan, asked, strategy.moves)
    return plan


def test_costs_by_hand() -> None:
    flat = TableSplits(problem([(1000, 64, 10)]), hierarchical=False)
    # 4 numbers moved a looked-up one, 80 a returned one; 10 lookups and one vector of 64 numbers a sample.
    assert flat.cost(flat.whole(0)) == 4 * 10 * 64 + 80 * 64
    assert flat.cost(TableSplit(table=0, width=32, columns=2)) == 4 * 10 * 32 + 80 * 32
    # Every device looks up its rows and returns a whole vector.
    assert flat.cost(TableSplit(table=0, width=64, spread=RowSpread.WORLD)) == 4 * 10 * 64 / 4 + 80 * 64
    nodes = TableSplits(problem([(1000, 64, 10)], nodes=2, devices=2), hierarchical=True)
    assert nodes.whole(0) == TableSplit(table=0, width=64, spread=RowSpread.NODE)
    assert nodes.cost(nodes.whole(0)) == (4 * 10 * 64 + 1.5 * 80 * 64) / 2
    assert nodes.cost(TableSplit(table=0, width=64, spread=RowSpread.WORLD)) == (4 * 10 * 64 / 2 + 1.5 * 80 * 64) / 2
    # Shared by three features: as many vectors, and the lookups that the profile counts.
    table = replace(flat.problem.tables[0], features=3)
    shared = TableSplits(replace(flat.problem, tables=(table,)), hierarchical=False)
    assert shared.cost(shared.whole(0)) == 4 * 10 * 64 + 80 * 3 * 64


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (TableSplit(table=0, width=64), TableSplit(table=0, width=32, columns=2)),
        (TableSplit(table=0, width=36), TableSplit(table=0, width=36, spread=RowSpread.WORLD)),  # halves of 18 columns
        (TableSplit(table=0, width=32, columns=2), TableSplit(table=0, width=32, columns=2, spread=RowSpread.WORLD)),
        (TableSplit(table=0, width=32, spread=RowSpread.WORLD), None),
        (TableSplit(table=1, width=32), None),  # three rows for four devices
    ],
)
def test_wide_shards_are_split_by_columns_and_others_by_rows(split: TableSplit, expected: TableSplit | None) -> None:
    assert TableSplits(problem([(1000, 64, 10), (3, 32, 1)]), hierarchical=False).halved(split) == expected


def test_the_hottest_table_is_split_while_the_dearest_device_gains() -> None:
    asked = problem([(1000, 128, 50), (1000, 16, 1)])
    columns = planned(asked).by_table()["t0"]
    assert [s.columns for s in columns] == [32] * 4
    assert sorted(s.placement.rank for s in columns if isinstance(s.placement, OnRank)) == [0, 1, 2, 3]
    # Many lookups a vector: dealing them pays although all devices then return vectors.
    (dealt,) = planned(problem([(1000, 32, 900)])).segments
    assert dealt.placement == RowWise(ranks=(0, 1, 2, 3))
    # With a table on every device it does not.
    even = planned(problem([(1000, 32, 2)] * 4)).segments
    assert sorted(s.placement.rank for s in even if isinstance(s.placement, OnRank)) == [0, 1, 2, 3]


def test_more_rounds_are_never_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    shapes = [
        (int(rng.integers(50, 5000)), int(rng.choice([16, 64, 128])), int(rng.integers(1, 80))) for _ in range(12)
    ]
    asked = problem(shapes)
    worst = []
    for rounds in (0, 1, 5, 20):
        monkeypatch.setattr("shardbench.baselines.embark.rounds.ROUNDS", rounds)
        splits = TableSplits(asked, hierarchical=False)
        worst.append(best_round(splits, range(len(shapes)), np.full(4, 1 << 30)).worst)
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < worst[0]


def test_the_greedy_takes_the_costliest_first_to_the_cheapest_device() -> None:
    # Equal widths, so that costs go with lookups: 4 x 10 + 80 a column and so on.
    asked = problem([(1000, 32, 10), (1000, 32, 40), (1000, 32, 20), (1000, 32, 30), (1000, 32, 5)], devices=2)
    splits = TableSplits(asked, hierarchical=False)
    costs = [32 * (4 * pooling + 80) for pooling in (10, 40, 20, 30, 5)]
    placed = best_round(splits, [0, 1, 2, 3, 4], np.full(2, 1 << 30))
    ranks = {s.table: s.placement.rank for s in placed.segments if isinstance(s.placement, OnRank)}
    assert ranks == {"t1": 0, "t3": 1, "t2": 1, "t0": 0, "t4": 0}
    assert placed.worst == max(costs[1] + costs[0] + costs[4], costs[3] + costs[2])


def test_tables_with_no_more_rows_than_samples_are_on_every_device_while_there_is_room() -> None:
    shapes = [(16, 16, 1), (4, 16, 1), (17, 16, 1), (400, 16, 1)]
    places = {s.table: s.placement for s in planned(problem(shapes, batch=64)).segments}
    assert {name for name, place in places.items() if isinstance(place, Replicated)} == {"t0", "t1"}
    tight = problem([(16, 16, 1), (15, 16, 1), (14, 16, 1)], batch=64, hbm=33 * 64)
    plan = planned(tight)
    assert plan.notes["tables_data_parallel"] == 2, "the two smallest"
    assert memory_bytes(plan, tight).hbm.max() <= 33 * 64


def test_nodes_are_the_buckets_where_there_are_several() -> None:
    asked = problem([(1000, 32, 20), (1000, 32, 20), (3, 32, 1)], nodes=2, devices=2, batch=4)
    places = {s.table: s.placement for s in planned(asked).segments}
    assert {places["t0"], places["t1"]} == {RowWise(ranks=(0, 1)), RowWise(ranks=(2, 3))}
    assert isinstance(places["t2"], RowWise)
    flat = {s.table: s.placement for s in planned(asked, "embark-flat").segments}
    assert not any(isinstance(place, RowWise) and len(place.ranks) < 4 for place in flat.values())
    # Neither a sequence nor a table of fewer rows than a node has devices can be dealt inside a node.
    table = replace(asked.tables[0], pooling=Pooling.NONE)
    sequence = planned(replace(asked, tables=(table, *asked.tables[1:]))).by_table()["t0"]
    assert all(isinstance(s.placement, OnRank) or s.placement == RowWise(ranks=(0, 1, 2, 3)) for s in sequence)
    (one_row,) = planned(problem([(1, 16, 1)], nodes=2, devices=2, batch=4, hbm=1 << 20)).segments
    assert one_row.placement == Replicated(ranks=(0, 1, 2, 3))


def test_what_fits_no_device_is_split_until_it_does() -> None:
    size = 1000 * 64 * 4
    halves = planned(problem([(1000, 64, 1)], hbm=size // 2)).segments
    assert [s.columns for s in halves] == [32, 32]
    quarters = planned(problem([(1000, 64, 1)], hbm=size // 4)).segments
    assert all(s.placement == RowWise(ranks=(0, 1, 2, 3)) for s in quarters)
    with pytest.raises(Infeasible, match="finds no room in HBM"):
        planned(problem([(1000, 64, 1)], hbm=size // 4 - 1))
    adagrad = replace(problem([(1000, 64, 1)], hbm=size), optimizer=Optimizer.ROWWISE_ADAGRAD)
    assert len(planned(adagrad).segments) == 2, "moments of 4 bytes a row have no room beside the whole"


def test_a_hierarchical_plan_trains_the_unsharded_model_and_sends_what_is_counted(tmp_path: Path) -> None:
    workload = RandomWorkload([(600, 64), (500, 16), (5, 16), (300, 8)], 32, unpooled=frozenset({1}))
    asked = workload.problem(small(2, 2))
    plan = planned(asked)
    kinds = {type(s.placement) for s in plan.segments}
    assert kinds == {Replicated, RowWise, OnRank}
    assert any(isinstance(s.placement, RowWise) and len(s.placement.ranks) == 2 for s in plan.segments)
    ran = on_ranks(tmp_path, workload, asked, plan, warmup=0, iterations=1)
    ran.check_sent()
    ran.check_trained()
