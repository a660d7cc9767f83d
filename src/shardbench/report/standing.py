"""How a strategy stands to the best of its group, by the cells of the throughput table: ahead, tied, or open."""

from enum import StrEnum
from typing import Any

import pandas as pd

from shardbench.cost.uncertainty import SURE
from shardbench.model.strategy import Role
from shardbench.records.trial import Backend

Cells = dict[str, Any]


class Standing(StrEnum):
    """By the mark that tables print."""

    BEST = "best"
    SAME = "="
    """Measured: the difference is below the noise floor. Simulated: there is none."""
    OPEN = "~"
    """The model's own error leaves open which is faster."""
    UNKNOWN = "?"
    """Nothing was repeated, or the records have no draws: it is not known whether the difference is one."""
    APART = ""
    """Slower (or, of a reference, faster) beyond the noise or the model's error."""


def standing(row: Cells) -> Standing | None:
    """Of a row of the throughput table; None where it is not ok, or no competitor of its group is."""
    value = number(row, "vs_best_pct")
    if value is None:
        return None
    if pd.isna(row["same_as_best"]):
        return Standing.UNKNOWN
    if value == 0 and row["role"] == Role.COMPETITOR:
        return Standing.BEST
    if row["same_as_best"]:
        return Standing.SAME
    if row["backend"] == Backend.SIMULATED:
        return certainty(row, "vs_best_pct", "p_slower_than_best")
    return Standing.APART


def certainty(row: Cells, difference: str, key: str) -> Standing:
    """Of a simulated difference, by the share of draws (``key``) that have its sign."""
    share = number(row, key)
    if share is None:
        return Standing.UNKNOWN
    return Standing.APART if share_of_sign(row, difference, share) >= SURE else Standing.OPEN


def share_of_sign(row: Cells, difference: str, slower: float) -> float:
    """Share of draws that have the difference's sign, where that share of them is slower."""
    return slower if (number(row, difference) or 0.0) > 0 else 1.0 - slower


def number(row: Cells, key: str) -> float | None:
    """A cell's number; None where it is empty or there is no such column."""
    value = row.get(key)
    return None if value is None or pd.isna(value) else float(value)
