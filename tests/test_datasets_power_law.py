"""Bounded power laws: masses, bounds, order, and the analytic reuse they imply."""

import numpy as np
import pytest
from fits.reuse import Reuse, expected, measured, rank_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.datasets.laws.power_law import BrokenPowerLaw, PowerLaw, head_share

LAWS = st.builds(
    PowerLaw,
    rows=st.integers(1, 40_000_000),
    exponent=st.one_of(st.just(1.0), st.floats(0.0, 4.0)),
    shift=st.floats(0.01, 1e5),
)


@settings(deadline=None)
@given(law=LAWS, seed=st.integers(0, 2**32))
def test_draws_stay_in_the_table(law: PowerLaw, seed: int) -> None:
    ranks = law.sample(np.random.default_rng(seed), 1000)
    assert ranks.dtype == np.int64
    assert ranks.min() >= 0
    assert ranks.max() < law.rows


@settings(deadline=None)
@given(law=LAWS)
def test_ends_of_the_unit_interval_are_the_ends_of_the_table(law: PowerLaw) -> None:
    ends = law.inverse(np.array([0.0, np.nextafter(1.0, 0.0)]))
    assert ends[0] == 0
    assert 0 <= ends[1] < law.rows


@settings(deadline=None)
@given(
    rows=st.integers(2, 10**7),
    knee_share=st.floats(0, 1),
    exponent=st.floats(0, 3),
    steeper=st.floats(0, 3),
    shift=st.floats(0.5, 1e3),
)
def test_broken_law_draws_in_bounds_and_never_increases(
    rows: int, knee_share: float, exponent: float, steeper: float, shift: float
) -> None:
    knee = min(max(1, int(rows * knee_share)), rows - 1)
    law = BrokenPowerLaw(rows=rows, knee=knee, exponent=exponent, tail_exponent=exponent + steeper, shift=shift)
    ranks = law.sample(np.random.default_rng(0), 500)
    assert ranks.min() >= 0
    assert ranks.max() < rows
    last_of_head = 1.0 - float(law.head.cdf(np.array([knee - 1.0]))[0])
    first_of_tail = float(law.tail.cdf(np.array([1.0]))[0])
    assert first_of_tail * (1 - law.head_share) <= last_of_head * law.head_share * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.0 + 1e-7, 2.5])
def test_sampled_shares_are_the_law(exponent: float) -> None:
    law = PowerLaw(rows=1000, exponent=exponent, shift=3.0)
    draws = 400_000
    counts = np.bincount(law.sample(np.random.default_rng(1), draws), minlength=1000)
    mass = np.diff(law.cdf(np.arange(1001.0)))
    assert mass.sum() == pytest.approx(1.0)
    assert (np.diff(mass) <= 1e-12).all()
    chi2 = float(((counts - draws * mass) ** 2 / (draws * mass)).sum())
    assert chi2 < 999 + 6 * np.sqrt(2 * 999)


def test_broken_law_sampled_shares() -> None:
    law = BrokenPowerLaw(rows=5000, knee=400, exponent=0.8, tail_exponent=3.0, shift=5.0)
    draws = 400_000
    ranks = law.sample(np.random.default_rng(2), draws)
    share = law.head_share
    assert np.mean(ranks < 400) == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / draws))
    x = np.linspace(0, 5000, 500_001)[:-1] + 0.005
    density = np.where(x < 400, (x + 5.0) ** -0.8, 405.0 ** (3.0 - 0.8) * (x + 5.0) ** -3.0)
    assert share == pytest.approx(density[x < 400].sum() / density.sum(), rel=1e-4)


def test_bad_laws_are_refused() -> None:
    with pytest.raises(ValueError, match="shift > 0"):
        PowerLaw(rows=10, exponent=1.0, shift=0.0)
    with pytest.raises(ValueError, match="knee < rows"):
        BrokenPowerLaw(rows=10, knee=10, exponent=1.0, tail_exponent=2.0, shift=1.0)


@settings(deadline=None)
@given(rows=st.integers(1, 10**8), buckets=st.integers(1, 300))
def test_rank_edges_cover_the_table(rows: int, buckets: int) -> None:
    edges = rank_edges(np.array([float(rows)]), buckets)[0]
    assert edges[0] == 0
    assert edges[-1] == rows
    assert (np.diff(edges) >= 0).all()


@settings(deadline=None, max_examples=10)
@given(
    rows=st.integers(100, 200_000),
    lookups=st.integers(100, 400_000),
    exponent=st.floats(0.2, 2.0),
    shift=st.floats(1.0, 100.0),
)
def test_expected_reuse_is_what_sampling_gives(rows: int, lookups: int, exponent: float, shift: float) -> None:
    law = PowerLaw(rows=rows, exponent=exponent, shift=shift)
    drawn = measured(np.bincount(law.sample(np.random.default_rng(0), lookups), minlength=rows))
    wanted = expected(*(np.array([float(v)]) for v in (lookups, rows, exponent, shift)))
    assert drawn.lookups.sum() == lookups
    assert wanted.lookups.sum() == pytest.approx(lookups, rel=0.01)
    assert drawn.rows.sum() == pytest.approx(wanted.rows.sum(), rel=0.02, abs=6 * np.sqrt(wanted.rows.sum()))


def test_reuse_bins_are_those_of_locality_stats() -> None:
    reuse = measured(np.array([0, 1, 2, 3, 4, 5, 32_768, 32_769, 10**6]))
    assert reuse.rows.tolist() == [1, 1, 2, 1] + [0] * 11 + [1, 2]
    assert reuse.lookups[2] == 7
    zero = Reuse(rows=np.zeros(17), lookups=np.zeros(17))
    assert (zero + reuse).mean == reuse.mean


def test_head_share_broadcasts() -> None:
    rows, knee = np.array([1000.0, 500.0]), np.array([10.0, 499.0])
    both = head_share(rows, knee, np.array([1.0, 0.5]), np.array([2.0, 0.5]), np.array([1.0, 1.0]))
    law = BrokenPowerLaw(rows=1000, knee=10, exponent=1.0, tail_exponent=2.0, shift=1.0)
    assert both[0] == pytest.approx(law.head_share)
    assert 0.99 < both[1] < 1
