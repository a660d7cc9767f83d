"""Both roundings of Adam make torch's steps, and a state that is put back goes on alike."""

import copy

import pytest
import torch
from torch import nn

from shardbench.learning.adam import Adam, NumpyAdam

both = pytest.mark.parametrize("kind", [Adam, NumpyAdam])
INPUTS = torch.linspace(-1.0, 1.0, 160).reshape(8, 20)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))


def steps(module, adam, count):
    for _ in range(count):
        module(INPUTS).square().sum().backward()
        adam.step(1e-2)


@both
def test_adam_is_torchs(kind):
    ours, theirs = network(), network()
    other = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    steps(ours, kind(ours), 20)
    for _ in range(20):
        other.zero_grad()
        theirs(INPUTS).square().sum().backward()
        other.step()
    for mine, expected in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


@both
def test_a_state_that_is_put_back_goes_on(kind):
    whole, parted = network(), network()
    steps(whole, kind(whole), 6)
    first = kind(parted)
    steps(parted, first, 4)
    again = kind(parted)
    again.put_state(copy.deepcopy(first.state()))
    steps(parted, again, 2)
    for mine, expected in zip(parted.parameters(), whole.parameters()):
        assert torch.equal(mine, expected)
