"""FlexShard: the rule by hand and against the counter, its budget, and its distance to the best plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import CONSTANTS, machine

from shardbench.base.errors import BadInput, Infeasible
from shardbench.baselines.flexshard import FlexShard
from shardbench.baselines.flexshard.memory_budget import Compared, fullest_device_bytes
from shardbench.baselines.flexshard.reproduction.exact import best_of_all, bound_s
from shardbench.baselines.flexshard.rule import Prices, Tiers, added_bytes, benefits, choose
from shardbench.baselines.flexshard.search import Found, Search, communication_s, search
from shardbench.baselines.flexshard.shape import cold_bytes, find_homes, least_bytes, make_plan, runnable
from shardbench.baselines.flexshard.tier_memory import Room
from shardbench.baselines.flexshard.units import Units, is_split, link_shares, make_units
from shardbench.cost.traffic import expect
from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Machine
from shardbench.model.plan import NodeSharded, OnRank, Plan, Replicated, RowWise
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes, validate
from shardbench.runs.conformance import check

NAMES = ["flexshard", "flexshard-no-warm-tier", "flexshard-whole-table-budget"]


def quick_machine(nodes: int = 2, devices: int = 2, hbm: int = 10**9, latency: float = 0.0) -> Machine:
    """Latencies times ``latency``: full ones would drown the bytes of small problems."""
    constants = replace(
        CONSTANTS,
        intra_latency_s=latency * CONSTANTS.intra_latency_s,
        inter_latency_s=latency * CONSTANTS.inter_latency_s,
        peer_latency_s=latency * CONSTANTS.peer_latency_s,
    )
    return replace(machine(nodes, devices, hbm=hbm), constants=constants)


def problem_of(
    counts: list[list[int]],
    *,
    on: Machine | None = None,
    dim: int | tuple[int, ...] = 16,
    batch: int = 64,
    samples: int = 64,
    **rest,
) -> Problem:
    """Sequence tables of given access counts by row."""
    dims = (dim,) * len(counts) if isinstance(dim, int) else dim
    tables = tuple(
        Table(name=f"s{i}", rows=len(c), dim=d, pooling=Pooling.NONE) for i, (c, d) in enumerate(zip(counts, dims))
    )
    profiles = tuple(
        AccessProfile.from_counts(np.array(c), rows=len(c), samples=samples, present=samples) for c in counts
    )
    return Problem.of("p", tables, profiles, on or quick_machine(), batch_size=batch, **rest)


def tiers(hot: list[int], warm: list[int]) -> Tiers:
    return Tiers(hot=np.array(hot), warm=np.array(warm))


def zipf(rows: int, top: int) -> list[int]:
    return [top // (r + 1) for r in range(rows)]


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name: str) -> None:
    check(get_strategy(name))


def test_benefits_by_hand() -> None:
    # 2 nodes x 2; local batch 16 of 64 samples: a row seen 8 times is looked up twice a rank.
    problem = problem_of([[8, 4, 0, 0, 0, 0, 0, 0]])
    units = make_units(problem, with_warm=True)
    assert units.number.tolist() == [1, 1, 6]
    np.testing.assert_allclose(units.exchanged, [2 * (8 + 128), 1 * 136, 0])
    assert set(units.weights) == {64}
    prices = Prices(exchange=(1e-11, 1e-10), synchronise=(2e-11, 1e-10))
    warm, hot = benefits(units, link_shares(problem), prices)
    # Cold: a quarter inside, half across. Warm: half inside; its copies' gradients: 2 (N-1)/N of half the row.
    # Hot: all-reduce of 2 x 1/2 inside and 2 x 1/2 x 1/2 across.
    cold = 0.25 * 1e-11 + 0.5 * 1e-10
    assert warm[0] == pytest.approx(272 * (cold - 0.5 * 1e-11) - 64 * 0.5 * 1e-10)
    assert hot[0] == pytest.approx(272 * cold - 64 * (1.0 * 2e-11 + 0.5 * 1e-10))
    assert warm[2] < 0 > hot[2]
    more_warm, more_hot = added_bytes(units, problem)
    assert more_warm[0] == pytest.approx(64 * (1 / 2 - 1 / 4))
    assert more_hot[0] == pytest.approx(64 * 3 / 4)


@given(st.integers(0, 10), st.integers(0, 10), st.sampled_from([(2, 2), (2, 3), (1, 4), (3, 1)]))
def test_the_rule_and_the_counter_agree_on_every_byte(hot: int, warm: int, shape: tuple[int, int]) -> None:
    problem = problem_of([zipf(40, 60)], on=quick_machine(*shape), batch=24, samples=48)
    homes = find_homes(problem, over_all=False)
    moved = tiers([hot], [warm])
    if runnable(moved, problem) != moved:
        return
    units, shares = make_units(problem, with_warm=True), link_shares(problem)
    ends = np.cumsum(units.number)
    in_hot = np.clip(hot - (ends - units.number), 0, units.number)
    in_warm = np.clip(hot + warm - (ends - units.number), 0, units.number) - in_hot
    sent = expect(make_plan(problem, homes, moved), problem).collectives
    for link, name in ((0, "sent_intra"), (1, "sent_inter")):
        cold_part, warm_part = shares.cold[link], shares.warm[link]
        bytes_ = units.exchanged @ ((units.number - in_hot - in_warm) * cold_part + in_warm * warm_part)
        exchanged = sum(
            float(getattr(sent[c], name).max())
            for c in ("input_all_to_all", "output_all_to_all", "backward_all_to_all")
        )
        local, world = problem.topology.devices_per_node, problem.world_size
        lengths = problem.batch_size // world * 4 * ((local - 1) if link == 0 else (world - local))
        in_node = problem.batch_size // world * 4 * (local - 1) * (warm > 0) * (link == 0)
        assert exchanged == pytest.approx(bytes_ + lengths + in_node)
        if warm % local == 0:
            reduced = units.weights @ (in_hot * shares.hot_sync[link] + in_warm * shares.warm_sync[link])
            assert float(getattr(sent["rows_all_reduce"], name).max()) == pytest.approx(reduced)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(3, 60), st.integers(0, 60), st.integers(0, 60), st.booleans()), min_size=1),
    st.sampled_from([(2, 2), (2, 3), (1, 4), (3, 1)]),
    st.booleans(),
)
def test_room_is_what_the_harness_counts(
    shapes: list[tuple[int, int, int, bool]], shape: tuple[int, int], over_all: bool
) -> None:
    problem = problem_of([[1] * rows for rows, *_ in shapes], on=quick_machine(*shape), batch=24)
    pooled = (Pooling.SUM if bag else Pooling.NONE for *_, bag in shapes)
    problem = replace(problem, tables=tuple(replace(t, pooling=p) for t, p in zip(problem.tables, pooled)))
    homes = find_homes(problem, over_all=over_all)
    hot, warm = [min(hot, rows) for rows, hot, *_ in shapes], [warm for *_, warm, _ in shapes]
    split = [is_split(table, problem.world_size) for table in problem.tables]
    moved = tiers(
        [h if cut else rows * (h > 5) for h, cut, (rows, *_) in zip(hot, split, shapes)],
        [min(w, rows - h) * cut for h, w, cut, (rows, *_) in zip(hot, warm, split, shapes)],
    )
    moved = runnable(moved, problem)
    counted = memory_bytes(make_plan(problem, homes, moved), problem).hbm
    assert Room(problem, homes).bytes_(moved).tolist() == counted.tolist()


COUNTS = st.lists(st.lists(st.integers(0, 200), min_size=5, max_size=40), min_size=1, max_size=4)


@settings(max_examples=25)
@given(COUNTS, st.floats(0.8, 6.0), st.booleans())
def test_memory_stays_within_the_limit_and_tiers_are_ranges(counts: list[list[int]], ratio: float, warm: bool) -> None:
    problem = problem_of(counts, batch=256)
    least = cold_bytes(problem, find_homes(problem, over_all=True))
    limit = int(ratio * least)
    found = search(Search(problem=problem, limit_bytes=limit, with_warm=warm))
    plan = make_plan(problem, found.homes, found.tiers)
    validate(plan, problem, FlexShard.moves)
    assert memory_bytes(plan, problem).hbm.max() <= max(limit, least)
    assert found.seconds == pytest.approx(communication_s(problem, found.homes, found.tiers))
    none = np.zeros(len(counts), dtype=np.int64)
    assert found.seconds <= communication_s(problem, found.homes, Tiers(hot=none, warm=none))
    if not warm:
        assert not found.tiers.warm.any()


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), min_size=6, max_size=40), st.floats(0, 3000), st.floats(0, 1), st.floats(0, 1))
def test_the_greedy_rule_spends_the_budget_on_the_hottest(counts: list[int], left: float, a: float, b: float) -> None:
    problem = problem_of([counts], batch=256)
    units = make_units(problem, with_warm=True)
    saved = benefits(units, link_shares(problem), Prices.weighted(problem.machine, a, b))
    added = added_bytes(units, problem)
    chosen = choose(units, saved, added, left, 1)
    spent = chosen.hot[0] * added[1][0] + chosen.warm[0] * added[0][0]
    assert spent <= left + 1e-6
    assert chosen.hot[0] + chosen.warm[0] <= len(counts)
    assert chosen.warm[0] >= 0
    more = choose(units, saved, added, 2 * left + 100, 1)
    assert more.hot[0] + more.warm[0] >= chosen.hot[0]


def unit_rows(number: list[int], *, warm: bool) -> Units:
    """Rows of one table each, ``number`` of them; bytes are given to the rule apart."""
    ones, counts = np.ones(len(number)), np.array(number, dtype=np.float64)
    return Units(
        table=np.arange(len(number)), number=counts, rows=ones, exchanged=ones, weights=ones, held=ones,
        cold_share=0 * ones, warm=np.full(len(number), warm),
    )  # fmt: skip


def chosen(units: Units, saved: tuple, added: tuple, left: float) -> list[tuple[int, int]]:
    """(hot, warm) rows of each table, by the rule."""
    arrays = [(np.array(warm, dtype=np.float64), np.array(hot, dtype=np.float64)) for warm, hot in (saved, added)]
    found = choose(units, arrays[0], arrays[1], left, len(units.number))
    return list(zip(found.hot.tolist(), found.warm.tolist()))


def test_rows_are_taken_by_seconds_a_byte_and_not_by_seconds() -> None:
    # The first saves more, the second more a byte: 10 s for 10 bytes, 6 s for 3; the third costs.
    units, none = unit_rows([1, 1, 1], warm=False), [-1, -1, -1]
    saved, added = (none, [10, 6, -1]), ([1, 1, 1], [10, 3, 1])
    assert chosen(units, saved, added, 2) == [(0, 0), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 10) == [(0, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 13) == [(1, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 1000) == [(1, 0), (1, 0), (0, 0)]
    # Of a run that does not fit whole as many rows as there is room for: 3 and 3 bytes, then 10.
    assert chosen(unit_rows([2, 4, 1], warm=False), saved, added, 12 + 19) == [(1, 0), (4, 0), (0, 0)]


def test_tiers_are_climbed_along_the_concave_hull() -> None:
    # First: 4 s for the first 2 bytes, 2 s for 4 more. Second: 1 s for 2 bytes is beneath 6 s for 4: hot at once.
    # Third: 0.4 s a byte, after the first's 0.5.
    units = unit_rows([1, 1, 1], warm=True)
    saved, added = ([4, 1, -1], [6, 6, 4]), ([2, 2, 5], [6, 4, 10])
    assert chosen(units, saved, added, 2) == [(0, 1), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 5) == [(0, 1), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 6) == [(0, 1), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 10) == [(1, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 20) == [(1, 0), (1, 0), (1, 0)]
    # 4 s for 8 bytes come after 3 s for 2.
    assert chosen(unit_rows([1, 1], warm=True), ([4, 3], [-1, -1]), ([8, 2], [9, 9]), 8) == [(0, 0), (0, 1)]
    # A unit that may not be warm climbs to hot alone, and 1 s a byte comes after 1.5 s a byte.
    assert chosen(unit_rows([1, 1, 1], warm=False), saved, added, 9) == [(0, 0), (1, 0), (0, 0)]
    # Where hot saves no more than warm, warm is the last step, however much room is left.
    assert chosen(unit_rows([1], warm=True), ([4], [4]), ([2], [6]), 1000) == [(0, 1)]
    assert chosen(unit_rows([1], warm=True), ([4], [-9]), ([2], [6]), 1000) == [(0, 1)]


def test_where_memory_is_short_lukewarm_rows_are_kept_once_a_node() -> None:
    counts = [4000] * 10 + [40] * 200 + [0] * 790
    problem = problem_of([counts], on=quick_machine(2, 4), batch=512, samples=512)
    # 125 rows a device without copies; 20 rows more are 20 / (1/4 - 1/8) = 160 warm rows, or 22 hot ones.
    plan = FlexShard(budget_bytes=64 * 147).plan(problem, Budget(), 0)
    kinds = [type(s.placement) for s in plan.by_table()["s0"]]
    assert kinds in ([Replicated, NodeSharded, RowWise], [NodeSharded, RowWise])
    assert plan.notes["warm_rows"] >= 80
    without = FlexShard(budget_bytes=64 * 147, warm_tier=False).plan(problem, Budget(), 0)
    assert plan.notes["expected_communication_ms"] < without.notes["expected_communication_ms"]
    roomy = FlexShard(budget_bytes=64 * 1000).plan(problem, Budget(), 0)
    assert roomy.notes["expected_communication_ms"] <= plan.notes["expected_communication_ms"]
    assert roomy.notes["hot_rows"] > 0


@pytest.mark.parametrize(
    ("compared", "name"),
    [
        (Compared.TABLE_ROW_WISE, "table-row-wise"),
        (Compared.WHOLE_TABLE, "greedy-size"),
        (Compared.ROW_WISE, "row-wise"),
    ],
)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_budget_is_the_compared_plans_fullest_device(compared: Compared, name: str, rows: list[int]) -> None:
    problem = problem_of([[1] * n for n in rows])
    plan = get_strategy(name).plan(problem, Budget(), 0)
    assert fullest_device_bytes(problem, compared) == memory_bytes(plan, problem).hbm.max()


def test_bad_budgets_are_answered_with_one_line() -> None:
    problem = problem_of([zipf(40, 60)])
    with pytest.raises(Infeasible, match=r"a budget of 63 bytes a device is smaller than one row \(64 bytes\)"):
        FlexShard(budget_bytes=63).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match=r"a budget of 100 bytes a device is too small: .* the tables need 640"):
        FlexShard(budget_bytes=100).plan(problem, Budget(), 0)
    # Table-row-wise sharding holds 20 rows on a device, 1280 bytes: half of it is what no copies need.
    with pytest.raises(Infeasible, match=r"a budget of 1 bytes a device is smaller than one row \(64 bytes\)"):
        FlexShard(budget_ratio=0.001).plan(problem, Budget(), 0)
    assert FlexShard(budget_ratio=0.5).plan(problem, Budget(), 0).notes["budget_bytes"] == 640
    with pytest.raises(Infeasible, match=r"a budget of 639 bytes a device is too small"):
        FlexShard(budget_ratio=0.4995).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match=r"a budget of 600 bytes a device is too small"):
        FlexShard(budget_bytes=1200, budget_ratio=0.5).plan(problem, Budget(), 0)
    with pytest.raises(Infeasible, match="row-wise without any copy needs 640 bytes of HBM on one device, it has 600"):
        FlexShard().plan(problem_of([zipf(40, 60)], on=quick_machine(hbm=600)), Budget(), 0)
    plan = FlexShard(budget_bytes=640).plan(problem, Budget(), 0)
    assert [type(s.placement) for s in plan.segments] == [RowWise]


def test_one_device_alone_has_no_use_for_copies() -> None:
    plan = FlexShard().plan(problem_of([zipf(40, 60)], on=quick_machine(1, 1)), Budget(), 0)
    assert (plan.notes["hot_rows"], plan.notes["warm_rows"]) == (0, 0)


def test_arguments_of_other_kinds_are_refused() -> None:
    with pytest.raises(BadInput, match="needs a positive, finite budget, got 1000 bytes"):
        FlexShard(budget_bytes="1000")
    with pytest.raises(BadInput, match="needs a positive, finite budget"):
        FlexShard(budget_bytes=10**400)
    with pytest.raises(BadInput, match="is compared with one of table-row-wise, whole-table, row-wise, not 'nonsense'"):
        FlexShard(compared="nonsense")


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), -float("inf")])
def test_a_budget_is_positive_and_finite(bad: float) -> None:
    with pytest.raises(BadInput, match="needs a positive, finite budget"):
        FlexShard(budget_bytes=bad)
    with pytest.raises(BadInput, match="needs a positive, finite budget"):
        FlexShard(budget_ratio=bad)
    huge = FlexShard(budget_bytes=10**12, budget_ratio=1e300)
    assert huge.limit_bytes(problem_of([zipf(40, 60)])) == 10**9


def test_no_copies_are_kept_where_they_exceed_the_compared_plan_by_rounding() -> None:
    # Four ranks hold 2 rows of each where a node's two devices, one table on each node, hold 3 at most.
    problem = problem_of([[9] * 5, [9] * 5])
    assert fullest_device_bytes(problem, Compared.TABLE_ROW_WISE) == 3 * 64
    assert least_bytes(problem) <= 4 * 64
    plan = FlexShard().plan(problem, Budget(), 0)
    assert [type(s.placement) for s in plan.segments] == [RowWise, RowWise]


def test_other_optimisers_have_no_warm_tier() -> None:
    problem = problem_of([[4000] * 4 + [900] * 40 + [0] * 56] * 3, batch=512, optimizer=Optimizer.ROWWISE_ADAGRAD)
    plan = FlexShard(budget_ratio=3.0).plan(problem, Budget(), 0)
    assert not any(isinstance(s.placement, NodeSharded) for s in plan.segments)
    assert plan.notes["warm_tier"] == "left out: averaging is exact for sgd only"
    assert plan.notes["hot_rows"] > 0


def test_pooled_and_tiny_tables_stay_whole() -> None:
    sequence = problem_of([zipf(400, 900), [50] * 3])
    tables = (*sequence.tables, *(Table(name=f"bag{i}", rows=r, dim=16) for i, r in enumerate((500, 20, 10))))
    bags = tuple(AccessProfile.from_counts(np.full(t.rows, 3), rows=t.rows, samples=64, present=64) for t in tables[2:])
    problem = replace(sequence, tables=tables, profiles=(*sequence.profiles, *bags))
    by_table = FlexShard().plan(problem, Budget(), 0).by_table()
    for name in ("s1", "bag0", "bag1", "bag2"):
        assert len(by_table[name]) == 1
    # 500 rows are more than a device's mean share of the whole tables' bytes: dealt over one node.
    homes = find_homes(problem, over_all=False).placement
    assert homes[2] == RowWise(ranks=(0, 1))
    assert isinstance(homes[4], OnRank)


@pytest.mark.parametrize(
    ("hot", "warm", "expected"),
    [
        (0, 0, (0, 0)),
        (5, 1, (5, 0)),  # one warm row cannot be dealt over two devices
        (37, 0, (36, 0)),  # three cold rows cannot be dealt over four ranks
        (30, 8, (30, 6)),
        (38, 1, (36, 0)),
        (40, 0, (40, 0)),
        (0, 40, (0, 40)),
        (39, 1, (36, 0)),
    ],
)
def test_tiers_that_cannot_be_dealt_move_to_the_colder_one(hot: int, warm: int, expected: tuple[int, int]) -> None:
    made = runnable(tiers([hot], [warm]), problem_of([zipf(40, 60)]))
    assert (int(made.hot[0]), int(made.warm[0])) == expected


@settings(max_examples=15)
@given(st.lists(st.integers(0, 300), min_size=12, max_size=24), st.sampled_from([1.0, 1.3, 2.0, 4.0]))
def test_bound_best_and_rule_are_in_order(counts: list[int], ratio: float) -> None:
    problem = problem_of([sorted(counts, reverse=True)], batch=256)
    limit = int(ratio * cold_bytes(problem, find_homes(problem, over_all=False)))
    found = search(Search(problem=problem, limit_bytes=limit, with_warm=True)).seconds
    best, _ = best_of_all(problem, limit, step=1)
    bound = bound_s(problem, limit)
    assert bound <= best * (1 + 1e-6)
    assert best <= found * (1 + 1e-9)


LATENCY = st.sampled_from([0.0, 1e-3, 1e-2, 0.1, 1.0])
"""Of the toy machine's: from none over about the time of the bytes to most of it."""


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 300), min_size=4, max_size=8),
    st.lists(st.integers(0, 20), min_size=4, max_size=6),
    LATENCY,
    st.sampled_from([1.0, 1.5, 4.0]),
    st.sampled_from([(16, 16), (16, 8)]),
    st.sampled_from([(2, 2), (1, 4), (4, 1)]),
)
def test_bound_best_and_rule_are_in_order_with_latencies(
    one: list[int], other: list[int], latency: float, ratio: float, dims: tuple[int, int], shape: tuple[int, int]
) -> None:
    counts = [sorted(one, reverse=True), sorted(other, reverse=True)]
    problem = problem_of(counts, on=quick_machine(*shape, latency=latency), dim=dims, batch=256)
    limit = int(ratio * least_bytes(problem))
    found = search(Search(problem=problem, limit_bytes=limit, with_warm=True)).seconds
    best, _ = best_of_all(problem, limit, step=1)
    assert bound_s(problem, limit) <= best * (1 + 1e-6)
    assert best <= found * (1 + 1e-9)


