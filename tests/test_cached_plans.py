"""Plans with a cache in HBM over host memory: validity, memory, counts, times and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from problems import CONSTANTS, RandomWorkload, bags, machine

from shardbench.base.errors import BadInput, InvalidPlan, Unsupported
from shardbench.cost.cache import Cache
from shardbench.cost.caching import Caches, counted_caches, expected_caches, shared_caches, steady_cache
from shardbench.cost.costmodel import caching_s, estimate, forward_s, step_time
from shardbench.cost.published.gpus import shared
from shardbench.cost.traffic import Traffic, count, expect, mean
from shardbench.model.caching import MAP_BYTES, SLOT_BYTES, sets_of
from shardbench.model.machine import Machine
from shardbench.model.plan import (
    BatchSchedule,
    GroupSharded,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    tier_of,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Optimizer, Pooling, Table
from shardbench.model.validate import memory_bytes, used_moves, validate
from shardbench.trials.simulate import CountedQuestion, simulate, totals
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Bags, Split

CACHED = {"tier": Tier.CACHED, "cache_ratio": 0.25}
DENSE = DenseShape(features=4, bottom=(8, 8), top=(8, 1))


def on(nodes: int = 1, devices: int = 2, **rest: int) -> Machine:
    return replace(machine(nodes, devices, **rest), device="cuda")


def plan(*segments: Segment, world: int = 2) -> Plan:
    return Plan(world_size=world, segments=segments)


def flat(rows: int, samples: int = 100, each: int = 4) -> AccessProfile:
    """A profile of which every row was asked for as often."""
    return AccessProfile.from_counts(np.full(rows, each), rows=rows, samples=samples, present=samples)


def one_table(rows: int, on_: Machine, **rest: object) -> Problem:
    table = Table(name="a", rows=rows, dim=8)
    return Problem.of("p", (table,), (flat(rows),), on_, batch_size=8, **rest)


WORKLOAD = RandomWorkload([(400, 8), (90, 16)], 16, seed=3)


def lookups_of(n: int, table: int) -> Bags:
    return WORKLOAD.bags(Split.TEST, n, table)


def alike(*placements: Placement, on_: Machine) -> tuple[Problem, Plan]:
    problem = WORKLOAD.problem(on_)
    segments = [whole_table(table, place) for table, place in zip(problem.tables, placements)]
    return problem, plan(*segments, world=problem.world_size)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"tier":"cached"', "'cached' states a ratio above 0 and up to 1"),
        ('"tier":"uvm","cache_ratio":0.5', "the other tiers have no cache"),
        ('"tier":"cached","cache_ratio":1.01', "cache_ratio: Input should be less than or equal to 1"),
        ('"tier":"cached","cache_ratio":0', "cache_ratio: Input should be greater than 0"),
        ('"tier":"cached","cache_ratio":-1', "cache_ratio: Input should be greater than 0"),
        ('"tier":"cached","cache_ratio":NaN', "cache_ratio: Input should be a finite number"),
    ],
)
def test_a_ratio_that_is_none_is_one_clear_line(text: str, words: str) -> None:
    written = plan(whole_table(Table(name="a", rows=4, dim=8), OnRank(rank=0))).to_json()
    with pytest.raises(BadInput) as caught:
        Plan.from_json(written.replace('"tier":"hbm"', text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_ratio_is_in_the_json_of_cached_segments_alone() -> None:
    tables = [Table(name=name, rows=40, dim=8) for name in "ab"]
    both = plan(whole_table(tables[0], OnRank(rank=0)), whole_table(tables[1], RowWise(ranks=(0, 1), **CACHED)))
    assert both.to_json().count("cache_ratio") == 1
    assert Plan.from_json(both.to_json()) == both
    assert [tier_of(s.placement) for s in both.segments] == [Tier.HBM, Tier.CACHED]
    assert tier_of(Replicated(ranks=(0,))) is Tier.HBM


def test_a_cache_is_a_move_of_its_own() -> None:
    problem = one_table(64, on())
    cached = plan(whole_table(problem.tables[0], OnRank(rank=1, **CACHED)))
    assert used_moves(cached, problem) == {Move.TABLE, Move.UVM, Move.CACHE}
    validate(cached, problem, frozenset({Move.TABLE, Move.UVM, Move.CACHE}))
    with pytest.raises(InvalidPlan, match=r"does not declare: cache$"):
        validate(cached, problem, frozenset({Move.TABLE, Move.UVM}))


def test_memory_is_rows_in_the_host_and_a_cache_of_whole_sets() -> None:
    problem = one_table(1000, on())
    # 250 slots are eight sets of 32.
    cache = 256 * (8 * 4 + SLOT_BYTES) + MAP_BYTES * 1000
    for optimizer, small, large in ((Optimizer.SGD, 0, 0), (Optimizer.ROWWISE_ADAGRAD, 4, 0), (Optimizer.ADAM, 0, 64)):
        asked = replace(problem, optimizer=optimizer)
        memory = memory_bytes(plan(whole_table(problem.tables[0], OnRank(rank=1, **CACHED))), asked)
        assert memory.hbm.tolist() == [0, cache + small * 1000]
        assert memory.uvm.tolist() == [0, 1000 * (32 + large)]


def test_tables_of_a_kernel_share_a_cache_as_wide_as_the_widest() -> None:
    tables = (Table(name="a", rows=100, dim=8), Table(name="b", rows=60, dim=16), Table(name="c", rows=100, dim=16))
    problem = Problem.of("p", tables, (flat(100), flat(60), flat(100)), on(), batch_size=8)
    half = {"tier": Tier.CACHED, "cache_ratio": 0.5}
    both = plan(
        whole_table(tables[0], OnRank(rank=0, **CACHED)), whole_table(tables[1], OnRank(rank=0, **half)),
        whole_table(tables[2], RowWise(ranks=(0, 1), **half)),
    )  # fmt: skip
    # 25 + 30 rows are two sets; the row-wise table has another kernel and a cache on each device: 25 rows, one set.
    first = 64 * (16 * 4 + SLOT_BYTES) + MAP_BYTES * 160
    other = 32 * (16 * 4 + SLOT_BYTES) + MAP_BYTES * 50
    assert memory_bytes(both, problem).hbm.tolist() == [first + other, other]
    assert sorted(steady_cache(parts).slots for parts in shared_caches(both, problem)) == [32, 32, 64]


def test_a_cache_that_does_not_fit_is_refused() -> None:
    problem = one_table(1000, on(hbm=10_000))
    whole = OnRank(rank=0, tier=Tier.CACHED, cache_ratio=1.0)
    with pytest.raises(InvalidPlan, match="device 0 needs 53152 bytes of HBM but has 10000"):
        validate(plan(whole_table(problem.tables[0], whole)), problem, frozenset(Move))


def test_hits_and_misses_are_counted_by_hand() -> None:
    # 40 rows, of which the profile knows the first 20, and a cache of one set: twelve of its slots are free.
    table = Table(name="a", rows=40, dim=8)
    counts = np.r_[np.full(20, 50), np.zeros(20, dtype=np.int64)]
    profile = AccessProfile.from_counts(counts, rows=40, samples=1000, present=1000)
    problem = Problem.of("p", (table,), (profile,), on(), batch_size=2)
    cached = plan(whole_table(table, OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.8)))
    first, second = bags([0, 1, 20, 20], [21, 5]), bags([20, 0], [30, 30, 30])
    met = counted_caches(cached, problem, lambda n, i: (first, second)[n], 2)
    segment = cached.segments[0]
    # Batch 1: rows 20 and 21 are missed; batch 2: row 30. All rows that were seen are there, nobody has to leave.
    assert [[float(number[0]) for number in caches[segment]] for caches in met] == [[2, 0, 0, 0], [1, 0, 0, 0]]

    traffic = count(cached, problem, lambda i: second, DENSE, caches=met[1])
    assert traffic.caching is not None
    assert traffic.caching.lookups.tolist() == [0, 5]
    assert traffic.caching.filled_bytes.tolist() == [0, 32]
    assert traffic.load.lookups.tolist() == [0, 5]
    assert traffic.load.distinct.tolist() == [0, 3]
    assert not traffic.load.uvm.values.any()
    assert totals(traffic).off_hbm_lookups == 1
    assert totals(traffic).uvm_bytes == 32


def test_rows_beyond_a_set_read_host_memory_by_lookup() -> None:
    table = Table(name="a", rows=64, dim=8)
    problem = Problem.of("p", (table,), (flat(64),), on(), batch_size=2)
    # One set for 64 rows, all of which the batch asks for: row r twice if it is odd.
    cached = plan(whole_table(table, OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.5)))
    batch = bags(list(range(64)), list(range(1, 64, 2)))
    met = counted_caches(cached, problem, lambda n, i: batch, 1)[0]
    numbers = met[cached.segments[0]]
    assert numbers.conflict[0] == 32
    hits = 32 - numbers.inserted[0]
    assert 0 <= hits < 32
    assert numbers.evicted[0] == numbers.inserted[0]
    traffic = count(cached, problem, lambda i: batch, DENSE, caches=met)
    assert traffic.load.uvm.distinct[0] == 32
    assert traffic.load.distinct[0] == 32
    assert 32 <= traffic.load.uvm.lookups[0] == numbers.conflict_lookups[0] <= 64
    assert traffic.load.lookups[0] + traffic.load.uvm.lookups[0] == 96


def test_distinct_ids_miss_once_a_rank_by_hand() -> None:
    """Both ranks ask for all 64 rows of one set, odd ones twice or thrice: distinct ids are 128 lookups, not 192."""
    table = Table(name="a", rows=64, dim=8, pooling=Pooling.NONE, distinct=True)
    problem = Problem.of("p", (table,), (flat(64),), on(), batch_size=4)
    cached = plan(whole_table(table, OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.5)))
    batch = bags(list(range(64)), list(range(1, 64, 2)), list(range(64)), list(range(1, 64, 2)))
    met = counted_caches(cached, problem, lambda n, i: batch, 1)[0]
    numbers = met[cached.segments[0]]
    assert (numbers.conflict[0], numbers.conflict_lookups[0]) == (32, 64)
    traffic = count(cached, problem, lambda i: batch, DENSE, caches=met)
    assert (traffic.load.lookups[0], traffic.load.uvm.lookups[0]) == (64, 64)
    # Every rank asks for nearly all rows: what is expected is no more than that, and all is counted once.
    of = expect(cached, problem).load
    hbm = expect(plan(whole_table(table, OnRank(rank=0))), problem).load
    assert 0 < of.uvm.distinct[0] <= of.uvm.lookups[0] <= 2 * of.uvm.distinct[0]
    assert of.lookups[0] + of.uvm.lookups[0] == pytest.approx(hbm.lookups[0])


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_cache_that_holds_the_batch_costs_hbm_and_its_directory(optimizer: Optimizer) -> None:
    """With every row in the cache the load is that of HBM, but for large state, which host memory keeps."""
    problem = replace(one_table(64, on()), optimizer=optimizer)
    batch = bags(*[[i, i + 1, 2 * i] for i in range(8)])
    table = problem.tables[0]
    cached = plan(whole_table(table, OnRank(rank=0, tier=Tier.CACHED, cache_ratio=1.0)))
    caches = counted_caches(cached, problem, lambda n, i: batch, 1)[0]
    inside = count(cached, problem, lambda i: batch, DENSE, caches=nothing(caches))
    hbm = count(plan(whole_table(table, OnRank(rank=0))), problem, lambda i: batch, DENSE)
    state = hbm.load.state_bytes.copy()
    if optimizer is Optimizer.ADAM:
        assert inside.load.uvm.state_bytes.tolist() == state.tolist()
        hbm.load.state_bytes[...] = 0.0
        hbm.load.uvm.state_bytes[...] = state
    assert np.array_equal(inside.load.values, hbm.load.values)
    assert inside.caching is not None
    directory = caching_s(inside.caching, CONSTANTS, shared()["cache_directory_s"])
    assert directory.tolist() == [24 * shared()["cache_directory_s"], 0.0]
    tables, size = problem.tables, problem.batch_size
    slower = step_time(inside, problem.machine, DENSE, tables, size).forward_ms[0]
    assert slower == pytest.approx(1e3 * forward_s(hbm.load, CONSTANTS, directory)[0] + 1e3 * CONSTANTS.module_s)


def nothing(caches: Caches) -> Caches:
    """The same caches, in which nothing was missed."""
    return {
        s: numbers._replace(inserted=0 * numbers.inserted, evicted=0 * numbers.evicted) for s, numbers in caches.items()
    }


PLACED = {
    "whole": ((1, 2), (OnRank(rank=0, **CACHED), OnRank(rank=0, **CACHED))),
    "dealt": ((1, 2), (RowWise(ranks=(0, 1), **CACHED), OnRank(rank=1))),
    "a node's": ((2, 2), (RowWise(ranks=(2, 3), **CACHED), OnRank(rank=1, **CACHED))),
    "a copy a node": ((2, 2), (GroupSharded(**CACHED), OnLocalRank(local_rank=1, **CACHED))),
}


@pytest.mark.parametrize("case", PLACED)
@pytest.mark.parametrize("distinct", [False, True])
def test_every_lookup_is_counted_once(case: str, distinct: bool) -> None:
    shape, placements = PLACED[case]
    problem, cached = alike(*placements, on_=on(*shape))
    if distinct:
        kept = tuple(replace(table, pooling=Pooling.NONE, distinct=True) for table in problem.tables)
        problem = replace(problem, tables=kept)
    met = counted_caches(cached, problem, lookups_of, 2)
    hbm = replace(cached, segments=tuple(replace(s, placement=in_hbm(s.placement)) for s in cached.segments))
    for n in range(2):
        here = count(cached, problem, lambda i, n=n: lookups_of(n, i), DENSE, caches=met[n])  # type: ignore[misc]
        there = count(hbm, problem, lambda i, n=n: lookups_of(n, i), DENSE)  # type: ignore[misc]
        assert (here.load.all_lookups == there.load.lookups).all()
        assert (here.load.distinct + here.load.uvm.distinct == there.load.distinct).all()
        assert here.load.bags.tolist() == there.load.bags.tolist()
        assert here.caching is not None
        for segment, numbers in met[n].items():
            assert (numbers.inserted >= 0).all()
            assert (numbers.conflict_lookups >= numbers.conflict).all()
            assert (
                len(numbers.inserted)
                == {"row_wise": 2, "on_rank": 1, "node_sharded": 4, "on_local_rank": 2}[segment.placement.kind]
            )


def in_hbm(place: Placement) -> Placement:
    return replace(place, tier=Tier.HBM, cache_ratio=None) if tier_of(place) is Tier.CACHED else place  # type: ignore[call-arg]


def drawn(draw: np.random.Generator, weights: np.ndarray, lookups: int) -> Bags:
    values = draw.choice(len(weights), lookups, p=weights).astype(np.int64)
    return Bags(values=values, offsets=np.arange(lookups + 1))


@pytest.mark.parametrize(("rows", "power", "ratio", "lookups", "off"), [
    (20_000, 0.8, 0.1, 500, 0.04),  # a batch is a quarter of the cache
    (20_000, 0.0, 0.2, 500, 0.04),  # uniform
    (8_000, 0.0, 0.2, 2_000, 0.04),  # about one batch of rows fits, and sets overflow
    (8_000, 0.5, 0.1, 3_000, 0.1),  # less than one batch fits: hot rows keep their slots, which Che does not know
])  # fmt: skip
def test_expected_misses_are_those_of_a_long_run(
    rows: int, power: float, ratio: float, lookups: int, off: float
) -> None:
    """Che's approximation, the counted batches that begin at it, and a cache that begins empty tell the same."""
    draw, batches = np.random.default_rng(1), 12
    weights = (1.0 + np.arange(rows)) ** -power
    weights /= weights.sum()
    long = np.sort(np.bincount(drawn(draw, weights, 200 * lookups).values, minlength=rows))[::-1]
    table = Table(name="a", rows=rows, dim=8)
    profile = AccessProfile.from_counts(long, rows=rows, samples=200 * lookups, present=200 * lookups)
    problem = Problem.of("p", (table,), (profile,), on(), batch_size=lookups)
    cached = plan(whole_table(table, OnRank(rank=0, tier=Tier.CACHED, cache_ratio=ratio)))
    segment = cached.segments[0]
    test = [drawn(draw, weights, lookups) for _ in range(batches)]
    begun = [c[segment] for c in counted_caches(cached, problem, lambda n, i: test[n], batches)]
    cold = Cache(sets_of(ratio * rows))
    steps = []
    for _ in range(60):
        asked, counts = np.unique(drawn(draw, weights, lookups).values, return_counts=True)
        step = cold.step(asked)
        steps.append((step.inserted.sum(), step.conflict.sum(), counts[step.conflict].sum(), len(step.evicted)))
    settled = np.mean(steps[40:], axis=0)
    expected = np.array([number[0] for number in expected_caches(cached, problem)[segment]])
    counted = np.mean([[number[0] for number in c] for c in begun], axis=0)
    distinct = float(np.mean([len(np.unique(b.values)) for b in test]))
    # Of a batch's distinct rows, in shares: insertions, conflicts, their lookups and evictions.
    assert np.abs(expected - settled).max() / distinct < off
    assert np.abs(counted - settled).max() / distinct < off


