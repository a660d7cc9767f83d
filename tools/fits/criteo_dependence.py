"""Fits how criteo_like's columns depend on each other to published aggregates alone and writes the parameters.

    PYTHONPATH=tools python -m fits.criteo_dependence

Published are correlations of the columns' normal scores and the share of wholly hot inputs by size of the log
(data/criteo_joint_dependence.json). A Gaussian copula that meets the correlations falls short of the curve: values that
occur once, in half of the lookups of the largest columns, have no frequency to correlate. So some inputs are popular.
By turns, drawing as many inputs as were counted: loadings move by what correlations lack, shares of popular inputs by
what the curve lacks.
"""

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.base.atomic import write_atomically
from shardbench.datasets.criteo_like import CriteoLike, CriteoLikeConfig, measured_fields
from shardbench.datasets.laws.criteo_dependence import (
    ABSENCE,
    ABSENT_TOGETHER,
    FEATURES,
    FITTED,
    SAME_PLACE,
    Dependence,
)
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import MISSING, one_hot_values

PUBLISHED = FITTED.with_name("criteo_joint_dependence.json")
INPUTS = 10_109
"""Inputs that are drawn, as many as were counted: what ties do to a correlation depends on their number."""
FACTORS = 12
POPULAR_LOGS = (350, 5000)
"""A popular input has, in every column, values of at least one in so many inputs: hot, more likely than not, there."""
CLUSTER_LEVEL = 0.5
"""Columns joined by correlations from here on have one ceiling, the lowest of theirs: they are popular together."""
INDEPENDENT_LEVEL = 0.03
"""Columns without a correlation as large (two samples differ by 0.017) have none."""
START_SHARES = (0.03, 0.23)
ROUNDS, STEPS, SAMPLES = 6, 6, 4
MOST_ASKED = 0.98
ABSENCE_GAIN = 1.25
"""A correlation r with the absence of 41 % of the inputs moves the columns' by about 0.8 r."""


def ceilings() -> Floats:
    """Return the places below which the popular inputs of each log lie, float64 [27, logs]."""
    places = np.empty((FEATURES + 1, len(POPULAR_LOGS)))
    data = measured_fields()
    fields = list(data["fields"].values())
    for i, field in enumerate(fields):
        head = np.repeat(np.array(field["head_counts"], dtype=np.float64), field["head_rows"])
        for k, log in enumerate(POPULAR_LOGS):
            places[i, k] = head[head >= data["rows"] / log].sum() / (data["rows"] - field["missing"])
    for cluster in clusters():
        places[cluster] = places[cluster].min(axis=0)
    missing_share = fields[ABSENT_TOGETHER[0]]["missing"] / data["rows"]
    # A missing entry is hot: popular inputs lack these columns as often as others, or have popular values.
    places[ABSENCE] = missing_share + (1.0 - missing_share) * places[list(ABSENT_TOGETHER)].mean(axis=0)
    return np.minimum(places, 1.0)


def clusters() -> list[list[int]]:
    """Group the columns that published correlations of at least CLUSTER_LEVEL link; absence's own columns are apart."""
    linked = np.abs(correlations()) >= CLUSTER_LEVEL
    alone = list(ABSENT_TOGETHER)
    linked[alone], linked[:, alone] = False, False
    np.fill_diagonal(linked, True)
    for _ in range(FEATURES):
        linked = linked @ linked
    return [np.flatnonzero(row).tolist() for row in np.unique(linked, axis=0)]


@lru_cache(maxsize=1)
def published() -> dict[str, Any]:
    """Return the published aggregates that are kept to (data/criteo_joint_dependence.json)."""
    data: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="ascii"))
    return data


def correlations() -> Floats:
    """Return the published correlations, [26, 26]."""
    return np.array(published()["normal_score_correlation"]["matrix"], dtype=np.float64)


def curve() -> tuple[list[int], Floats]:
    """Return the published sizes of the log, and the shares of wholly hot inputs."""
    points: list[dict[str, Any]] = published()["hot_inputs"]["curve"]
    return [p["log_inputs"] for p in points], np.array([p["hot_input_share"] for p in points])


class Trial(CriteoLike):
    """The kaggle form with a dependence on trial."""

    def __init__(self, dependence: Dependence, seed: int, inputs: int = INPUTS) -> None:
        # What is fitted is not yet there.
        super().__init__(
            CriteoLikeConfig(batch_size=inputs, test_batches=1, profile_samples=1, seed=seed, column_dependence=0.0)
        )
        self._dependence, self._depends = dependence, True


