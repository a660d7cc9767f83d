"""FlexShard's rule by hand and against the counter: benefits, and rows taken by seconds a byte."""

import numpy as np
import pytest
from flexshard_problems import problem_of, quick_machine, tiers, zipf
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.baselines.flexshard.rule import (
    LinkPrices,
    Units,
    added_bytes,
    benefits,
    choose,
    link_shares,
    make_units,
)
from shardbench.baselines.flexshard.shape import find_homes, make_plan, runnable
from shardbench.cost.traffic import expect


def test_benefits_by_hand() -> None:
    # 2 nodes x 2; local batch 16 of 64 samples: a row seen 8 times is looked up twice a rank.
    problem = problem_of([[8, 4, 0, 0, 0, 0, 0, 0]])
    units = make_units(problem, with_warm=True)
    assert units.number.tolist() == [1, 1, 6]
    np.testing.assert_allclose(units.exchanged, [2 * (8 + 128), 1 * 136, 0])
    assert set(units.weights) == {64}
    prices = LinkPrices(exchange=(1e-11, 1e-10), synchronise=(2e-11, 1e-10))
    warm, hot = benefits(units, link_shares(problem), prices)
    # Cold: a quarter inside, half across. Warm: half inside; its copies' gradients: 2 (N-1)/N of half the row.
    # Hot: all-reduce of 2 x 1/2 inside and 2 x 1/2 x 1/2 across.
    cold = 0.25 * 1e-11 + 0.5 * 1e-10
    assert warm[0] == pytest.approx(272 * (cold - 0.5 * 1e-11) - 64 * 0.5 * 1e-10)
    assert hot[0] == pytest.approx(272 * cold - 64 * (1.0 * 2e-11 + 0.5 * 1e-10))
    assert warm[2] < 0 > hot[2]
    more_warm, more_hot = added_bytes(units, problem)
    assert more_warm[0] == pytest.approx(64 * (1 / 2 - 1 / 4))
    assert more_hot[0] == pytest.approx(64 * 3 / 4)


@given(st.integers(0, 10), st.integers(0, 10), st.sampled_from([(2, 2), (2, 3), (1, 4), (3, 1)]))
def test_the_rule_and_the_counter_agree_on_every_byte(hot: int, warm: int, shape: tuple[int, int]) -> None:
    problem = problem_of([zipf(40, 60)], on=quick_machine(*shape), batch=24, samples=48)
    homes = find_homes(problem, over_all=False)
    moved = tiers([hot], [warm])
    if runnable(moved, problem) != moved:
        return
    units, shares = make_units(problem, with_warm=True), link_shares(problem)
    ends = np.cumsum(units.number)
    in_hot = np.clip(hot - (ends - units.number), 0, units.number)
    in_warm = np.clip(hot + warm - (ends - units.number), 0, units.number) - in_hot
    sent = expect(make_plan(problem, homes, moved), problem).collectives
    for link, name in ((0, "sent_intra"), (1, "sent_inter")):
        cold_part, warm_part = shares.cold[link], shares.warm[link]
        bytes_ = units.exchanged @ ((units.number - in_hot - in_warm) * cold_part + in_warm * warm_part)
        exchanged = sum(
            float(getattr(sent[c], name).max())
            for c in ("input_all_to_all", "output_all_to_all", "backward_all_to_all")
        )
        local, world = problem.topology.devices_per_node, problem.world_size
        lengths = problem.batch_size // world * 4 * ((local - 1) if link == 0 else (world - local))
        in_node = problem.batch_size // world * 4 * (local - 1) * (warm > 0) * (link == 0)
        assert exchanged == pytest.approx(bytes_ + lengths + in_node)
        if warm % local == 0:
            reduced = units.weights @ (in_hot * shares.hot_sync[link] + in_warm * shares.warm_sync[link])
            assert float(getattr(sent["rows_all_reduce"], name).max()) == pytest.approx(reduced)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), min_size=6, max_size=40), st.floats(0, 3000), st.floats(0, 1), st.floats(0, 1))