def test_a_cache_of_all_rows_misses_what_the_profile_has_not_seen() -> None:
    counts = np.r_[np.full(50, 100), np.ones(200, dtype=np.int64), np.zeros(750, dtype=np.int64)]
    table = Table(name="a", rows=1000, dim=8)
    profile = AccessProfile.from_counts(counts, rows=1000, samples=5200, present=5200)
    problem = Problem.of("p", (table,), (profile,), on(), batch_size=260)
    cached = plan(whole_table(table, OnRank(rank=0, tier=Tier.CACHED, cache_ratio=1.0)))
    numbers = expected_caches(cached, problem)[cached.segments[0]]
    # Good and Turing: 200 of 5,200 lookups go to rows that were never seen; as many lookups later fewer are left.
    left = np.exp(-5200 * profile.unseen_rate)
    assert 0.7 < left < 0.8
    assert numbers.inserted[0] == pytest.approx(260 * 200 / 5200 * left, rel=0.1)
    assert numbers.evicted[0] == 0
    assert numbers.conflict[0] == pytest.approx(0, abs=0.5)


def test_an_empty_table_and_an_empty_batch_have_nothing_to_miss() -> None:
    table = Table(name="a", rows=100, dim=8)
    profile = AccessProfile.from_counts(np.zeros(100, dtype=np.int64), rows=100, samples=10, present=0)
    problem = Problem.of("p", (table,), (profile,), on(), batch_size=2)
    cached = plan(whole_table(table, RowWise(ranks=(0, 1), **CACHED)))
    assert expect(cached, problem).load.lookups.tolist() == [0, 0]
    met = counted_caches(cached, problem, lambda n, i: bags([], []), 1)[0]
    assert not np.stack(met[cached.segments[0]]).any()
    first = counted_caches(cached, problem, lambda n, i: bags([3], [4, 3]), 1)[0]
    assert first[cached.segments[0]].inserted.sum() == 2


