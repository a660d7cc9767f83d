"""A study of a region: a claim's numbers over all knobs at once that no source fixes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats
from shardbench.records.cell import Cell, Row, Scalar
from shardbench.studies.regions.surface import fit_surface
from shardbench.studies.study import Study

REGION = "region"
QUICK_POINTS = 4
FEWEST_POINTS = 64
_FEWEST_FITTED = 16
"""Points with a number below which no surface is fitted."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One thing that no source fixes, and the range over which it may lie."""

    name: str
    reason: str
    """Where the range comes from; stated before the run."""
    low: float = 0.0
    high: float = 1.0
    scale: Literal["linear", "log", "integer", "choice"] = "linear"
    """``log``: even in the logarithm; ``integer``: even over whole numbers, ends included; ``choice``: of values."""
    values: tuple[str | int | float, ...] = ()
    """The values of a choice, in an order that means something."""

    def __post_init__(self) -> None:
        """Raises ValueError for a range that is none."""
        if (self.scale == "choice") != bool(self.values):
            raise ValueError(f"knob {self.name}: 'values' belong to a choice, and only to it")
        if self.scale != "choice" and not self.low < self.high:
            raise ValueError(f"knob {self.name}: low must be less than high")
        if self.scale == "log" and self.low <= 0.0:
            raise ValueError(f"knob {self.name}: a logarithmic range begins above 0")

    def at(self, share: float) -> str | int | float:
        """Give the value at a share in [0, 1) of the range; six significant digits."""
        if self.scale == "choice":
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.scale == "integer":
            # A share next to 1 may be rounded up to it.
            return min(int(self.low + share * (self.high + 1.0 - self.low)), int(self.high))
        if self.scale == "log":
            return float(f"{self.low * (self.high / self.low) ** share:.6g}")
        return float(f"{self.low + share * (self.high - self.low):.6g}")

    def share(self, value: Scalar) -> float:
        """Tell where a value lies in the range, in [0, 1]."""
        if self.scale == "choice":
            return (self.values.index(value) + 0.5) / len(self.values)
        number = float(value)  # type: ignore[arg-type]
        if self.scale == "integer":
            return (number + 0.5 - self.low) / (self.high + 1.0 - self.low)
        if self.scale == "log":
            return float(np.log(number / self.low) / np.log(self.high / self.low))
        return (number - self.low) / (self.high - self.low)


def region_study(
    *,
    title: str,
    knobs: Sequence[Knob],
    outcomes: Sequence[str],
    measure: Callable[..., Row],
    uses: Sequence[str] = (),
    columns: Sequence[str] = (),
    points: int = FEWEST_POINTS,
) -> Study:
    """Make a study of points of a Sobol sequence over some knobs, each measured once.

    ``measure(folder, point=number, **knobs)`` returns ``outcomes``, ratios theirs over ours (positive, or None at a
    point that has none), and other columns. Tables are of the points, and of every outcome and knob, the most deciding
    first.
    """

    def cells(quick: bool) -> list[Cell]:
        shares = design(len(knobs), points)[: QUICK_POINTS if quick else None]
        return [
            {"point": number, **{knob.name: knob.at(share) for knob, share in zip(knobs, row)}}
            for number, row in enumerate(shares.tolist())
        ]

    return Study(
        name=REGION, title=title, uses=uses, columns=columns, cells=cells, judge=measure,
        summary=lambda rows: {REGION: rows, f"{REGION}_knobs": knob_table(knobs, outcomes, rows)},
    )  # fmt: skip


def design(knobs: int, points: int) -> Floats:
    """Design points, [points, knobs] in (0, 1): the Sobol sequence as it is, each coordinate at the middle of its step.

    The same by every version of the libraries, since nothing is drawn. ValueError where ``points`` is no power of two.
    """
    from scipy.stats import qmc  # noqa: PLC0415 - takes a second to import, and every page imports all studies

    levels = int(np.log2(points))
    if 2**levels != points:
        raise ValueError(f"a Sobol design has a power of two of points, not {points}")
    sequence = qmc.Sobol(d=knobs, scramble=False).random_base2(levels)
    return np.asarray(sequence + 0.5 / points)


def knob_table(knobs: Sequence[Knob], outcomes: Sequence[str], rows: pd.DataFrame) -> pd.DataFrame:
    """Estimate first-order and total effects of each knob on the logarithm of each outcome, by a response surface.

    Spearman's correlation with the outcome says which way a knob points, whatever the surface is worth.
    """
    lines = []
    shares = np.array([[knob.share(value) for value in rows[knob.name]] for knob in knobs]).T
    for outcome in outcomes:
        ratios = pd.to_numeric(rows[outcome]).to_numpy(dtype=np.float64)
        has_ratio = np.isfinite(ratios) & (ratios > 0.0)
        if has_ratio.sum() < _FEWEST_FITTED:
            continue
        surface = fit_surface(shares[has_ratio], np.log(ratios[has_ratio]))
        ranks = [_rank_correlation(column, ratios[has_ratio]) for column in shares[has_ratio].T]
        effects = zip(knobs, surface.first_order().tolist(), surface.total().tolist(), ranks)
        for knob, first, total, rank in sorted(effects, key=lambda effect: (-effect[2], -abs(effect[3]))):
            lines.append(
                {
                    "outcome": outcome, "knob": knob.name, "first_order": first, "total": total, "q2": surface.q2,
                    "rank_correlation": rank, "points": int(has_ratio.sum()), "low": knob.at(0.0),
                    "high": knob.at(np.nextafter(1.0, 0.0)),
                    "scale": knob.scale, "reason": knob.reason,
                }
            )  # fmt: skip
    columns = (
        "outcome", "knob", "first_order", "total", "q2", "rank_correlation", "points", "low", "high", "scale", "reason",
    )  # fmt: skip
    return pd.DataFrame(lines, columns=list(columns))


def _rank_correlation(knob: Floats, outcome: Floats) -> float:
    """Compute Spearman's correlation; it is 0 where either does not vary."""
    from scipy.stats import spearmanr  # noqa: PLC0415 - as in design

    if np.ptp(knob) == 0.0 or np.ptp(outcome) == 0.0:
        return 0.0
    return float(spearmanr(knob, outcome).statistic)
