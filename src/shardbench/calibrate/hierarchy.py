"""Linear regression whose priors' widths and whose noise are learned with it, for constants that share causes.

Measured logarithms y [m] are taken as ``design @ (shared @ g + e) + biased @ b`` and noise. Every constant [n] moves by
its group's common factor g [groups] and by its own e, which is about as wide as its error or, where the data of the
group contradict that, wider. The biases b [kinds] are what the model's form errs alike in all times of one kind: no
number of plans makes constants surer than that. Noise is Student's t, so that single times do not decide.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints

_FREEDOM = 4.0
"""Degrees of freedom of the noise's t: times within two deviations count nearly as in least squares."""
_ROUNDS = 60
"""Rounds of expectation and maximisation; each is one small linear solution."""
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known before the data: deviations of logarithms."""

    own: Floats
    """Deviation of each constant's own part, [n], above 0."""
    group: Ints
    """Number of each constant's group, [n]."""
    sign: Floats
    """Power with which a group's common factor of time enters a constant, [n]: -1 for rates, 0 for what is no time."""
    common: Floats
    """Deviation of each common factor, [groups], above 0."""
    form: Floats
    """Deviation of a bias of each kind of time, and the least noise of such a time, [kinds]."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Measured times against the model, linear around some constants."""

    y: Floats
    """log(measured / predicted), [m], with all constants' deviations at zero."""
    design: Floats
    """Derivatives of log(predicted) by the logarithms of the constants, [m, n]."""
    kind: Ints
    """Number of the kind of each time, [m]."""
    share: Floats
    """Part that a time counts for, [m], in 0..1: a rank's phase counts as one of its plan's."""
    noise: Floats
    """Deviation of each time between trials, [m]."""

    def of(self, chosen: Bools) -> "Times":
        """Return some of the times, ``chosen`` bool [m]."""
        names = ("y", "kind", "share", "noise")
        parts = {name: getattr(self, name)[chosen] for name in names}
        return Times(**parts, design=self.design[chosen])


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Variances that were learned."""

    groups: Floats
    """Multiples of the prior variances of a group's constants, at least 1, [groups]."""
    noise: Floats
    """Variance of a time of each kind that counts whole, beside what trials differ, [kinds]."""
    weights: Floats
    """Weight of each time by the t, [m]."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The constants' logarithms, and what was learned on the way."""

    log: Floats
    """Moves of the logarithms, [n]."""
    variance: Floats
    """Variances of these moves, [n]."""
    widths: Widths


def learned(times: Times, prior: Prior) -> Posterior:
    """Find the posterior with the most probable widths and noise, by expectation and maximisation."""
    widths = Widths(
        groups=np.ones(len(prior.common)),
        noise=prior.form**2,
        weights=np.ones(len(times.y)),
    )
    for _ in range(_ROUNDS):
        _, mean, cov = solved(times, prior, widths)
        widths = _relearned(times, prior, widths, mean, cov)
    log, mean, cov = solved(times, prior, widths)
    return Posterior(log=log, variance=_log_variance(prior, cov), widths=widths)


def solved(times: Times, prior: Prior, widths: Widths) -> tuple[Floats, Floats, Floats]:
    """Return the constants' moves [n] under these widths; and the mean and covariance of all unknowns (g, e, b)."""
    design = _unknowns(times, prior)
    precision = 1.0 / np.maximum(_variances(prior, widths), _TINY)
    weight = 1.0 / _noise_variance(times, widths)
    cov = np.asarray(np.linalg.inv(design.T @ (design * weight[:, None]) + np.diag(precision)), dtype=np.float64)
    mean = cov @ (design.T @ (weight * times.y))
    g, e = mean[: len(prior.common)], mean[len(prior.common) : len(prior.common) + len(prior.own)]
    return prior.sign * g[prior.group] + e, mean, cov


def _unknowns(times: Times, prior: Prior) -> Floats:
    """Return derivatives by common factors, own parts and biases, [m, groups + n + kinds]."""
    shared = np.zeros((len(prior.own), len(prior.common)))
    shared[np.arange(len(prior.own)), prior.group] = prior.sign
    biased = np.eye(len(prior.form))[times.kind]
    return np.hstack([times.design @ shared, times.design, biased])


def _variances(prior: Prior, widths: Widths) -> Floats:
    own = prior.own**2 * widths.groups[prior.group]
    return np.concatenate([prior.common**2, own, prior.form**2])


def _noise_variance(times: Times, widths: Widths) -> Floats:
    return np.asarray((widths.noise[times.kind] / times.share + times.noise**2) / widths.weights)


def _relearned(times: Times, prior: Prior, widths: Widths, mean: Floats, cov: Floats) -> Widths:
    design, second = _unknowns(times, prior), mean**2 + np.diag(cov)
    off = (times.y - design @ mean) ** 2 + np.einsum("ij,jk,ik->i", design, cov, design)
    of_one = widths.noise[times.kind] / times.share + times.noise**2
    weights = (_FREEDOM + 1.0) / (_FREEDOM + off / of_one)
    groups = len(prior.common)
    own = second[groups : groups + len(prior.own)] / prior.own**2
    touched = np.abs(times.design).max(axis=0, initial=0.0) > 0
    multiples = np.ones(groups)
    for group in range(groups):
        members = own[touched & (prior.group == group)]
        multiples[group] = max(1.0, float(members.mean())) if len(members) else 1.0
    noise = widths.noise.copy()
    for kind in range(len(prior.form)):
        mine = times.kind == kind
        if mine.any():
            beyond = weights[mine] * off[mine] - times.noise[mine] ** 2
            whole = float(np.average(beyond * times.share[mine], weights=times.share[mine]))
            noise[kind] = max(prior.form[kind] ** 2, whole)
    return Widths(groups=multiples, noise=noise, weights=weights)


def _log_variance(prior: Prior, cov: Floats) -> Floats:
    """Return variances of sign x g + e, [n]."""
    n, number = len(prior.own), np.arange(len(prior.own))
    e = len(prior.common) + number
    both = 2.0 * prior.sign * cov[prior.group, e]
    return np.asarray(prior.sign**2 * cov[prior.group, prior.group] + both + cov[e, e]).reshape(n)
