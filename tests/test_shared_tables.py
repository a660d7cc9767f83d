"""Tables that several features look up: their bags, where they come from, and what is counted of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import RandomWorkload, bags, machine, table_loads

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json, to_json
from shardbench.cost.traffic import expect
from shardbench.datasets import described, synthetic, trace_file
from shardbench.engine.dlrm import DenseModel
from shardbench.model.plan import OnRank, Plan, whole_table
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Pooling, Table
from shardbench.workloads.hotness import HotPrefix, hot_samples, join, take
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Bags, Split

ROWS = 6


def lists(of: Bags) -> list[list[int]]:
    return [of.values[a:b].tolist() for a, b in zip(of.offsets[:-1], of.offsets[1:])]


BAG = st.lists(st.integers(0, ROWS - 1), max_size=3)


@given(st.integers(1, 3), st.integers(1, 5), st.data())
def test_bags_of_features_equal_plain_python(features: int, samples: int, data: st.DataObject) -> None:
    of_feature = [data.draw(st.lists(BAG, min_size=samples, max_size=samples)) for _ in range(features)]
    together = Bags.shared([bags(*own) for own in of_feature])
    assert (together.features, together.batch_size) == (features, samples)
    assert lists(together) == [own[s] for s in range(samples) for own in of_feature]
    assert [lists(together.feature(f)) for f in range(features)] == of_feature
    assert together.sample_lengths.tolist() == [sum(len(own[s]) for own in of_feature) for s in range(samples)]
    start = data.draw(st.integers(0, samples))
    rest = together.samples(start, samples)
    assert [lists(rest.feature(f)) for f in range(features)] == [own[start:] for own in of_feature]
    chosen = np.array(data.draw(st.lists(st.integers(0, samples - 1), max_size=6)), dtype=np.int64)
    taken = take(together, chosen)
    assert [lists(taken.feature(f)) for f in range(features)] == [[own[n] for n in chosen] for own in of_feature]
    assert lists(join([together, together])) == lists(together) * 2
    hot = hot_samples(lambda _: together, [HotPrefix(hot=2, rows=ROWS)], samples)
    assert hot.tolist() == [all(v < 2 for own in of_feature for v in own[s]) for s in range(samples)]


def test_bags_that_are_no_whole_samples_are_refused() -> None:
    with pytest.raises(BadInput, match="3 bags are no whole samples of 2 features"):
        bags([1], [], [2], features=2)
    workload = RandomWorkload([(9, 8)], 4)
    workload.tables = (replace(workload.tables[0], features=2),)
    workload._bags = lambda *_: bags([1], [], [2], [3])  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="bags of 1 features, the table has 2"):
        workload.bags(Split.TEST, 0, 0)


def test_a_table_of_one_feature_is_written_as_before() -> None:
    table = Table(name="a", rows=3, dim=4)
    assert to_json(table) == '{"dim":4,"name":"a","pooling":"sum","rows":3}'
    shared = replace(table, features=2)
    assert from_json(Table, to_json(shared)) == shared != table


# Global batch 4 on two nodes of one rank, two features: samples 0 and 1 on rank 0.
SHARED = bags([0, 1], [1], [], [1], [5], [], [0, 0], [2], features=2)


def problem() -> Problem:
    tables = (Table(name="a", rows=ROWS, dim=4, features=2),)
    profile = AccessProfile(rows=ROWS, samples=4, present=4, counts=(3, 1), row_counts=(2, 2))
    return Problem.of("hand", tables, (profile,), machine(1, 2), batch_size=4)


def test_a_shared_table_has_a_bag_a_sample_and_feature() -> None:
    on = problem()
    alone = table_loads(on, lambda _: SHARED)
    # Rows 0, 1, 5 and 2, over both features.
    assert (alone.bags.tolist(), alone.distinct.tolist()) == ([4 * 2], [4])
    expected = expect(Plan(world_size=2, segments=(whole_table(on.tables[0], OnRank(rank=0)),)), on)
    assert expected.load.bags.tolist() == [4 * 2, 0]


@pytest.mark.parametrize("dims", [(4, 4), (4, 8)])
def test_the_dense_model_takes_a_vector_of_every_feature(dims: tuple[int, int]) -> None:
    tables = tuple(Table(name=f"t{d}{i}", rows=9, dim=d, features=1 + i) for i, d in enumerate(dims))
    tables += (Table(name="s", rows=9, dim=4, pooling=Pooling.NONE, features=2),) * (dims[0] != dims[1])
    shape = DenseShape(features=2, bottom=(4,), top=(3, 1))
    model = DenseModel(shape, tables)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters(tables)
    vectors = [torch.randn(5, t.dim) for t in tables[:2] for _ in range(t.features)]
    if dims[0] == dims[1]:
        assert shape.interacts_by_dot(tables)
        assert model(torch.randn(5, 2), vectors).shape == (5,)
    else:
        assert shape.queries(tables) == ((4, 4), (4, 4))


def test_materialised_bags_are_what_was_drawn(tmp_path: Path) -> None:
    workload = RandomWorkload([(90, 8), (40, 4), (30, 8)], 12, shared={1: 3})
    batches = materialise(workload, tmp_path, range(2))
    for table in range(3):
        drawn, kept = workload.bags(Split.TEST, 1, table), batches.bags(1, table, 3, 9)
        assert (kept.features, kept.batch_size) == (drawn.features, 6)
        assert lists(kept) == lists(drawn.samples(3, 9))


def test_drawn_workloads_share_tables() -> None:
    alone, shared = ({"name": "a", "rows": 500, "pooling": 4.0} | more for more in ({}, {"features": 3}))
    config = described.CONFIG(tables=(shared,), batch_size=256, profile_samples=512)
    workload = config.build(Path("nowhere"))
    drawn = workload.bags(Split.TEST, 0, 0)
    assert (drawn.features, len(drawn.lengths)) == (3, 3 * 256)
    # Lookups of a sample, over all features.
    assert workload.profiles[0].mean_pooling == pytest.approx(12, rel=0.1)
    train = join([workload.bags(Split.TRAIN, batch, 0) for batch in range(512 // 256)])
    present = int(np.count_nonzero(train.sample_lengths))
    counts = np.bincount(train.values)
    assert AccessProfile.from_counts(counts, rows=500, samples=512, present=present) == workload.profiles[0]
    before = described.CONFIG(tables=(alone,)).model_dump(mode="json")
    assert "features" not in before["tables"][0]
    drawn = synthetic.CONFIG(tables=2, features=2, batch_size=64, profile_samples=64).build(Path("nowhere"))
    assert [drawn.bags(Split.TEST, 0, i).features for i in range(2)] == [2, 2]
    assert "features" not in synthetic.CONFIG().model_dump(mode="json")


def test_recorded_features_share_a_table(tmp_path: Path) -> None:
    for name, ids in (("home", [3, 1, 3, 3]), ("work", [1, 1, 7, 3]), ("item", [0, 1, 2, 0])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{i}\n" for i in ids))
    files = ("home.txt", "work.txt", "item.txt")
    given = {"files": files, "pooling": 1, "batch_size": 2, "test_batches": 1, "dim": 4}
    trace = trace_file.CONFIG(**given, features=(2, 1)).build(tmp_path)
    assert [(t.name, t.rows, t.features) for t in trace.tables] == [("t0_home", 8, 2), ("t1_item", 3, 1)]
    # In training row 1 is looked up three times, row 3 once; 0 and 2 never, in that order.
    assert trace.profiles[0].lookups == 4
    assert trace.bags(Split.TRAIN, 0, 0).values.tolist() == [1, 0, 0, 0]
    assert lists(trace.bags(Split.TEST, 0, 0).feature(1)) == [[7], [1]]
    with pytest.raises(BadInput, match="3 files but features of 4"):
        trace_file.CONFIG(**given, features=(2, 2)).build(tmp_path)
    with pytest.raises(BadInput, match="2 tables but 3 rows: give one per table"):
        trace_file.CONFIG(**given, features=(2, 1), rows=(9, 9, 9)).build(tmp_path)
