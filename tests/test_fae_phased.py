"""Phased training: equal to unsharded training in the same order, and exact copies."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchrec.optim import RowWiseAdagrad

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.dlrm import DenseModel
from shardbench.engine.inputs import seeded_weights
from shardbench.engine.phased.rowstore import RowStore, coalesce
from shardbench.engine.phased.training import GlobalBatch, PhasedModel, PhasedTrainer
from shardbench.model.plan import PhaseKind
from shardbench.model.table import DenseShape, Optimizer, Table
from shardbench.workloads.trace import Bags

TABLES = tuple(Table(name=f"t{i}", rows=rows, dim=8) for i, rows in enumerate((40, 7, 300)))
HOT = (10, 7, 60)
MODEL = PhasedModel(
    tables=TABLES, hot=HOT, dense=DenseShape(features=3, bottom=(8,), top=(6, 1)), learning_rate=1.0, dense_seed=0
)
KINDS = {"h": PhaseKind.HOT, "c": PhaseKind.COLD}
RATES = {Optimizer.SGD: 1.0, Optimizer.ROWWISE_ADAGRAD: 0.05}
ORDER = "ccchhhhcchhcchhhhh" + "hc" * 16


def batch(number, kind, samples=8):
    rng = np.random.default_rng([3, number])
    tables = []
    for table, hot in zip(TABLES, HOT):
        lengths = rng.integers(0, 4, samples)
        rows = hot if kind is PhaseKind.HOT else table.rows
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tables.append(Bags(values=(rng.random(offsets[-1]) ** 2 * rows).astype(np.int64), offsets=offsets))
    labels = (rng.random(samples) < 0.4).astype(np.float32)
    return GlobalBatch(
        kind=kind, tables=tuple(tables), dense=rng.standard_normal((samples, 3), dtype=np.float32), labels=labels
    )


BATCHES = [batch(i, KINDS[kind]) for i, kind in enumerate(ORDER)]


def initial():
    return [seeded_weights(table, i, 0) for i, table in enumerate(TABLES)]


def unsharded(optimizer, batches):
    """The same batch order with whole tables, autograd and TorchRec's optimiser."""
    weights = [w.requires_grad_() for w in initial()]
    torch.manual_seed(0)
    dense = DenseModel(MODEL.dense, TABLES)
    kind = {Optimizer.SGD: torch.optim.SGD, Optimizer.ROWWISE_ADAGRAD: RowWiseAdagrad}[optimizer]
    rate = RATES[optimizer]
    optimizers = [torch.optim.SGD(dense.parameters(), lr=rate), kind(weights, lr=rate)]
    logits = []
    for one in batches:
        vectors = [
            torch.nn.functional.embedding_bag(
                torch.from_numpy(b.values.copy()), w, torch.from_numpy(b.offsets[:-1].copy()), mode="sum"
            )
            for b, w in zip(one.tables, weights)
        ]
        out = dense(torch.from_numpy(one.dense), vectors)
        for step in optimizers:
            step.zero_grad()
        torch.nn.BCEWithLogitsLoss()(out, torch.from_numpy(one.labels)).backward()
        for step in optimizers:
            step.step()
        logits.append(out.detach().numpy())
    moments = np.empty(0)
    if optimizer is Optimizer.ROWWISE_ADAGRAD:
        moments = torch.cat([optimizers[1].state[w]["sum"] for w in weights]).numpy().ravel()
    return logits, torch.cat(weights).detach().numpy(), moments


def alone(optimizer=Optimizer.ROWWISE_ADAGRAD):
    model = replace(MODEL, optimizer=optimizer, learning_rate=RATES.get(optimizer, 1.0))
    return PhasedTrainer(model, torch.cat(initial()))


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD])
def test_phases_train_as_the_unsharded_model_does(optimizer):
    assert len(BATCHES) == 50
    trainer, (logits, weights, moments) = alone(optimizer), unsharded(optimizer, BATCHES)
    for one, batch in zip(logits, BATCHES):
        np.testing.assert_allclose(trainer(batch).numpy(), one, rtol=2e-4, atol=2e-5)
    trainer.switch(PhaseKind.COLD)
    np.testing.assert_allclose(trainer.master.weights, weights, rtol=2e-4, atol=2e-5)
    if trainer.master.moments is not None:
        np.testing.assert_allclose(trainer.master.moments, moments, rtol=2e-4, atol=1e-6)
    # It is not the initial model that is compared.
    assert np.abs(weights - torch.cat(initial()).numpy()).max() > 0.05


