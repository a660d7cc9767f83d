"""The click model: its teacher is hashed, its metrics are exact, and every order trains every sample once."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import ok, totals

from shardbench.base.errors import BadInput
from shardbench.baselines.fae.reproduction import accuracy
from shardbench.baselines.fae.reproduction.accuracy import ORDERS, train
from shardbench.baselines.fae.reproduction.claims import BASE_JOBS, MACHINES, observations
from shardbench.baselines.fae.reproduction.clicks import (
    auc,
    click_data,
    drawn_clicks,
    log_loss,
    recorded_clicks,
    row_normals,
    teacher_logits,
)
from shardbench.baselines.fae.reproduction.studies import ACCURACY, accuracy_tables
from shardbench.baselines.fae.scheduler import RateRule
from shardbench.datasets.preparation.criteo_prepare import prepare
from shardbench.engine.phased.training import PhasedTrainer
from shardbench.model.plan import PhaseKind
from shardbench.studies.claim import Evidence
from shardbench.workloads.trace import Split


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
    tables, drawn = drawn_clicks(0, 32_768, 4096)
    logits = teacher_logits(0, list(drawn[Split.TRAIN].tables), data.train.dense)
    assert auc(logits, data.train.labels) > 0.75
    assert tables == data.tables
    for table, bags, profile, before in zip(data.tables, data.train.tables, data.profiles, drawn[Split.TRAIN].tables):
        assert bags.values.max() == table.rows - 2
        # The calibrator sees a log of about 5 % of the inputs, and rows are in that log's order.
        assert 0.04 * 32_768 < profile.samples < 0.06 * 32_768
        assert profile.seen_rows <= table.rows - 1
        assert sorted(np.bincount(bags.values)) == sorted(np.bincount(before.values))
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
    mixed = order.startswith("shuffled")
    assert (PhaseKind.HOT in kinds) is not mixed
    assert run.curve[-1].batches == len(kinds)
    if order != "fae":  # whose loss checks bring the rows back to the host
        assert run.curve[-1].switches == sum(a is not b for a, b in zip(kinds, kinds[1:]))


def test_training_is_reproducible_and_learns(data, monkeypatch):
    monkeypatch.setattr(accuracy, "LEARNING_RATE", 0.05)  # in one epoch
    one, two = (train(data, "fae", seed=3, epochs=1).curve for _ in range(2))
    assert one == two
    assert one[-1].auc > 0.53
    assert accuracy.choose_hot(data).bytes <= 0.5 * sum(t.rows * 36 for t in data.tables)


def halved_and_doubled(losses, rate=50.0):
    """The rates of the turns by the paper's rule, written down once more."""
    rates, falls = [rate], 0
    for before, after in zip(losses, losses[1:]):
        falls = falls + 1 if after < before else 0
        if after > before:
            rate = max(1.0, rate / 2)
        elif falls == 4:
            rate, falls = min(100.0, 2 * rate), 0
        rates.append(rate)
    return rates


def test_the_rate_follows_the_test_loss_while_training(data, monkeypatch):
    losses, rates, after = [], [], RateRule.after

    def watched(rule, loss):
        losses.append(loss)
        rates.append(rule.rate_pct)
        return after(rule, loss)

    monkeypatch.setattr(RateRule, "after", watched)
    train(data, "fae", seed=2, epochs=3, checks=1)
    # The rate after check i is that of turn i + 1; the first check has nothing to compare with.
    assert rates == [50.0, *halved_and_doubled(losses)[:-1]]
    assert len(set(rates)) > 1  # it is no constant: a rule that never acts fails here


