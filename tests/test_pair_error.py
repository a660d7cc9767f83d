"""How far ratios of two plans are off: the committed table, and the pairs behind it."""

import math
from pathlib import Path

import pytest
from pair_error import FEW, GPUS, TABLE, card_sets, gpu_pair_error, published_sets, table

from shardbench.cost.published.agreement import pairs
from shardbench.cost.uncertainty import pair_error

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_committed_table_is_what_the_pairs_give() -> None:
    assert TABLE.read_text() == table(), "run: python tools/pair_error.py"


def test_sets_have_every_published_plan_once() -> None:
    steps, kernels = published_sets()
    sets = [one for of in (steps, kernels) for several in of.values() for one in several]
    # A set of n plans has n (n - 1) / 2 pairs.
    assert sum(len(one) * (len(one) - 1) // 2 for one in sets) == len(pairs())
    (two,) = steps["pairs_hybrid_mlperf"]
    pair = next(pair for pair in pairs() if pair.family == "pairs_hybrid_mlperf")
    assert abs(two[0] - two[1]) == pytest.approx(abs(math.log(pair.predicted_ratio / pair.published_ratio)))


def test_lent_cards_are_two_sources_of_many_plans() -> None:
    sets = card_sets(Path("results"))
    assert {name: sum(map(len, own)) >= FEW for name, own in sets.items()} == dict.fromkeys(sets, True)
    assert len(sets) == 2
    every, without = gpu_pair_error(), pair_error(published_sets()[0])
    assert without is not None and every.sources == without.sources + len(sets)
    assert every.low < every.factor < every.high
    assert f'{GPUS},published and measured,"all, sources alike",{every.plans},{every.sources},{every.text}' in table()