def test_copies_keep_weights_and_moments_to_the_bit():
    trainer = alone()
    for one in BATCHES[:9]:
        trainer(one)
    trainer.switch(PhaseKind.COLD)
    weights, moments = trainer.master.weights.clone(), trainer.master.moments.clone()
    assert (moments > 0).any()
    trainer.switch(PhaseKind.HOT)
    slots = np.concatenate([np.arange(n) + start for n, start in zip(HOT, (0, 40, 47))])
    assert torch.equal(trainer.replica.weights, weights[slots])
    assert torch.equal(trainer.replica.moments, moments[slots])
    trainer.switch(PhaseKind.COLD)
    assert torch.equal(trainer.master.weights, weights)
    assert torch.equal(trainer.master.moments, moments)
    assert trainer.switches == 4
    # What a hot batch learns is what comes back, nothing else moves.
    trainer(BATCHES[3])
    trainer.switch(PhaseKind.COLD)
    changed = (trainer.master.weights != weights).any(dim=1).nonzero().ravel().tolist()
    asked = {start + row for b, start in zip(BATCHES[3].tables, (0, 40, 47)) for row in b.values.tolist()}
    assert set(changed) <= asked
    assert len(changed) > 5


def test_duplicates_are_added_up_before_the_step():
    rows, summed = coalesce(torch.tensor([4, 1, 4]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert rows.tolist() == [1, 4]
    assert summed.tolist() == [[2.0], [4.0]]
    store = RowStore(torch.zeros(5, 1), Optimizer.ROWWISE_ADAGRAD, 1.0)
    store.step(rows, summed)
    assert store.moments.tolist() == [0, 4, 0, 0, 16]  # (1 + 3)^2, not 1^2 + 3^2
    assert store.weights.ravel().tolist() == [0, -1, 0, 0, -1]


def test_wrong_batches_and_plans_are_refused():
    trainer = alone()
    bad = replace(BATCHES[0], kind=PhaseKind.HOT)
    with pytest.raises(BadInput, match=r"hot batch, table 't\d': lookup \d+ asks for row \d+, the table"):
        trainer(bad)
    beyond = Bags(values=np.array([300] * 8), offsets=np.arange(9))
    with pytest.raises(BadInput, match=r"cold batch, table 't2': lookup 0 asks for row 300"):
        trainer(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], beyond)))
    with pytest.raises(BadInput, match=r"cold batch, table 't2': lookup 0 asks for row 300"):
        trainer.predict(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], beyond)))
    short = Bags(values=np.array([1] * 7), offsets=np.arange(8))
    with pytest.raises(BadInput, match="table 't2': 7 bags for 8 labels"):
        trainer(replace(BATCHES[0], tables=(*BATCHES[0].tables[:2], short)))
    with pytest.raises(BadInput, match="bags of 2 tables, the model has 3"):
        trainer(replace(BATCHES[0], tables=BATCHES[0].tables[:2]))
    with pytest.raises(Unsupported, match="not adam"):
        alone(Optimizer.ADAM)
    with pytest.raises(BadInput, match="needs weights of 347 rows"):
        PhasedTrainer(MODEL, torch.cat(initial()[:2]))


def test_empty_batches_train_the_dense_model_alone():
    none = Bags(values=np.empty(0, dtype=np.int64), offsets=np.zeros(9, dtype=np.int64))
    empty = replace(BATCHES[3], tables=(none,) * 3)
    trainer = alone()
    for kind in PhaseKind:
        logits = trainer(replace(empty, kind=kind))
        assert torch.isfinite(logits).all()
    trainer.switch(PhaseKind.COLD)
    assert torch.equal(trainer.master.weights, torch.cat(initial()))
