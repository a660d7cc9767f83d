"""Merging and assembling blocks of columns, against plain addition into whole vectors."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shardbench.engine.blocks import Assembler, Block, merge
from shardbench.engine.lower import Slot

SLOTS = [Slot(0, 0), Slot(1, 0), Slot(0, 1)]

BLOCKS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)).map(
        lambda b: Block(slot=Slot(b[0] % 2, b[0] // 2), start=4 * b[1], stop=4 * (b[1] + b[2]))
    ),
    min_size=1,
    max_size=6,
)


def added(blocks, tensor):
    """Whole vectors of the slots, 32 columns each, by plain addition."""
    whole, at = torch.zeros(3, len(tensor), 32), 0
    for block in blocks:
        whole[SLOTS.index(block.slot), :, block.start : block.stop] += tensor[:, at : at + block.width]
        at += block.width
    return whole


@given(BLOCKS, st.integers(0, 1000))
def test_merging_keeps_the_sum_and_sends_each_column_once(blocks, seed):
    torch.manual_seed(seed)
    tensor = torch.randn(2, sum(block.width for block in blocks))
    merged = merge(blocks)
    left = [block.width for block in merged.blocks]
    columns = [(block.slot, c) for block in merged.blocks for c in range(block.start, block.stop)]
    assert len(columns) == len(set(columns)) == sum(left)
    torch.testing.assert_close(added(merged.blocks, merged(tensor)), added(blocks, tensor))
    assert any(len(runs) > 1 for runs in merged.parts) == (sum(left) < sum(block.width for block in blocks))


@given(BLOCKS, BLOCKS, st.integers(0, 1000))
def test_assembling_adds_blocks_of_several_tensors(first, second, seed):
    torch.manual_seed(seed)
    first = [*first, *(Block(slot=slot, start=0, stop=32) for slot in SLOTS)]
    tensors = [torch.randn(2, sum(block.width for block in blocks)) for blocks in (first, second)]
    assembled = Assembler(SLOTS, [first, second])
    whole = added(first, tensors[0]) + added(second, tensors[1])
    for ours, theirs in zip(assembled(tensors), whole, strict=True):
        torch.testing.assert_close(ours, theirs)


@given(BLOCKS)
def test_the_gradient_of_a_merge_is_put_together_once(blocks):
    tensor = torch.randn(2, sum(block.width for block in blocks), requires_grad=True)
    merged = merge(blocks)(tensor)
    pending, nodes = [merged.grad_fn], set()
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending += [parent for parent, _ in node.next_functions if parent is not None]
    # A slice a block would each add a gradient of the tensor's whole size.
    leaf = {node for node in nodes if type(node).__name__ == "AccumulateGrad"}
    assert len([node for node in nodes if leaf & {parent for parent, _ in node.next_functions}]) == 1
    merged.sum().backward()
    torch.testing.assert_close(tensor.grad, torch.ones_like(tensor))
