"""How columns of inputs depend on each other, measured: correlations of normal scores, and wholly hot inputs."""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.workloads.workload import MISSING


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
