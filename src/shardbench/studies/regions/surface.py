"""A response surface over knobs in [0, 1], and what each knob has to say in it (Sobol's indices).

Polynomial chaos: products of Legendre polynomials, orthonormal for uniform knobs, so that the surface's variance is
the sum of its squared coefficients and a knob's indices are sums over the terms that it is in (Sudret, 2008).
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from shardbench.base.arrays import Floats, Ints

DEGREE = 2
LEAST_GAIN = 0.05
"""Share of the leave-one-out errors that a term has to take away: less is what chance takes."""
FOLDS = 8
"""Parts of the points; each is predicted from the others."""
_ROUNDING = 1e-24
MOST_TERMS_SHARE = 0.25
"""Terms a point: more would follow the points and not the surface."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The terms that were chosen, and how well they predict points that they were not fitted to."""

    powers: Ints
    """[terms, knobs] degree of each knob in each term; the first term is the constant."""
    coefficients: Floats
    """One coefficient a term, [terms]."""
    q2: float
    """1 - squared errors over squared deviations from the mean, at points that neither chose nor fitted the terms.

    1 is perfect, 0 no better than the mean, less is worse: there the indices say nothing.
    """

    def first_order(self) -> Floats:
        """Give the share of the variance, [knobs], that a knob explains by itself; zeros for a flat surface."""
        return self._shares((self.powers > 0).sum(axis=1) == 1)

    def total(self) -> Floats:
        """Give the share of the variance of all terms that a knob is in, [knobs]."""
        return self._shares(np.ones(len(self.powers), dtype=bool))

    def _shares(self, terms: np.ndarray) -> Floats:
        squares = self.coefficients**2 * (self.powers.sum(axis=1) > 0)
        variance = squares.sum()
        if variance == 0.0:
            return np.zeros(self.powers.shape[1])
        inside = (self.powers > 0) & terms[:, None]
        return np.asarray((squares[:, None] * inside).sum(axis=0) / variance)


def fit_surface(knobs: Floats, values: Floats) -> Surface:
    """Fit the surface through ``values`` [points] at ``knobs`` [points, knobs] in [0, 1], the design's order kept.

    It has polynomials up to DEGREE in all, and at most a quarter as many terms as points. ValueError for fewer points
    than FOLDS.
    """
    if len(knobs) < FOLDS:
        raise ValueError(f"a response surface needs {FOLDS} points, not {len(knobs)}")
    powers = _powers(knobs.shape[1])
    deviation = float(((values - values.mean()) ** 2).sum())
    if deviation <= _ROUNDING * float((values**2).sum()):
        return Surface(powers=powers[:1], coefficients=values[:1], q2=1.0)
    design = _terms(knobs, powers)
    best_terms, coefficients = _choose_terms(design, values)
    errors = np.zeros(len(values))
    # Points that follow one another in a Sobol sequence are spread over the whole region: a fold leaves no hole.
    for fold in np.array_split(np.arange(len(values)), FOLDS):
        rest = np.setdiff1d(np.arange(len(values)), fold)
        terms, weights = _choose_terms(design[rest], values[rest])
        errors[fold] = values[fold] - design[fold][:, terms] @ weights
    q2 = 1.0 - float((errors**2).sum()) / deviation
    return Surface(powers=powers[best_terms], coefficients=coefficients, q2=q2)


def _choose_terms(design: Floats, values: Floats) -> tuple[list[int], Floats]:
    """Choose terms one by one while leave-one-out errors fall; gives them with their coefficients."""
    terms = [0]
    best = _leave_one_out_error(design[:, terms], values)
    while len(terms) < max(2, int(MOST_TERMS_SHARE * len(values))):
        others = [i for i in range(design.shape[1]) if i not in terms]
        if not others:
            break
        errors = [_leave_one_out_error(design[:, [*terms, i]], values) for i in others]
        least = int(np.argmin(errors))
        if errors[least] >= best * (1.0 - LEAST_GAIN):
            break
        best = errors[least]
        terms.append(others[least])
    coefficients, *_ = np.linalg.lstsq(design[:, terms], values, rcond=None)
    return terms, np.asarray(coefficients, dtype=np.float64)


def _powers(knobs: int) -> Ints:
    """List powers [terms, knobs], the constant first: every product of up to DEGREE in all of at most two knobs."""
    powers = {(0,) * knobs}
    for degree in range(1, DEGREE + 1):
        for of in combinations_with_replacement(range(knobs), degree):
            power = tuple(of.count(knob) for knob in range(knobs))
            if sum(map(bool, power)) <= 2:
                powers.add(power)
    return np.array(sorted(powers, key=lambda power: (sum(power), power)), dtype=np.int64)


def _terms(knobs: Floats, powers: Ints) -> Floats:
    """Evaluate, [points, terms], orthonormal Legendre polynomials' products."""
    one = np.stack(
        [
            np.sqrt(2.0 * degree + 1.0) * np.polynomial.legendre.Legendre.basis(degree)(2.0 * knobs - 1.0)
            for degree in range(DEGREE + 1)
        ]
    )
    return np.asarray(np.prod([one[powers[:, knob], :, knob] for knob in range(knobs.shape[1])], axis=0).T)


def _leave_one_out_error(design: Floats, values: Floats) -> float:
    """Add up squared errors at each point of the fit to all others (PRESS, by the hat matrix)."""
    basis, _ = np.linalg.qr(design)
    residuals = values - basis @ (basis.T @ values)
    leverage = (basis**2).sum(axis=1)
    return float(((residuals / np.maximum(1.0 - leverage, 1e-9)) ** 2).sum())
