"""Restates Criteo Kaggle's measured counts as laws over ranks and writes their parameters.

    PYTHONPATH=tools python -m fits.criteo_like

Per feature: values seen at least ``HEAD_COUNT`` times keep their measured share (the head);
all rarer values and the rows never seen share what is left, M, as a bounded power law
p(r) ~ (r - H + shift)^-exponent over ranks H..cardinality-1. Its two numbers are solved for
(1) continuity, the first tail rank has the probability of the last head rank, and (2) the
measured number of distinct tail values in as many draws as were measured, in expectation.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from fits.reuse import rank_edges
from scipy.optimize import brentq

from shardbench.base.atomic import whole_file
from shardbench.datasets.laws.power_law import PowerLaw

HERE = Path(__file__).parents[2] / "datasets" / "data"
SOURCE = HERE / "criteo_kaggle_rank_frequency.json.gz"
TARGET = HERE / "criteo_like_parameters.json.gz"
HEAD_COUNT = 8
"""Counts from here on are taken as measured (relative error of a count of 8: about 35 %)."""
UNSEEN_MASS = 0.5
"""Lookups that a feature's unseen rows share where every value seen is in the head (half a count)."""
_EXPONENTS = (0.0, 24.0)
_SHIFTS = (1e-3, 1e12)


def expected_distinct(law: PowerLaw, draws: float) -> float:
    """Return the expected distinct ranks among ``draws`` Poisson draws of ``law``."""
    edges = rank_edges(np.array([float(law.rows)]), 256)[0]
    width = np.diff(edges)
    mass = np.diff(law.cdf(edges))[width > 0]
    width = width[width > 0]
    return float(width @ -np.expm1(-draws * mass / width))


def tail_law(rows: int, mass: float, first: float, draws: float, distinct: int) -> PowerLaw:
    """Find the law of ``rows`` ranks that holds ``mass``, starts at probability ``first`` and meets ``distinct``."""

    def continuous(exponent: float) -> PowerLaw:
        def gap(log_shift: float) -> float:
            law = PowerLaw(rows=rows, exponent=exponent, shift=float(np.exp(log_shift)))
            return float(law.cdf(np.array([1.0]))[0]) * mass - first

        low, high = np.log(_SHIFTS[0]), np.log(_SHIFTS[1])
        if gap(low) <= 0:
            return PowerLaw(rows=rows, exponent=exponent, shift=_SHIFTS[0])
        if gap(high) >= 0:
            return PowerLaw(rows=rows, exponent=exponent, shift=_SHIFTS[1])
        return PowerLaw(rows=rows, exponent=exponent, shift=float(np.exp(brentq(gap, low, high, xtol=1e-9))))

    def surplus(exponent: float) -> float:
        return expected_distinct(continuous(exponent), draws * mass) - distinct

    grid = np.linspace(*_EXPONENTS, 121)
    values = np.array([surplus(e) for e in grid])
    turns = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
    if len(turns) == 0:
        return continuous(float(grid[np.argmin(np.abs(values))]))
    return continuous(float(brentq(surplus, grid[turns[-1]], grid[turns[-1] + 1], xtol=1e-9)))


def feature(measurement: dict[str, Any]) -> dict[str, Any]:
    """Return the head counts, tail law and missing share of one feature, as plain data."""
    counts = np.array(measurement["counts_desc"], dtype=np.int64)
    draws, cardinality = int(counts.sum()), int(measurement["kaggle_cardinality"])
    head = counts[counts >= HEAD_COUNT] if cardinality > len(counts) else counts
    rest = float(counts[len(head) :].sum()) or UNSEEN_MASS
    values, runs = np.unique(head, return_counts=True)
    data: dict[str, Any] = {
        "cardinality": cardinality,
        "missing": int(measurement["missing"]),
        "distinct": len(counts),
        "head_counts": values[::-1].tolist(),
        "head_rows": runs[::-1].tolist(),
    }
    if cardinality > len(head):
        total = float(head.sum()) + rest
        # A tail that cannot reach the head's level is as steep at its start as its mass allows.
        first = head[-1] / total if len(head) else 1.0
        law = tail_law(cardinality - len(head), rest / total, first, draws, max(len(counts) - len(head), 1))
        data |= {"tail_lookups": rest, "tail_exponent": round(law.exponent, 6), "tail_shift": round(law.shift, 6)}
    return data


def main() -> None:
    """Fit all 26 features and write data/criteo_like_parameters.json.gz."""
    source = json.loads(gzip.decompress(SOURCE.read_bytes()))
    data = {
        "source": source["source"] + "; PYTHONPATH=tools python -m fits.criteo_like",
        "rows": source["rows"],
        "head_count": HEAD_COUNT,
        "fields": {name: feature(measurement) for name, measurement in source["fields"].items()},
    }
    with whole_file(TARGET) as file:
        file.write(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0))
    sys.stdout.write(f"{len(data['fields'])} features\n")


if __name__ == "__main__":
    main()