def test_the_bound_counts_the_latency_of_every_call() -> None:
    # Room for every copy, and lookups that make one worthless: row-wise's calls are all there is to it, but one.
    on = quick_machine(latency=1.0)
    problem = problem_of([[9] * 12, [9] * 12], on=on, dim=(16, 8))
    homes = find_homes(problem, over_all=False)
    world, node, cross = 3e-5 + 3e-6, 1e-5 + 1e-6, 3e-5 + 1e-6

    def latencies(hot: list[int], warm: list[int]) -> float:
        moved = tiers(hot, warm)
        without = replace(problem, machine=quick_machine())
        return communication_s(problem, homes, moved) - communication_s(without, homes, moved)

    # Splits, lengths, indices, vectors, gradients of two widths; an all-reduce a width of replicas, one for all copies.
    assert latencies([0, 0], [0, 0]) == pytest.approx(10 * world)
    assert latencies([4, 0], [0, 0]) == pytest.approx(11 * world)
    assert latencies([0, 0], [4, 4]) == pytest.approx(10 * world + 10 * node + cross)
    assert latencies([0, 4], [12, 0]) == pytest.approx(5 * world + 5 * node + world + cross)
    assert latencies([12, 12], [0, 0]) == pytest.approx(2 * world)
    best, chosen = best_of_all(problem, 10**6, step=4)
    assert (chosen.hot.tolist(), chosen.warm.tolist()) == ([12, 12], [0, 0])
    assert bound_s(problem, 10**6) == pytest.approx(best, rel=1e-6)