def test_a_step_with_a_cache_lies_between_hbm_and_host_memory() -> None:
    workload = RandomWorkload([(4000, 64)], 512, pooling=20)
    problem = workload.problem(on())
    steps = {}
    for name, place in {
        "hbm": OnRank(rank=0), "half": OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.5),
        "tenth": OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.1), "uvm": OnRank(rank=0, tier=Tier.UVM),
    }.items():  # fmt: skip
        made = plan(whole_table(workload.tables[0], place))
        counted = simulate(made, problem, DrawnBatches(workload, 2), workload.dense, 2)
        steps[name] = counted.step_ms
        assert estimate(made, problem, workload.dense).step_ms == pytest.approx(counted.step_ms, rel=0.25)
    assert steps["hbm"] < steps["half"] < steps["uvm"]
    assert steps["half"] < steps["tenth"]


def test_the_mean_over_batches_has_the_caches_mean() -> None:
    problem, cached = alike(OnRank(rank=0, **CACHED), OnRank(rank=1, **CACHED), on_=on())
    met = counted_caches(cached, problem, lookups_of, 2)
    both = [count(cached, problem, lambda i, n=n: lookups_of(n, i), DENSE, caches=met[n]) for n in range(2)]  # type: ignore[misc]
    one: Traffic = mean(both)
    assert one.caching is not None
    first, second = (traffic.caching for traffic in both)
    assert first is not None
    assert second is not None
    assert np.allclose(one.caching.filled_bytes, (first.filled_bytes + second.filled_bytes) / 2)


