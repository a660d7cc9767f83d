"""What learned strategies go through: batched episodes, and the 21 features by hand."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_tasks import random_task
from problems import machine

from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.features import FEATURES, SCALARS, Scaling, table_features
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Precision, Table

WIDTH = 3


def vectors(rng, tasks):
    made = np.zeros((len(tasks), max(t.tables for t in tasks), WIDTH), dtype=np.float32)
    for row, task in zip(made, tasks):
        row[: task.tables] = rng.normal(size=(task.tables, WIDTH))
    return made


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), room=st.floats(0.6, 3.0), episodes=st.integers(1, 6), mixed=st.booleans())
def test_what_is_legal_fits_and_what_is_illegal_does_not(seed, room, episodes, mixed):
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(episodes):
        tables, devices = (int(rng.integers(1, 9)), int(rng.integers(1, 5))) if mixed else (6, 3)
        need = int(random_task(tables, seed).sizes_bytes.sum())
        on = machine(devices=devices, hbm=max(1, int(room * need / devices)))
        tasks.append(random_task(tables, seed, on=on))
    orders = [rng.permutation(task.tables) for task in tasks]
    given_vectors = vectors(rng, tasks)
    placing = Placing(tasks, orders, given_vectors)
    # The same by loops: bytes used, tables held and sums of every device.
    used = [np.zeros(t.devices, dtype=np.int64) for t in tasks]
    failed = [False] * episodes
    while placing.step < placing.steps:
        step, legal = placing.step, placing.legal()
        assert legal.any(axis=1).all()
        chosen = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1)
        for e, task in enumerate(tasks):
            assert not legal[e, task.devices :].any()
            if step >= task.tables:
                continue
            size = task.sizes_bytes[orders[e][step]]
            fits = used[e] + size <= task.capacity_bytes
            failed[e] |= not fits.any()
            if not failed[e]:
                assert (legal[e, : task.devices] == fits).all()
            used[e][chosen[e]] += size
        placing.put(chosen)
    assert placing.failed.tolist() == failed
    for e, (task, placement) in enumerate(zip(tasks, placing.placements())):
        assert bool(task.over_capacity(placement[None])[0]) == failed[e]
        order = orders[e]
        for device in range(task.devices):
            mine = placement == device
            assert used[e][device] == task.sizes_bytes[mine].sum()
            assert placing.held[e, device] == mine.sum()
            where = np.flatnonzero(mine[order])
            np.testing.assert_allclose(placing.sums[e, device], given_vectors[e, where].sum(axis=0), atol=1e-5)


def test_sums_start_where_they_are_told():
    task = random_task(2)
    ones = np.ones((1, 2, WIDTH), dtype=np.float32)
    placing = Placing([task], [np.arange(2)], ones, np.full(WIDTH, 10.0, dtype=np.float32))
    placing.legal()
    np.testing.assert_array_equal(placing.put(np.array([1])), [[11.0] * WIDTH])
    assert placing.sums[0, 0].tolist() == [10.0] * WIDTH


def test_a_dead_end_uses_the_emptiest_device_and_is_marked():
    # Two of three tables on a device each leave 2 and 4 bytes: the third, of 7, has no room.
    task = SimpleNamespace(tables=3, devices=2, capacity_bytes=12, sizes_bytes=np.array([10, 8, 7]))
    placing = Placing([task], [np.arange(3)], np.zeros((1, 3, WIDTH), dtype=np.float32))
    for device in (0, 1):
        placing.legal()
        placing.put(np.array([device]))
    assert not placing.failed[0]
    assert placing.free[0].argmax() == 1
    assert placing.legal()[0].tolist() == [False, True]
    assert placing.failed[0]


def test_features_by_hand():
    table = Table(name="a", rows=1 << 20, dim=16)
    # 10 samples, 2 rows touched once, 1 row 5 times: 7 lookups, pooling 0.7 (not truncated to 0).
    profile = AccessProfile(rows=1 << 20, samples=10, present=5, counts=(5, 1), row_counts=(1, 2))
    problem = Problem.of("p", (table,), (profile,), machine(devices=1), batch_size=4, precision=Precision.FP16)
    (row,) = table_features(problem)
    assert len(FEATURES) == len(row) == 21
    assert row[:4].tolist() == [16, 1 << 20, 0.7, 2**20 * 16 * 2 / 2**30]
    expected = np.zeros(17)
    expected[0], expected[3] = 2 / 3, 1 / 3  # (0, 1] and (4, 8]
    np.testing.assert_allclose(row[4:], expected)


def test_scaling_scores_what_it_is_told_and_passes_the_rest():
    rng = np.random.default_rng(0)
    raw = rng.random((50, 21)) * 100
    raw[:, 1] = 16.1  # never varies: stays finite
    scaled = Scaling.fit(raw, ("rows", "pooling"))(raw)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[:, 1], 0.0, atol=1e-6)
    np.testing.assert_allclose((scaled[:, 2].mean(), scaled[:, 2].std()), (0.0, 1.0), atol=1e-5)
    raw_ones = [0, 3, *range(len(SCALARS), 21)]
    np.testing.assert_allclose(scaled[:, raw_ones], raw[:, raw_ones], rtol=1e-6)
    every = Scaling.fit(raw)(raw)
    np.testing.assert_allclose(every[:, [0, 2, 3]].std(axis=0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(every[:, len(SCALARS) :], raw[:, len(SCALARS) :], rtol=1e-6)


def test_one_table_looks_the_same_in_every_task():
    rng = np.random.default_rng(1)
    raw = rng.random((20, 21))
    scaling = Scaling.fit(raw)
    np.testing.assert_array_equal(scaling(raw[3:9])[2], scaling(raw)[5])
