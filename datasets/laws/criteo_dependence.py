"""How Criteo-like columns of one input depend on each other: a Gaussian copula, and inputs that are popular throughout.

Every input has, for each column, a *place* in [0, 1) among the column's lookups, most frequent value first. Places of
one column are uniform, whatever columns depend on, so that no column's own law changes. Scores (normal quantiles of
places) come from common factors; a share of the inputs is popular: all its places lie below ceilings. The other inputs
have what these left over. Numbers: data/criteo_like_dependence.json, made by tools/fits/criteo_dependence.py.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

from shardbench.base.arrays import Floats, Floats32, Ints

FITTED = Path(__file__).parents[1] / "data" / "criteo_like_dependence.json"
FEATURES = 26
ABSENCE = FEATURES
"""Number of the score that says whether the columns of ABSENT_TOGETHER have a value; columns' scores are 0..25."""
ABSENT_TOGETHER = (18, 19, 24, 25)
_QUADRATURE = 1 << 16
SAME_PLACE = {11: 2, 15: 2, 20: 2}
"""Columns that have the very place of another: their heads' counts are the same, value by value."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dependence:
    """Scores' ``loadings`` float64 [27, factors]; popular kinds' ``shares`` [kinds] and ``ceilings`` [27, kinds].

    Squares of a score's loadings add up to at most 1. Kinds are sorted by their ceilings, lowest first, and no column
    gives its popular inputs more than it has: sum over kinds above a place of share / ceiling is at most 1.
    """

    loadings: Floats
    shares: Floats
    ceilings: Floats

    @property
    def factors(self) -> int:
        """Return the number of common factors."""
        return int(self.loadings.shape[1])

    @cached_property
    def own(self) -> Floats:
        """Return the standard deviation of what a score shares with no other, float64 [27]."""
        return np.asarray(np.sqrt(np.maximum(0.0, 1.0 - (self.loadings**2).sum(axis=1))))

    @cached_property
    def _rest(self) -> tuple[Floats, Floats]:
        """Return quantile functions of inputs that are not popular, as knots: shares and places, [27, kinds + 2]."""
        knots = np.hstack([np.zeros((len(self.ceilings), 1)), self.ceilings, np.ones((len(self.ceilings), 1))])
        popular_density = np.cumsum((self.shares / self.ceilings)[:, ::-1], axis=1)[:, ::-1]
        density = np.hstack([1.0 - popular_density, np.ones((len(knots), 1))])
        if density.min() < 0.0:
            raise ValueError("popular inputs take more of a column's first places than it has")
        ends = np.cumsum(density * np.diff(knots, axis=1), axis=1)
        return np.hstack([np.zeros((len(knots), 1)), ends / ends[:, -1:]]), knots

    def kinds(self, uniform: Floats) -> Ints:
        """Return the kind of each input, int64 [n], from uniform draws [n]: 0 is not popular."""
        ends = np.cumsum(np.concatenate([[1.0 - self.shares.sum()], self.shares]))
        return np.minimum(np.searchsorted(ends, uniform, side="right"), len(self.shares)).astype(np.int64)

    def places(self, score: int, factors: Floats32, kinds: Ints, noise: Floats) -> Floats:
        """Return the places float64 [n] of a score from common factors [n, factors], kinds [n] and its own normals [n].

        Uniform on [0, 1) over inputs of all kinds.
        """
        all_places = ndtr(factors @ self.loadings[score] + self.own[score] * noise)
        shares, knots = self._rest
        popular = kinds > 0
        places = np.interp(all_places, shares[score], knots[score])
        places[popular] = all_places[popular] * self.ceilings[score][kinds[popular] - 1]
        return np.asarray(np.minimum(places, np.nextafter(1.0, 0.0)))

    def places_where_present(self, score: int, missing: float) -> tuple[Floats, Floats]:
        """Return the knots of a map of places that makes them uniform over inputs whose ABSENCE lies above ``missing``.

        A column that depends on its own absence has other places where it is present than it has everywhere.
        """
        own_kinds = np.concatenate([[1.0 - self.shares.sum()], self.shares])
        knots = np.unique(np.concatenate([[0.0, 1.0], ndtr(np.linspace(-6.0, 6.0, 2049)), self.ceilings[score]]))
        together = float(self.loadings[score] @ self.loadings[ABSENCE])
        middles = (np.arange(_QUADRATURE) + 0.5) / _QUADRATURE
        present = np.zeros(len(knots))
        for kind, share in enumerate(own_kinds):
            limit = ndtri(self._shares_below(ABSENCE, kind, np.array([missing])))
            above = ndtr((together * ndtri(middles) - limit) / np.sqrt(1.0 - together**2)) / _QUADRATURE
            ends = np.concatenate([[0.0], np.cumsum(above)])
            below = self._shares_below(score, kind, knots)
            present += share * np.interp(below, np.linspace(0.0, 1.0, _QUADRATURE + 1), ends)
        return knots, present / present[-1]

    def _shares_below(self, score: int, kind: int, places: Floats) -> Floats:
        """Share of a kind's inputs whose place lies below ``places``, as they are."""
        if kind:
            return np.asarray(np.minimum(places / self.ceilings[score, kind - 1], 1.0))
        shares, knots = self._rest
        return np.asarray(np.interp(places, knots[score], shares[score]))

    def scaled(self, scale: float) -> "Dependence":
        """Return this dependence with correlations of scores and shares of popular inputs times ``scale``, 0..1."""
        return replace(self, loadings=self.loadings * np.sqrt(scale), shares=self.shares * scale)


@lru_cache(maxsize=1)
def fitted_dependence() -> Dependence:
    """Return the fitted dependence of the 26 columns."""
    data = json.loads(FITTED.read_text(encoding="ascii"))
    return Dependence(
        loadings=np.array(data["loadings"], dtype=np.float64),
        shares=np.array(data["popular_shares"], dtype=np.float64),
        ceilings=np.array(data["popular_ceilings"], dtype=np.float64),
    )
