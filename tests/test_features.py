"""The 21 features by hand, and their normalisation."""

import numpy as np
from problems import machine

from shardbench.learned.tasks.features import FEATURES, SCALARS, Scaling, table_features
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Precision, Table


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