def test_what_cannot_be_counted_says_so() -> None:
    problem, cached = alike(OnRank(rank=0, **CACHED), OnRank(rank=1), on_=on())
    with pytest.raises(BadInput, match="table 'table0' has a cache, whose history is counted first"):
        count(cached, problem, lambda i: lookups_of(0, i), DENSE)
    on_cpus = WORKLOAD.problem(machine())
    with pytest.raises(Unsupported, match="a CPU has no HBM to cache rows in"):
        expect(cached, on_cpus)
    with pytest.raises(Unsupported, match="a CPU has no HBM to cache rows in"):
        simulate(cached, on_cpus, DrawnBatches(WORKLOAD, 2), DENSE, 2)
    scheduled = replace(cached, schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.COLD, batches=1),)))
    with pytest.raises(Unsupported, match="not counted under a batch schedule"):
        expect(scheduled, problem)
    with pytest.raises(Unsupported, match="not counted under a batch schedule"):
        simulate(scheduled, problem, DrawnBatches(WORKLOAD, 2), DENSE, 2)


def test_nothing_is_proven_about_a_plan_with_a_cache() -> None:
    workload = RandomWorkload([(400, 8), (90, 16)], 16, seed=3)
    problem = workload.problem(on())
    question = CountedQuestion(problem, DrawnBatches(workload, 2), workload.dense, 2)
    bounds = question.bounds()
    plans = [
        plan(whole_table(workload.tables[0], place), whole_table(workload.tables[1], OnRank(rank=1)))
        for place in (OnRank(rank=0), OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.25))
    ]
    declared = frozenset({Move.TABLE, Move.UVM, Move.CACHE})
    assert bounds.of_step(plans[0], declared) is not None
    assert bounds.of_step(plans[1], declared) is None
    assert bounds.of(plans[0], used_moves(plans[0], problem)) is not None
    assert bounds.of(plans[1], used_moves(plans[1], problem)) is None
