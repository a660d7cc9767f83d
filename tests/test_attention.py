"""Attention over jagged histories, and the sequence model on two emulated nodes of two ranks."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import RandomWorkload, machine
from torch.utils.flop_counter import FlopCounterMode
from unsharded import on_ranks, train_unsharded

from shardbench.engine.dlrm import DenseModel, History, HistoryAttention
from shardbench.model.plan import GroupSharded, OnRank, Plan, Replicated, RowWise, Segment, row_ranges, whole_table
from shardbench.model.table import HISTORY_FLOPS, DenseShape, Pooling, Table

DIM, INPUTS = 8, 5


def attention(seed: int = 0) -> HistoryAttention:
    torch.manual_seed(seed)
    return HistoryAttention(INPUTS, DIM)


def one_by_one(layer: HistoryAttention, bottom: torch.Tensor, history: History) -> torch.Tensor:
    """The definition, sample by sample."""
    out, start = [], 0
    for row, length in zip(bottom, history.lengths.tolist()):
        part = history.vectors[start : start + length]
        start += length
        share = torch.softmax(part @ layer.query(row) / DIM**0.5, dim=0)
        out.append(share @ part if length else 0.0 * layer.query(row))
    return torch.stack(out)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.integers(0, 99))
def test_jagged_attention_equals_the_definition_forward_and_backward(lengths: list[int], seed: int) -> None:
    layer = attention(seed)
    results = []
    for compute in (layer, lambda *given: one_by_one(layer, *given)):
        torch.manual_seed(seed)
        bottom = torch.randn(len(lengths), INPUTS, requires_grad=True)
        vectors = (4.0 * torch.randn(sum(lengths), DIM)).requires_grad_()
        out = compute(bottom, History(vectors, torch.tensor(lengths)))
        layer.zero_grad()
        (out * torch.randn(out.shape)).sum().backward()
        grads = [layer.query.weight.grad, bottom.grad, vectors.grad]
        results.append([out, *(torch.zeros(0) if g is None else g for g in grads)])
    for ours, definition in zip(*results):
        if definition.numel():
            # Sums of float32 differ by the width of the processor's vectors.
            torch.testing.assert_close(ours, definition, atol=5e-5, rtol=1e-4)


def test_huge_scores_stay_finite() -> None:
    layer = attention()
    out = layer(torch.full((2, INPUTS), 1e4), History(torch.full((4, DIM), 1e4), torch.tensor([3, 1])))
    assert torch.isfinite(out).all()


def test_a_batch_without_any_lookup_still_reaches_every_parameter() -> None:
    # DDP waits for a gradient of every parameter on every rank.
    layer = attention()
    layer(
        torch.ones(2, INPUTS), History(torch.zeros(0, DIM, requires_grad=True), torch.tensor([0, 0]))
    ).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


TABLES = (
    Table(name="history", rows=9, dim=8, pooling=Pooling.NONE),
    Table(name="plain", rows=9, dim=4),
    Table(name="other", rows=9, dim=12, pooling=Pooling.NONE),
)
SHAPE = DenseShape(features=3, bottom=(6, 5), top=(7, 1))


def test_the_counted_parameters_are_the_models() -> None:
    model = DenseModel(SHAPE, TABLES)
    assert sum(p.numel() for p in model.parameters()) == SHAPE.parameters(TABLES)
    assert SHAPE.queries(TABLES) == ((5, 8), (5, 12))
    without = sum(i * o + o for i, o in SHAPE.layers(TABLES))
    assert SHAPE.parameters(TABLES) - without == 6 * 8 + 6 * 12
    assert SHAPE.flops_per_sample(TABLES) == sum(2 * i * o for i, o in (*SHAPE.layers(TABLES), (5, 8), (5, 12)))


def test_the_counted_operations_are_those_of_the_same_model_in_matrix_products() -> None:
    samples, lengths = 4, (5, 0, 3)
    model = DenseModel(SHAPE, TABLES)
    given = [
        torch.randn(samples, t.dim)
        if t.pooling is Pooling.SUM
        else History(torch.randn(samples * n, t.dim), torch.full((samples,), n))
        for t, n in zip(TABLES, lengths)
    ]
    dense = torch.randn(samples, SHAPE.features)

    def padded(layer: HistoryAttention, bottom: torch.Tensor, history: History) -> torch.Tensor:
        # Histories of one length need no padding; the counter of operations knows matrix products alone.
        vectors = history.vectors.view(samples, -1, history.vectors.shape[1])
        score = torch.bmm(vectors, layer.query(bottom)[:, :, None]) * layer.scale
        return torch.bmm(score.softmax(dim=1).transpose(1, 2), vectors).squeeze(1)

    with FlopCounterMode(display=False) as counted:
        bottom = model.bottom(dense)
        attentions = iter(model.attentions)
        vectors = [padded(next(attentions), bottom, g) if isinstance(g, History) else g for g in given]
        logits = model.top(torch.cat([bottom, *vectors], dim=1)).squeeze(1)
    torch.testing.assert_close(logits, model(dense, given))
    columns = sum(samples * n * t.dim for t, n in zip(TABLES, lengths) if t.pooling is Pooling.NONE)
    assert counted.get_total_flops() == samples * SHAPE.flops_per_sample(TABLES) + HISTORY_FLOPS * columns


EVERYONE = (0, 1, 2, 3)


def tiers(table: Table, hot: int, warm: int) -> tuple[Segment, ...]:
    ends = (hot, Replicated(ranks=EVERYONE)), (hot + warm, GroupSharded()), (table.rows, RowWise(ranks=EVERYONE))
    return row_ranges(table, *ends)


def test_three_tiers_on_two_nodes_equal_the_unsharded_model_after_eight_steps(tmp_path: Path) -> None:
    workload = RandomWorkload([(300, 16), (90, 8), (200, 16), (40, 16)], 24, pooling=4, unpooled=frozenset({0, 1, 2}))
    workload.test_batches = 8
    tables = workload.tables
    plan = Plan(
        world_size=4,
        segments=(
            *tiers(tables[0], 20, 60),
            *tiers(tables[1], 10, 0),
            *tiers(tables[2], 0, 200),
            whole_table(tables[3], OnRank(rank=2)),
        ),
    )
    # Raises where replicas, or the nodes' copies, differ in a single bit.
    ran = on_ranks(tmp_path, workload, workload.problem(machine(2, 2)), plan, batches=8, seed=3)
    ran.check_trained(logits=2e-5, weights=2e-5)
    ran.check_sent()
    # A model that does not learn would equal itself.
    still = train_unsharded(ran.job.model_copy(update={"learning_rate": 1e-12}))
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(ran.sharded.weights, still.weights, strict=True))
