"""Hot and cold samples: classification against plain Python, packing, and what a scheduled plan costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import step_time
from shardbench.cost.traffic import count
from shardbench.model.plan import BatchSchedule, Host, OnRank, Phase, PhaseKind, Plan, Replicated, Segment, whole_table
from shardbench.trials.simulate import simulate, simulate_schedule
from shardbench.workloads.hotness import HotPrefix, HotReplicas, hot_samples, join, pack, take
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Bags, Split

ROWS = 9


def bags(lists):
    offsets = np.concatenate([[0], np.cumsum([len(b) for b in lists])]).astype(np.int64)
    return Bags(values=np.array([v for b in lists for v in b], dtype=np.int64), offsets=offsets)


def lists(of):
    return [of.values[a:b].tolist() for a, b in zip(of.offsets[:-1], of.offsets[1:])]


ragged = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.data())
def test_classification_taking_and_packing_equal_plain_python(data):
    first = data.draw(ragged)
    one_hot = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=1)
    second = data.draw(st.lists(one_hot, min_size=len(first), max_size=len(first)))
    hot = data.draw(st.integers(0, ROWS))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)))
    tables = (bags(first), bags(second))
    rows = (HotPrefix(hot=hot, rows=ROWS), mask.__getitem__)
    found = hot_samples(tables.__getitem__, rows, len(first))
    plain = [all(v < hot for v in a) and all(mask[v] for v in b) for a, b in zip(first, second)]
    assert found.tolist() == plain
    size = data.draw(st.integers(1, 5))
    packed = pack(found, size)
    for kind in PhaseKind:
        fresh = [n for batch in packed if batch.kind is kind for n in batch.samples[: batch.fresh].tolist()]
        assert fresh == [i for i, is_hot in enumerate(plain) if is_hot == (kind is PhaseKind.HOT)]
    assert all(len(batch.samples) == size for batch in packed)
    for batch in packed:
        assert lists(take(tables[0], batch.samples)) == [first[n] for n in batch.samples]


def test_a_sample_without_lookups_is_hot():
    empty = bags([[], [], []])
    assert hot_samples(lambda _: empty, [HotPrefix(hot=0, rows=3)], 3).all()
    assert lists(join([empty, bags([[1]])])) == [[], [], [], [1]]


def test_ids_beyond_the_table_and_wrong_shapes_are_refused():
    with pytest.raises(BadInput, match=r"hot rows: lookup 1 asks for row 9, the table has rows 0\.\.8"):
        hot_samples(lambda _: bags([[1], [9]]), [HotPrefix(hot=9, rows=9)], 2)
    with pytest.raises(BadInput, match="lookup 0 asks for row -1"):
        HotPrefix(hot=3, rows=3)(np.array([-1]))
    with pytest.raises(BadInput, match="2 bags for 3 samples"):
        hot_samples(lambda _: bags([[1], [1]]), [HotPrefix(hot=9, rows=9)], 3)
    with pytest.raises(BadInput, match="the offsets of bag 1 decrease"):
        Bags(values=np.array([1, 2, 3]), offsets=np.array([0, 2, 1, 3]))
    with pytest.raises(BadInput, match="row ids are float64: give whole numbers"):
        Bags(values=np.array([0.0, 1.5]), offsets=np.arange(3))
    with pytest.raises(BadInput, match="need samples"):
        pack(np.empty(0, dtype=bool), 4)
    with pytest.raises(BadInput, match="no bags"):
        join([])


def test_replicated_rows_are_those_that_all_columns_replicate():
    everywhere, host = Replicated(ranks=(0, 1)), Host(node=0)
    split = (
        Segment(table="t", row_stop=4, column_stop=8, placement=everywhere),
        Segment(table="t", row_start=4, row_stop=6, column_stop=4, placement=everywhere),
        Segment(table="t", row_start=4, row_stop=6, column_start=4, column_stop=8, placement=host),
        Segment(table="t", row_start=6, row_stop=9, column_stop=8, placement=host),
    )
    assert HotReplicas(segments=split)(np.arange(9)).tolist() == [True] * 4 + [False] * 5


WORKLOAD = RandomWorkload([(300, 8), (50, 8)], batch_size=16, pooling=2)
PROBLEM = WORKLOAD.problem(machine(1, 2))


def scheduled(hot, phases):
    segments = []
    for table, rows in zip(WORKLOAD.tables, hot):
        segments.append(Segment(table=table.name, row_stop=rows, column_stop=8, placement=Replicated(ranks=(0, 1))))
        if rows < table.rows:
            rest = Segment(table=table.name, row_start=rows, row_stop=table.rows, column_stop=8, placement=Host(node=0))
            segments.append(rest)
    made = tuple(Phase(kind=PhaseKind(kind), batches=n) for kind, n in phases)
    return Plan(world_size=2, segments=tuple(segments), schedule=BatchSchedule(phases=made))


def everything(table):
    return join([WORKLOAD.bags(Split.TEST, b, table) for b in range(2)])


def test_the_step_of_a_schedule_is_the_mean_over_samples():
    plan = scheduled((200, 50), [("cold", 3), ("hot", 2)])
    found = simulate_schedule(plan, PROBLEM, everything, WORKLOAD.dense)
    hot = np.array([all(v < 200 for v in bag) for bag in lists(everything(0))])
    assert 0 < hot.sum() < 32
    assert found.share(PhaseKind.HOT) == pytest.approx(hot.mean())
    assert sum(found.weights) == pytest.approx(1.0)
    by_hand = 0.0
    for kind, chosen in ((PhaseKind.COLD, ~hot), (PhaseKind.HOT, hot)):
        samples = np.flatnonzero(chosen)
        for start in range(0, len(samples), 16):
            at = np.resize(np.roll(samples, -start), 16)
            traffic = count(plan, PROBLEM, lambda i, at=at: take(everything(i), at), WORKLOAD.dense, kind)
            ms = step_time(traffic, PROBLEM.machine, WORKLOAD.dense, WORKLOAD.tables, 16).step_ms
            by_hand += ms * min(16, len(samples) - start) / 32
    assert found.step_ms == pytest.approx(by_hand, rel=1e-12)
    # One copy up and one down an epoch of five mini-batches: 250 rows of 32 bytes, to two devices side by side.
    rate = PROBLEM.machine.constants.uvm_bytes_per_s
    assert found.times[0].phases_ms["synchronise"] == pytest.approx(1e3 * 2 * (250 * 32) / 5 / rate)


def test_simulated_trials_of_a_schedule_give_the_mean_step_every_time(tmp_path):
    plan = scheduled((200, 50), [("cold", 3), ("hot", 2)])
    batches = materialise(WORKLOAD, tmp_path / "b", range(2))
    timing = simulate(plan, PROBLEM, batches, WORKLOAD.dense, 5).timing(5)
    found = simulate_schedule(plan, PROBLEM, everything, WORKLOAD.dense)
    assert timing.step_ms == (found.step_ms,) * 5
    assert sum(timing.phases_ms.values()) == pytest.approx(found.step_ms)
    # Without a hot phase every sample is cold, whatever is replicated; with all rows hot none is.
    cold = simulate_schedule(scheduled((200, 50), [("cold", 3)]), PROBLEM, everything, WORKLOAD.dense)
    assert cold.share(PhaseKind.HOT) == 0.0
    assert simulate_schedule(scheduled((300, 50), [("hot", 3)]), PROBLEM, everything, WORKLOAD.dense).share(
        PhaseKind.HOT
    ) == pytest.approx(1.0)


def test_every_mean_of_a_schedule_weighs_mini_batches_by_their_fresh_samples(tmp_path):
    plan = scheduled((200, 50), [("cold", 3), ("hot", 2)])
    batches = materialise(WORKLOAD, tmp_path / "b", range(2))
    done = simulate(plan, PROBLEM, batches, WORKLOAD.dense, 2)
    found = simulate_schedule(plan, PROBLEM, everything, WORKLOAD.dense)
    # Of 32 samples the hot ones fill one mini-batch and part of a second, the cold ones part of one.
    hot = sum(all(v < 200 for v in bag) for bag in lists(everything(0)))
    assert 16 < hot < 32
    fresh = {PhaseKind.HOT: [16, hot - 16], PhaseKind.COLD: [32 - hot]}
    for kind, samples in fresh.items():
        assert [w * 32 for w, k in zip(found.weights, found.kinds) if k is kind] == samples
    shares = [fresh[kind].pop(0) / 32 for kind in found.kinds]

    def by_hand(numbers):
        return pytest.approx(sum(share * np.asarray(number) for share, number in zip(shares, numbers)), rel=1e-12)

    assert done.totals.lookups == by_hand([t.load.lookups.sum() + t.host.lookups.sum() for t in found.traffics])
    assert done.totals.host_bytes == by_hand([t.host.lookup_bytes.sum() for t in found.traffics])
    for name, links in done.totals.collectives.items():
        assert sum(links) == by_hand([t.collectives[name].sent.sum() for t in found.traffics]), name
    for name, ms in done.timing(2).phases_ms.items():
        assert ms == by_hand([t.phases_ms[name] for t in found.times]), name
    assert done.timing(2).embedding_ms == by_hand([t.embedding_ms for t in found.times])


def test_a_cold_batch_costs_what_tables_on_the_host_cost():
    plan = scheduled((200, 50), [("cold", 3), ("hot", 2)])
    hosts = Plan(world_size=2, segments=tuple(whole_table(table, Host(node=0)) for table in WORKLOAD.tables))
    cold = count(plan, PROBLEM, everything2, WORKLOAD.dense, PhaseKind.COLD)
    whole = count(hosts, PROBLEM, everything2, WORKLOAD.dense)
    for name in whole.collectives:
        assert cold.collectives[name].sent.tolist() == whole.collectives[name].sent.tolist(), name
    assert cold.host.lookup_bytes.tolist() == whole.host.lookup_bytes.tolist()
    assert cold.host.bag_bytes.tolist() == whole.host.bag_bytes.tolist()
    assert not cold.load.lookups.any()
    # What is on a device stays there in a cold batch.
    moved = Plan(
        world_size=2,
        segments=(*plan.segments[:2], whole_table(WORKLOAD.tables[1], OnRank(rank=1))),
        schedule=plan.schedule,
    )
    assert count(moved, PROBLEM, everything2, WORKLOAD.dense, PhaseKind.COLD).load.lookups[1] > 0


def everything2(table):
    return WORKLOAD.bags(Split.TEST, 0, table)


def test_hot_batches_gather_the_rows_they_touched():
    plan = scheduled((300, 50), [("hot", 3)])
    traffic = count(plan, PROBLEM, everything2, WORKLOAD.dense, PhaseKind.HOT)
    touched = []
    for rank in range(2):
        halves = [everything2(i).samples(8 * rank, 8 * rank + 8) for i in range(2)]
        touched.append(sum(len(set(half.values.tolist())) for half in halves))
    assert traffic.collectives["rows_all_reduce"].sent.tolist() == [n * (8 + 8 * 4) for n in touched]