@settings(max_examples=15)
@given(COUNTS, st.floats(1.0, 6.0), LATENCY)
def test_a_warm_tier_never_makes_the_plan_worse(counts: list[list[int]], ratio: float, latency: float) -> None:
    problem = problem_of(counts, on=quick_machine(latency=latency), batch=256)
    limit = int(ratio * least_bytes(problem))
    with_warm, without = (search(Search(problem=problem, limit_bytes=limit, with_warm=w)) for w in (True, False))
    assert with_warm.seconds <= without.seconds


def test_plans_without_a_warm_tier_are_searched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Search(problem=problem_of([zipf(40, 60)]), limit_bytes=10**6, with_warm=True)

    def searched(one: Search) -> Found:
        none = np.zeros(1, dtype=np.int64)
        homes = find_homes(one.problem, over_all=False)
        return Found(homes=homes, tiers=Tiers(hot=none, warm=none), seconds=2.0 if one.with_warm else 1.0)

    monkeypatch.setitem(search.__globals__, "_searched", searched)
    assert search(asked).seconds == 1.0
    assert search(replace(asked, with_warm=False)).seconds == 1.0


def test_a_tier_that_costs_calls_is_emptied_in_all_tables_at_once() -> None:
    # Without its cold rows one table saves lengths and pays for copies of rows that are hardly looked up; only where
    # both have none are four calls over the cluster saved.
    first = [7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 3, 3, 2, 1, 1]
    other = [6, 6, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 2, 1, 1, 1, 0, 0]
    problem = problem_of([first, other], on=quick_machine(latency=0.01), batch=256)
    found = search(Search(problem=problem, limit_bytes=2 * least_bytes(problem), with_warm=True))
    assert found.tiers == tiers([0, 0], [15, 20])


def test_the_exact_solution_asks_for_small_problems_of_sequences() -> None:
    with pytest.raises(BadInput, match="more than 50000 plans: use fewer tables or a larger step"):
        best_of_all(problem_of([zipf(40, 60)] * 3), 10**6, step=1)
    with pytest.raises(BadInput, match="no plan of problem p fits 10 bytes"):
        best_of_all(problem_of([zipf(12, 60)]), 10, step=4)
    pooled = replace(problem_of([zipf(12, 60)]), tables=(Table(name="s0", rows=12, dim=16),))
    with pytest.raises(BadInput, match="table 's0' is not split into tiers"):
        bound_s(pooled, 10**6)


def test_a_plan_does_not_depend_on_the_seed_or_undeclared_information() -> None:
    problem = problem_of([zipf(200, 900), zipf(300, 500)], batch=512)
    one: Plan = FlexShard().plan(problem, Budget(), 0)
    other = FlexShard().plan(problem.restricted_to(FlexShard.sees), Budget(), 1)
    assert one == other
