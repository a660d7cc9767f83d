"""Counting: properties against a slow, obvious count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import RandomWorkload, bags, machine

from shardbench.cost.lookups import CountedLookups
from shardbench.cost.traffic import count, expect
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    row_ranges,
    whole_table,
)
from shardbench.workloads.trace import Bags, Split


@st.composite
def batches(draw):
    rows = draw(st.integers(1, 30))
    lists = draw(st.lists(st.lists(st.integers(0, rows - 1), max_size=6), min_size=4, max_size=4))
    start = draw(st.integers(0, rows - 1))
    return rows, lists, start, draw(st.integers(start + 1, rows)), draw(st.integers(1, 5))


@given(batches())
def test_counted_lookups_equal_a_plain_loop(case):
    rows, lists, start, stop, ways = case
    lookups = CountedLookups(bags(*lists), rows, 2)
    inside = [[v for b in half for v in b if start <= v < stop] for half in (lists[:2], lists[2:])]
    assert lookups.by_source(start, stop).tolist() == [len(v) for v in inside]
    dealt = [[sum((v - start) % ways == w for v in half) for w in range(ways)] for half in inside]
    assert lookups.dealt(start, stop, ways).tolist() == dealt
    touched = {v for half in inside for v in half}
    assert lookups.distinct(start, stop, ways).tolist() == [
        len({v for v in touched if (v - start) % ways == w}) for w in range(ways)
    ]
    assert lookups.distinct_by_source(start, stop).tolist() == [len(set(half)) for half in inside]
    by_node = [[len({v for v in half if (v - start) % ways == w}) for w in range(ways)] for half in inside]
    assert lookups.distinct_by_group(start, stop, np.array([[0], [1]]), ways).tolist() == by_node


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_split_conserves_lookups_bytes_and_vectors(data):
    workload = RandomWorkload([(40, 8), (30, 8)], 8)
    on = workload.problem(machine(2, 2))
    everyone = (0, 1, 2, 3)
    choices = [
        OnRank(rank=2), RowWise(ranks=everyone), RowWise(ranks=(2, 3)), Replicated(ranks=everyone), GroupSharded(),
        OnLocalRank(local_rank=1),
    ]  # fmt: skip
    segments = []
    for table in on.tables:
        cut = data.draw(st.integers(8, table.rows - 8))
        places = [data.draw(st.sampled_from(choices)) for _ in range(2)]
        segments += row_ranges(table, (cut, places[0]), (table.rows, places[1]))
    traffic = count(
        Plan(world_size=4, segments=tuple(segments)), on, lambda i: workload.bags(Split.TEST, 0, i), workload.dense
    )
    total = sum(len(workload.bags(Split.TEST, 0, i).values) for i in range(2))
    assert traffic.load.lookups.sum() == total
    assert traffic.load.lookup_bytes.sum() == total * 8 * 4
    for collective in traffic.collectives.values():
        assert collective.sent_intra.sum() == pytest.approx(collective.received_intra.sum())
        assert collective.sent_inter.sum() == pytest.approx(collective.received_inter.sum())
    for there, back in (("output_all_to_all", "backward_all_to_all"), ("output_reduce_scatter", "backward_all_gather")):
        assert traffic.collectives[there].sent.sum() == pytest.approx(traffic.collectives[back].sent.sum())


def test_expected_traffic_agrees_with_many_counted_batches():
    workload = RandomWorkload([(200, 8), (60, 8)], 256)
    on = workload.problem(machine(1, 4))
    everyone = (0, 1, 2, 3)
    plan = Plan(
        world_size=4,
        segments=(
            *row_ranges(on.tables[0], (50, OnRank(rank=0)), (200, RowWise(ranks=everyone))),
            whole_table(on.tables[1], Replicated(ranks=everyone)),
        ),
    )
    # Expected under the profile of the very batch that is counted: shares are exact, distinct rows are not.
    exact = count(plan, on, lambda i: _relabelled(workload, i), workload.dense)
    guess = expect(plan, on, workload.dense)
    assert guess.load.lookups.sum() == pytest.approx(exact.load.lookups.sum())
    assert guess.load.lookups[0] == pytest.approx(exact.load.lookups[0], rel=0.05)
    assert guess.load.distinct.sum() == pytest.approx(exact.load.distinct.sum(), rel=0.15)
    for name, collective in exact.collectives.items():
        assert guess.collectives[name].sent.sum() == pytest.approx(collective.sent.sum(), rel=0.05), name


def _relabelled(workload, table):
    raw = workload._bags(Split.TRAIN, 0, table)
    counts = np.bincount(raw.values, minlength=workload.tables[table].rows)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return Bags(values=rank[raw.values], offsets=raw.offsets)
