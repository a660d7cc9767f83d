import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.statistics import mean, median, median_ratio, noise_floor_pct, p95, percentile

numbers = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=30)


def test_median_and_p95_by_hand():
    assert median([4.0, 1.0, 3.0, 2.0]).value == 2.5
    assert p95([5.0, 1.0, 2.0, 3.0, 4.0]).value == pytest.approx(4.8)
    assert median([4.0, 1.0, 3.0, 2.0]).n == 4


def test_mean_by_hand():
    estimate = mean([1.0, 9.0])
    # Both resampled means of two equal draws have probability 1/4; a median of (1, 1, 9) would be 1.
    assert (estimate.low, estimate.value, estimate.high, estimate.n) == (1.0, 5.0, 9.0, 2)
    assert mean([1.0, 1.0, 9.0, 9.0, 9.0, 1.0, 1.0]).value == pytest.approx(31 / 7)
    # Of 400 zeros and ones: 0.5 with a standard error of 0.025; a median's interval would be 0 to 1.
    wide = mean([0.0, 1.0] * 200)
    assert (wide.low, wide.high) == (pytest.approx(0.45, abs=0.01), pytest.approx(0.55, abs=0.01))


def test_interval_of_equal_numbers_is_the_number():
    estimate = median([7.0] * 5)
    assert (estimate.low, estimate.value, estimate.high) == (7.0, 7.0, 7.0)
    assert estimate.holds(7.0)
    assert not estimate.holds(7.1)


def test_one_number_has_no_width():
    estimate = p95([3.0])
    assert (estimate.low, estimate.high, estimate.n) == (3.0, 3.0, 1)


def test_interval_of_two_numbers_reaches_both():
    # A resample of {1, 3} is (1, 1) or (3, 3) with probability 1/4 each: far above 2.5 %.
    estimate = median([1.0, 3.0])
    assert (estimate.low, estimate.value, estimate.high) == (1.0, 2.0, 3.0)


def test_same_seed_same_interval_other_seed_another():
    sample = list(np.random.default_rng(1).lognormal(size=40))
    assert median(sample, seed=3) == median(sample, seed=3)
    assert median(sample, seed=3) != median(sample, seed=4)


def test_large_samples_are_resampled_in_chunks(monkeypatch):
    # In chunks of 7 resamples, of which 2,000 are not a multiple, as in one.
    few = list(np.random.default_rng(2).lognormal(size=40))
    at_once = median(few), median_ratio(few, few[5:])
    monkeypatch.setattr("shardbench.base.statistics._CHUNK", 7 * 40)
    assert (median(few), median_ratio(few, few[5:])) == at_once
    monkeypatch.undo()
    sample = np.arange(200_001, dtype=float)
    estimate = percentile(list(sample[::50]), 50.0)
    assert estimate.low < 100_000 < estimate.high


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = [median(list(rng.normal(10.0, 1.0, size=25))).holds(10.0) for _ in range(150)]
    assert 0.88 <= np.mean(held) <= 1.0


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_interval_lies_within_the_sample(sample):
    estimate = median(sample)
    assert min(sample) <= estimate.low <= estimate.high <= max(sample)


@settings(max_examples=40, deadline=None)
@given(numbers, st.randoms(use_true_random=False))
def test_order_does_not_count_and_doubling_doubles(sample, random):
    shuffled = list(sample)
    random.shuffle(shuffled)
    estimate, doubled = median(sample), median([2 * x for x in sample])
    assert median(shuffled) == estimate
    assert (doubled.low, doubled.value, doubled.high) == (2 * estimate.low, 2 * estimate.value, 2 * estimate.high)


def test_ratio_by_hand():
    estimate = median_ratio([6.0, 6.0, 6.0], [2.0, 2.0])
    assert (estimate.low, estimate.value, estimate.high, estimate.n) == (3.0, 3.0, 3.0, 2)


@settings(max_examples=30, deadline=None)
@given(numbers)
def test_ratio_of_a_sample_to_itself_holds_one(sample):
    assert median_ratio(sample, sample).holds(1.0)


def test_noise_floor_by_hand():
    # Spreads: 11/10 - 1 = 0.1 and 30/20 - 1 = 0.5; 90th percentile = 0.1 + 0.9 * 0.4 = 0.46.
    assert noise_floor_pct([[[10.0], [11.0]], [[20.0], [30.0], [25.0]]]) == pytest.approx(46.0)
    assert noise_floor_pct([[[10.0, 20.0, 99.0], [20.0, 20.0, 20.0]]]) == 0.0


def test_one_disturbed_repeat_among_many_does_not_set_the_floor():
    calm = [[[100.0], [101.0]]] * 19
    assert noise_floor_pct([*calm, [[100.0], [300.0]]]) == pytest.approx(1.0)


def test_no_repeats_no_floor():
    assert noise_floor_pct([]) is None
    assert noise_floor_pct([[[1.0, 2.0]], [[3.0]]]) is None


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one number"):
        median([])
    with pytest.raises(ValueError, match="positive"):
        median_ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="positive"):
        noise_floor_pct([[[0.0], [1.0]]])