def prepared_folder(folder, samples=700):
    """Made-up lines in Criteo Kaggle's format, prepared as a user would; nothing of Criteo's."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(samples):
        row = [str(rng.integers(0, 2)), *(str(i) for i in rng.integers(-3, 5000, 13))]
        row += [f"{int(v):08x}" for v in rng.zipf(1.3, 26) % (1 << 32)]
        lines.append("\t".join("" if i > 0 and rng.random() < 0.1 else cell for i, cell in enumerate(row)))
    source = folder / "train.txt"
    source.write_text("\n".join(lines) + "\n")
    prepare(source, folder / "data" / "criteo_kaggle", rows=1000)
    return folder / "data" / "criteo_kaggle"


def test_real_clicks_are_read_where_they_are_prepared(tmp_path, monkeypatch):
    folder = prepared_folder(tmp_path)
    data = recorded_clicks(folder, 512, 96, 0)
    labels, dense = np.load(folder / "label.npy"), np.load(folder / "dense.npy")
    assert data.train.labels.tolist() == labels[88:600].tolist()  # the last 512 of six sevenths of 700
    assert data.test.labels.tolist() == labels[600:696].tolist()
    expected = np.where(np.isnan(dense[88:600]) | (dense[88:600] < 0), 0.0, dense[88:600])
    np.testing.assert_allclose(data.train.dense, np.log1p(expected), rtol=1e-6)
    column = np.load(folder / "C07.npy")[88:600]
    bags, table = data.train.tables[6], data.tables[6]
    assert bags.lengths.tolist() == (column >= 0).astype(int).tolist()
    pairs = set(zip(column[column >= 0].tolist(), bags.values.tolist()))
    assert len(pairs) == len({row for row, _ in pairs}) == len({rank for _, rank in pairs}) == table.rows - 1
    run = train(data, "fae", seed=0, epochs=1)
    assert np.isfinite(run.curve[-1].log_loss)
    with pytest.raises(BadInput, match="has 600 inputs to train on and 100 to test with, not 512 and 101"):
        recorded_clicks(folder, 512, 101, 0)
    with pytest.raises(BadInput, match=r"prepared\.json: get train\.txt .* into that folder: shardbench prepare"):
        recorded_clicks(tmp_path, 512, 96, 0)
    np.save(folder / "label.npy", np.zeros(3, dtype=np.int8))
    with pytest.raises(BadInput, match=r"label\.npy has int8 \(3,\), expected int8 \(700,\)"):
        recorded_clicks(folder, 256, 96, 0)
    # Cells of real clicks are listed only where the folder is.
    monkeypatch.chdir(tmp_path)
    assert {cell["clicks"] for cell in ACCURACY.cells(False)} == {"teacher", "criteo_kaggle"}
    monkeypatch.chdir(folder)
    assert {cell["clicks"] for cell in ACCURACY.cells(False)} == {"teacher"}


def test_claims_have_one_number_a_workload_and_number_of_devices():
    def took(workload, machine, batch_size, strategy, ms):
        switched = {"host_vectors_bytes": 40.0, "copied_to_device_bytes": 10.0, "copied_to_host_bytes": 10.0}
        traffic = totals(**(switched if strategy != "hybrid" else {"host_vectors_bytes": 100.0}))
        return ok(
            strategy,
            step_ms=(ms,),
            workload=workload,
            machine=machine,
            batch_size=batch_size,
            changes={"traffic": traffic},
        )

    base = [
        took(name, machine, inputs * devices, strategy, ms)
        for name, (inputs, fae) in BASE_JOBS.items()
        for machine, devices in MACHINES.items()
        for strategy, ms in ((fae, 2.0), ("hybrid", 3.0), ("cpu-only", 1.0))
    ]
    others = [
        took(*job, strategy, ms)
        for job in (
            ("criteo-kaggle-like", "v100-16gb-1x4", 16_384),
            ("criteo-kaggle-like", "v100-16gb-1x4+host_link-48GBps", 4096),
            ("criteo-terabyte-like", "v100-16gb-1x4", 4096),
        )
        for strategy, ms in (("fae", 1.0), ("hybrid", 900.0), ("cpu-only", 900.0))
    ]
    claimed = observations(Evidence(records=(*base, *others), tables={}))
    assert claimed == {"over-hybrid": [1.5] * 9, "over-cpu-only": [0.5] * 9, "fewer-bytes": [2.0] * 9}


def test_differences_are_paired_by_seed_and_feed_the_claims():
    rows = [
        {"clicks": "teacher", "order": order, "seed": seed, "backend": "measured", "batches": 9, "is_last": True,
         "switches": 1, "hot_inputs_pct": 20.0, "hot_rows_pct": 1.0, "auc": 0.7 + 0.1 * seed + gain,
         "log_loss": 0.4 - gain}
        for seed in range(3)
        for order, gain in (("shuffled", 0.0), ("fae", 0.01))
    ]  # fmt: skip
    tables = accuracy_tables(pd.DataFrame(rows))
    assert set(tables) == {"accuracy", "accuracy_seeds", "accuracy_curves"}
    found = tables["accuracy"].set_index("order")
    assert found.loc["fae", "auc_difference"] == pytest.approx(0.01)
    assert np.isnan(found.loc["shuffled", "auc_difference"])
    claimed = observations(Evidence(records=(), tables=tables))
    assert claimed["accuracy-stand-in-auc"] == pytest.approx([0.01] * 3)
    assert claimed["accuracy-stand-in-log-loss"] == pytest.approx([-0.01] * 3)