def drawn(dependence: Dependence, seed: int) -> Ints:
    """Return the values int64 [INPUTS, 26] of the kaggle form; MISSING where there is none."""
    return one_hot_values(Trial(dependence, seed), Split.TEST, 0)


def independent() -> list[int]:
    """Return the columns that correlate with no other."""
    largest = np.abs(correlations() - np.eye(FEATURES)).max(axis=1)
    return np.flatnonzero(largest < INDEPENDENT_LEVEL).tolist()


def factorised(products: Floats, weights: Floats, start: Floats) -> Floats:
    """Find loadings [n, factors] whose products come closest to ``products`` off the diagonal, by ``weights``, [n, n].

    They are b / sqrt(1 + |b|^2) row by row, so that no score has more than its variance.
    """

    def loss(flat: Floats) -> tuple[float, Floats]:
        free = flat.reshape(start.shape)
        scale = np.sqrt(1.0 + (free**2).sum(axis=1, keepdims=True))
        loadings = free / scale
        error = loadings @ loadings.T - products
        slope = 4.0 * (weights * error) @ loadings
        slope = slope / scale - (slope * free).sum(axis=1, keepdims=True) * free / scale**3
        return float((weights * error**2).sum()), slope.ravel()

    free = start / np.sqrt(np.maximum(1e-6, 1.0 - (start**2).sum(axis=1, keepdims=True)))
    free = minimize(loss, free.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 400}).x.reshape(start.shape)
    return np.asarray(free / np.sqrt(1.0 + (free**2).sum(axis=1, keepdims=True)))


def move_loadings(dependence: Dependence, seeds: Sequence[int]) -> tuple[Dependence, float]:
    """Take one step towards the published correlations; return with it the RMS of what they lacked before."""
    rng = np.random.default_rng(seeds)
    lack = correlations() - np.mean([score_correlations(drawn(dependence, s), rng, 1) for s in seeds], axis=0)
    products = dependence.loadings @ dependence.loadings.T
    together = list(ABSENT_TOGETHER)
    others = [c for c in range(FEATURES) if c not in together]
    shared = lack[np.ix_(together, others)].mean(axis=0)
    products[ABSENCE, others] += ABSENCE_GAIN * shared
    products[others, ABSENCE] = products[ABSENCE, others]
    step = lack.copy()
    step[np.ix_(together, others)] -= shared
    step[np.ix_(others, together)] -= shared[:, None]
    products[:FEATURES, :FEATURES] += step
    products = np.clip(products, -0.9995, 0.9995)
    weights = 1.0 - np.eye(FEATURES + 1)
    # Whether its own columns' values depend on their absence cannot be seen.
    weights[ABSENCE, together] = weights[together, ABSENCE] = 0.02
    one_place = [*SAME_PLACE, *SAME_PLACE.values()]
    weights[np.ix_(one_place, one_place)] = 0.0
    products[independent()], products[:, independent()] = 0.0, 0.0
    loadings = factorised(products, weights, dependence.loadings)
    loadings[independent()] = 0.0
    fit = Dependence(loadings=loadings, shares=dependence.shares, ceilings=dependence.ceilings)
    return fit, float(np.sqrt((lack[np.triu_indices(FEATURES, 1)] ** 2).mean()))


def move_shares(dependence: Dependence, seeds: Sequence[int]) -> tuple[Floats, Floats]:
    """Move the shares of popular inputs one step nearer to the curve; return with them the curve before it."""
    logs, published_curve = curve()
    rng = np.random.default_rng(seeds)

    def mean_curve(shares: Floats) -> Floats:
        trial = Dependence(loadings=dependence.loadings, shares=shares, ceilings=dependence.ceilings)
        return np.asarray(np.mean([hot_shares(drawn(trial, s), logs, rng, 2) for s in seeds], axis=0))

    now = mean_curve(dependence.shares)
    slopes = []
    for k in range(len(dependence.shares)):
        fewer = dependence.shares * np.where(np.arange(len(dependence.shares)) == k, 0.75, 1.0)
        slopes.append((now - mean_curve(fewer)) / (dependence.shares[k] - fewer[k]))
    weights = 1.0 / np.maximum(published_curve, 0.02)
    step = np.linalg.lstsq(np.array(slopes).T * weights[:, None], (published_curve - now) * weights, rcond=None)[0]
    shares = np.maximum(dependence.shares + 0.7 * step, 1e-4)
    # No column has more popular places than popular inputs ask for.
    most_asked = np.cumsum((shares / dependence.ceilings)[:, ::-1], axis=1).max()
    return shares * min(1.0, MOST_ASKED / most_asked), now


