import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base.statistics import log_mean, mean, median, p95, percentile, pooled_noise

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
    at_once = median(few), mean(few[5:])
    monkeypatch.setattr("shardbench.base.statistics._CHUNK", 7 * 40)
    assert (median(few), mean(few[5:])) == at_once
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


def test_geometric_mean_by_hand():
    estimate = log_mean([1.0, 4.0])
    # Logarithms 0 and ln 4: mean ln 2, standard error ln 2, t of one degree of freedom tan(0.475 pi).
    t = math.tan(0.475 * math.pi)
    assert (estimate.value, estimate.n) == (pytest.approx(2.0), 2)
    assert (estimate.low, estimate.high) == (pytest.approx(2.0 ** (1 - t)), pytest.approx(2.0 ** (1 + t)))


def test_one_number_has_no_known_interval():
    estimate = log_mean([3.0])
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (pytest.approx(3.0), None, None, 1)


def test_equal_numbers_have_no_width_and_no_noise():
    estimate = log_mean([7.0] * 5)
    assert (estimate.low, estimate.high) == (pytest.approx(7.0), pytest.approx(7.0))
    assert pooled_noise([[7.0] * 5]).least_pct(5, 5) == pytest.approx(0.0, abs=1e-9)


def drawn_trials(rng, shape):
    """Medians of 12 iterations of trials that also differ between repeats (sd 4 %), the truth being 10 ms."""
    between = rng.normal(0.0, 0.04, size=shape)
    within = rng.normal(0.0, 0.1, size=(*shape, 12))
    return 10.0 * np.exp(between + np.median(within, axis=-1))


def test_the_interval_of_five_repeats_covers_the_truth_and_a_bootstrap_of_them_does_not():
    trials = drawn_trials(np.random.default_rng(5), (2000, 5))
    by_t = [log_mean(list(trial)) for trial in trials]
    # 95 % of 2,000, give or take four standard errors.
    assert np.mean([e.low <= 10.0 <= e.high for e in by_t]) == pytest.approx(0.95, abs=0.02)
    assert np.mean([mean(list(trial)).holds(10.0) for trial in trials[:300]]) < 0.9


def test_the_interval_of_pooled_iterations_misses_the_truth():
    # What repeats are the unit for: iterations of one repeat share what befell it.
    rng = np.random.default_rng(6)
    held = []
    for _ in range(150):
        shared = rng.normal(0.0, 0.04, size=(5, 1))
        held.append(median(list((10.0 * np.exp(shared + rng.normal(0.0, 0.02, size=(5, 12)))).ravel())).holds(10.0))
    assert np.mean(held) < 0.8


def test_equal_plans_are_told_apart_in_one_case_of_twenty():
    # Eight strategies of one plan, five repeats each: every pair that differs by more than the floor is a mistake.
    rng = np.random.default_rng(7)
    wrong = []
    for trials in drawn_trials(rng, (400, 8, 5)):
        noise = pooled_noise(trials.tolist())
        middles = np.log(trials).mean(axis=1)
        wrong.append(np.abs(middles[0] - middles[1]) > noise.least_log(5, 5))
    assert noise.freedom == 32
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.035)


def test_noise_by_hand():
    # Squares about the means: 2 * (ln 2 / 2)^2 of one strategy, 2 * (ln 4)^2 of another; 1 + 2 degrees of freedom.
    noise = pooled_noise([[1.0, 2.0], [1.0, 4.0, 16.0], [9.0]])
    squares = 2 * (math.log(2) / 2) ** 2 + 2 * math.log(4) ** 2
    assert (noise.deviation, noise.freedom) == (pytest.approx(math.sqrt(squares / 3)), 3)
    # t of three degrees of freedom is 3.1824.
    assert noise.least_log(1, 4) == pytest.approx(3.1824 * noise.deviation * math.sqrt(1.25), rel=1e-4)
    assert noise.least_pct(1, 4) == pytest.approx(100 * (math.exp(noise.least_log(1, 4)) - 1))


def test_no_repeats_no_noise_known():
    assert pooled_noise([]) is None
    assert pooled_noise([[1.0], [3.0]]) is None


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one number"):
        median([])
    with pytest.raises(ValueError, match="at least one number"):
        log_mean([])
    with pytest.raises(ValueError, match="positive"):
        log_mean([1.0, 0.0])
    with pytest.raises(ValueError, match="positive"):
        pooled_noise([[0.0, 1.0]])