def test_the_greedy_rule_spends_the_budget_on_the_hottest(counts: list[int], left: float, a: float, b: float) -> None:
    problem = problem_of([counts], batch=256)
    units = make_units(problem, with_warm=True)
    saved = benefits(units, link_shares(problem), LinkPrices.weighted(problem.machine, a, b))
    added = added_bytes(units, problem)
    chosen = choose(units, saved, added, left, 1)
    spent = chosen.hot[0] * added[1][0] + chosen.warm[0] * added[0][0]
    assert spent <= left + 1e-6
    assert chosen.hot[0] + chosen.warm[0] <= len(counts)
    assert chosen.warm[0] >= 0
    more = choose(units, saved, added, 2 * left + 100, 1)
    assert more.hot[0] + more.warm[0] >= chosen.hot[0]


def unit_rows(number: list[int], *, warm: bool) -> Units:
    """Rows of one table each, ``number`` of them; bytes are given to the rule apart."""
    ones, counts = np.ones(len(number)), np.array(number, dtype=np.float64)
    return Units(
        table=np.arange(len(number)), number=counts, rows=ones, exchanged=ones, weights=ones, held_bytes=ones,
        cold_share=0 * ones, warm=np.full(len(number), warm),
    )  # fmt: skip


def chosen(units: Units, saved: tuple, added: tuple, left: float) -> list[tuple[int, int]]:
    """(hot, warm) rows of each table, by the rule."""
    arrays = [(np.array(warm, dtype=np.float64), np.array(hot, dtype=np.float64)) for warm, hot in (saved, added)]
    found = choose(units, arrays[0], arrays[1], left, len(units.number))
    return list(zip(found.hot.tolist(), found.warm.tolist()))


def test_rows_are_taken_by_seconds_a_byte_and_not_by_seconds() -> None:
    # The first saves more, the second more a byte: 10 s for 10 bytes, 6 s for 3; the third costs.
    units, none = unit_rows([1, 1, 1], warm=False), [-1, -1, -1]
    saved, added = (none, [10, 6, -1]), ([1, 1, 1], [10, 3, 1])
    assert chosen(units, saved, added, 2) == [(0, 0), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 10) == [(0, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 13) == [(1, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 1000) == [(1, 0), (1, 0), (0, 0)]
    # Of a run that does not fit whole as many rows as there is room for: 3 and 3 bytes, then 10.
    assert chosen(unit_rows([2, 4, 1], warm=False), saved, added, 12 + 19) == [(1, 0), (4, 0), (0, 0)]


def test_tiers_are_climbed_along_the_concave_hull() -> None:
    # First: 4 s for the first 2 bytes, 2 s for 4 more. Second: 1 s for 2 bytes is beneath 6 s for 4: hot at once.
    # Third: 0.4 s a byte, after the first's 0.5.
    units = unit_rows([1, 1, 1], warm=True)
    saved, added = ([4, 1, -1], [6, 6, 4]), ([2, 2, 5], [6, 4, 10])
    assert chosen(units, saved, added, 2) == [(0, 1), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 5) == [(0, 1), (0, 0), (0, 0)]
    assert chosen(units, saved, added, 6) == [(0, 1), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 10) == [(1, 0), (1, 0), (0, 0)]
    assert chosen(units, saved, added, 20) == [(1, 0), (1, 0), (1, 0)]
    # 4 s for 8 bytes come after 3 s for 2.
    assert chosen(unit_rows([1, 1], warm=True), ([4, 3], [-1, -1]), ([8, 2], [9, 9]), 8) == [(0, 0), (0, 1)]
    # A unit that may not be warm climbs to hot alone, and 1 s a byte comes after 1.5 s a byte.
    assert chosen(unit_rows([1, 1, 1], warm=False), saved, added, 9) == [(0, 0), (1, 0), (0, 0)]
    # Where hot saves no more than warm, warm is the last step, however much room is left.
    assert chosen(unit_rows([1], warm=True), ([4], [4]), ([2], [6]), 1000) == [(0, 1)]
    assert chosen(unit_rows([1], warm=True), ([4], [-9]), ([2], [6]), 1000) == [(0, 1)]