def normal_scores(values: Ints, rng: np.random.Generator) -> Floats:
    """Return the scores float64 [n, columns] of ``values`` int64 [n, columns]; MISSING is a value like any other.

    A value is replaced by its place in its column's cumulative frequency, most frequent first and values of
    one frequency in random order, uniform within the value; the score is the normal quantile of the place.
    """
    scores = np.empty(values.shape)
    for column in range(values.shape[1]):
        _, of_input, counts = np.unique(values[:, column], return_inverse=True, return_counts=True)
        order = np.lexsort((rng.random(len(counts)), -counts))
        starts = np.empty(len(counts))
        starts[order] = np.cumsum(counts[order]) - counts[order]
        places = (starts[of_input] + rng.random(len(values)) * counts[of_input]) / len(values)
        scores[:, column] = ndtri(np.maximum(places, 0.5 / len(values) ** 2))
    return scores


def score_correlations(values: Ints, rng: np.random.Generator, draws: int = 5) -> Floats:
    """Return the Pearson correlations of normal scores, [columns, columns], mean of some draws of the ties."""
    correlations = [np.corrcoef(normal_scores(values, rng).T) for _ in range(draws)]
    return np.asarray(np.mean(correlations, axis=0))


def cold_columns(log: Ints, inputs: Ints) -> Bools:
    """Say which columns of ``inputs`` have a value that ``log`` lacks, bool [n, columns]; MISSING is never cold."""
    columns = [~np.isin(inputs[:, c], log[:, c]) & (inputs[:, c] != MISSING) for c in range(inputs.shape[1])]
    return np.stack(columns, axis=1)


def hot_shares(values: Ints, logs: Sequence[int], rng: np.random.Generator, splits: int = 10) -> Floats:
    """Share of inputs outside a random log that are wholly hot, by size of the log, mean of random splits."""
    shares = np.zeros((splits, len(logs)))
    for split in range(splits):
        shuffled = values[rng.permutation(len(values))]
        for at, size in enumerate(logs):
            shares[split, at] = np.mean(~cold_columns(shuffled[:size], shuffled[size:]).any(axis=1))
    return np.asarray(shares.mean(axis=0))


def main() -> None:
    """Fit, and write data/criteo_like_dependence.json."""
    start = np.random.default_rng(3).standard_normal((FEATURES + 1, FACTORS)) * 0.25
    products = np.eye(FEATURES + 1)
    products[:FEATURES, :FEATURES] = correlations()
    loadings = factorised(products, 1.0 - np.eye(FEATURES + 1), start)
    loadings[independent()] = 0.0
    fit = Dependence(loadings=loadings, shares=np.array(START_SHARES), ceilings=ceilings())
    seed = 0
    for _ in range(ROUNDS):
        trials: list[tuple[float, Dependence]] = []
        for _ in range(STEPS):
            next_fit, lack = move_loadings(fit, range(seed, seed + SAMPLES))
            trials.append((lack, fit))
            fit, seed = next_fit, seed + SAMPLES
        lack, fit = min(trials, key=lambda one: one[0])
        shares, now = move_shares(fit, range(seed, seed + SAMPLES))
        sys.stdout.write(f"correlations lack {lack:.4f}, hot {now.round(4).tolist()}, popular {fit.shares.round(4)}\n")
        best, seed = fit, seed + SAMPLES
        fit = Dependence(loadings=fit.loadings, shares=shares, ceilings=fit.ceilings)
    data = {
        "source": "PYTHONPATH=tools python -m fits.criteo_dependence, from criteo_joint_dependence.json alone",
        "popular_logs": list(POPULAR_LOGS),
        "popular_shares": best.shares.round(5).tolist(),
        "popular_ceilings": best.ceilings.round(6).tolist(),
        "loadings": best.loadings.round(4).tolist(),
    }
    write_atomically(FITTED, json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
