import math

import numpy as np
import pytest

from shardbench.base.statistics import covariance, dunnett_quantile, log_mean, pooled_noise, t_mean, t_quantile


def test_mean_by_hand():
    estimate = t_mean([1.0, 9.0])
    # Standard error 4, t of one degree of freedom tan(0.475 pi).
    reach = 4.0 * math.tan(0.475 * math.pi)
    assert (estimate.value, estimate.n) == (5.0, 2)
    assert (estimate.low, estimate.high) == (pytest.approx(5.0 - reach), pytest.approx(5.0 + reach))
    alone = t_mean([-3.0])
    assert (alone.value, alone.low, alone.high, alone.n) == (-3.0, None, None, 1)


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


def test_the_interval_of_five_repeats_covers_the_truth():
    trials = drawn_trials(np.random.default_rng(5), (2000, 5))
    by_t = [log_mean(list(trial)) for trial in trials]
    # 95 % of 2,000, give or take four standard errors.
    assert np.mean([e.low <= 10.0 <= e.high for e in by_t]) == pytest.approx(0.95, abs=0.02)


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
        t_mean([])
    with pytest.raises(ValueError, match="at least one number"):
        log_mean([])
    with pytest.raises(ValueError, match="positive"):
        log_mean([1.0, 0.0])
    with pytest.raises(ValueError, match="positive"):
        pooled_noise([[0.0, 1.0]])


@pytest.mark.parametrize(
    ("others", "freedom", "value"),
    # Dunnett 1955, Journal of the American Statistical Association 50, table 1a: one-sided, 95 %.
    [(1, 5, 2.02), (5, 20, 2.39), (9, 120, 2.45), (2, 10, 2.15)],
)
def test_dunnetts_values_are_those_of_his_table(others, freedom, value):
    assert dunnett_quantile(0.95, others, freedom) == pytest.approx(value, abs=0.011)


@pytest.mark.parametrize("freedom", [1, 2, 7, 43, 400])
def test_with_one_other_dunnetts_value_is_students(freedom):
    assert dunnett_quantile(0.95, 1, freedom) == pytest.approx(t_quantile(0.95, freedom), rel=1e-4)


def test_the_best_of_equals_is_called_best_alone_in_one_case_of_twenty():
    rng = np.random.default_rng(3)
    wrong = []
    for trials in drawn_trials(rng, (600, 8, 2)):
        noise, middles = pooled_noise(trials.tolist()), np.log(trials).mean(axis=1)
        # The first of eight equals is as good as any; a mistake is to find it behind the best of the others.
        wrong.append(middles[0] - middles[1:].min() > noise.behind_log(2, 2, 7))
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.03)


def test_the_slope_of_a_covariate_is_that_within_things():
    # Within things the number falls where the covariate rises; between them both rise.
    found = covariance([[10.0, 5.0], [40.0, 20.0]], [[1.0, 2.0], [4.0, 8.0]])
    assert (found.slope, found.noise.freedom) == (pytest.approx(-1.0), 1)
    assert found.adjusted(10.0, 1.0) == pytest.approx(10.0 / math.exp(found.at))
    assert found.noise.deviation == pytest.approx(0.0, abs=1e-9)


def test_differences_at_one_covariate_are_as_sure_as_they_are_said_to_be():
    # Trials of which half the noise is the machine's, which the covariate tells up to a noise of its own.
    rng, wrong = np.random.default_rng(11), []
    for _ in range(1500):
        machine = rng.normal(0.0, 0.04, size=(6, 2))
        x, y = (np.exp(machine + rng.normal(0.0, 0.02, size=(6, 2))) for _ in range(2))
        found = covariance(y.tolist(), x.tolist())
        means = [np.mean([math.log(found.adjusted(*pair)) for pair in zip(*both)]) for both in zip(y, x)]
        wrong.append(abs(means[0] - means[1]) > found.noise.least_log(2, 2))
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.02)


def test_no_slope_is_known_without_repeats_or_where_the_covariate_stands():
    assert covariance([[1.0], [2.0]], [[1.0], [3.0]]) is None
    assert covariance([[1.0, 2.0]], [[1.0, 3.0]]) is None, "no degree of freedom is left"
    assert covariance([[1.0, 2.0], [2.0, 3.0]], [[1.0, 1.0], [3.0, 3.0]]) is None
