"""The click model: its teacher is hashed, its metrics are exact, and every order trains every sample once."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.baselines.fae import accuracy
from shardbench.baselines.fae.accuracy import ORDERS, train
from shardbench.baselines.fae.claims import observations
from shardbench.baselines.fae.clicks import auc, click_data, log_loss, row_normals, teacher_logits
from shardbench.baselines.fae.studies import Accuracy, results_frame, seeds_frame, studies
from shardbench.execute.phased import PhasedTrainer
from shardbench.plan import PhaseKind
from shardbench.reproduction.claim import Evidence


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs):
    logits, labels = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs], np.float32)
    clicks, others = logits[labels > 0], logits[labels == 0]
    if not len(clicks) or not len(others):
        assert np.isnan(auc(logits, labels))
        return
    right = sum((c > o) + 0.5 * (c == o) for c in clicks for o in others)
    assert auc(logits, labels) == pytest.approx(right / (len(clicks) * len(others)))


def test_log_loss_by_hand():
    logits = np.array([0.0, np.log(3.0), -800.0])
    assert log_loss(logits, np.array([1, 0, 0], np.float32)) == pytest.approx((np.log(2) + np.log(4)) / 3)


def test_hidden_rows_are_normal_and_depend_on_everything_stated():
    rows = np.arange(100_000)
    drawn = row_normals(0, 3, rows, 2)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.02
    assert (row_normals(0, 3, rows[7:9], 2) == drawn[7:9]).all()
    for other in (row_normals(1, 3, rows[:9], 2), row_normals(0, 4, rows[:9], 2)):
        assert not np.isclose(other, drawn[:9]).any()


@pytest.fixture(scope="module")
def data():
    return click_data(0, 32_768, 4096)


def test_clicks_can_be_learned_and_rows_are_those_seen(data):
    assert 0.1 < data.train.labels.mean() < 0.4
    logits = teacher_logits(0, list(data.train.tables), data.train.dense)
    assert auc(logits, data.train.labels) > 0.75
    for table, bags, profile in zip(data.tables, data.train.tables, data.profiles):
        assert bags.values.max() == table.rows - 2
        assert profile.seen_rows == table.rows - 1
    # What is seen in tests alone is the last row, of which nothing is learned.
    assert any((bags.values == table.rows - 1).any() for table, bags in zip(data.tables, data.test.tables))


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_trains_every_sample_once_an_epoch(order, data, monkeypatch):
    seen, kinds = Counter(), []

    def record(self, batch):
        self.switch(batch.kind)
        kinds.append(batch.kind)
        seen.update(batch.dense[:, 0].tolist())

    monkeypatch.setattr(PhasedTrainer, "__call__", record)
    run = train(data, order, seed=1, epochs=2)
    assert seen == Counter(data.train.dense[:, 0].tolist() * 2)
    assert 0.05 < run.hot_inputs_share < 0.9
    mixed = order == "shuffled"
    assert (PhaseKind.HOT in kinds) is not mixed
    assert run.curve[-1].batches == len(kinds)
    if order != "fae":  # whose loss checks bring the rows back to the host
        assert run.curve[-1].switches == sum(a is not b for a, b in zip(kinds, kinds[1:]))


def test_training_is_reproducible_and_learns(data):
    one, two = (train(data, "fae-r100", seed=3, epochs=1).curve for _ in range(2))
    assert one == two
    assert one[-1].auc > 0.53
    assert accuracy.choose_hot(data).bytes <= 0.5 * sum(t.rows * 36 for t in data.tables)


def test_differences_are_paired_by_seed_and_feed_the_claims():
    rows = [
        {"order": order, "seed": seed, "backend": "measured", "batches": 9, "is_last": True, "switches": 1,
         "hot_inputs_pct": 20.0, "hot_rows_pct": 1.0, "auc": 0.7 + 0.1 * seed + gain, "log_loss": 0.4 - gain}
        for seed in range(3)
        for order, gain in (("shuffled", 0.0), ("fae", 0.01))
    ]  # fmt: skip
    found = results_frame(pd.DataFrame(rows)).set_index("order")
    assert found.loc["fae", "auc_difference"] == pytest.approx(0.01)
    assert not found.loc["fae", "auc_is_same"]
    assert np.isnan(found.loc["shuffled", "auc_difference"])
    tables = {"accuracy_seeds": seeds_frame(pd.DataFrame(rows))}
    claimed = observations(Evidence(records=(), tables=tables))
    assert claimed["same-auc"] == pytest.approx([0.01] * 3)
    assert claimed["same-log-loss"] == pytest.approx([-0.01] * 3)
    assert set(Accuracy().tables(pd.DataFrame(rows))) == {"accuracy", "accuracy_seeds", "accuracy_curves"}
    assert {s.name for s in studies()} >= {"hotness", "accuracy", "sensitivity"}
