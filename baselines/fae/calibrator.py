"""FAE's calibrator: which rows are hot, so that all of them fit the budget of a device.

One threshold serves all tables: a row is hot where it was looked up at least so often per logged
input. Tables of at most ``SMALL_TABLE_BYTES`` are wholly hot. The threshold is the lowest whose
hot rows fit, and a row that was never seen is never hot in a large table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.model.profile import AccessProfile

BUDGET_BYTES = 256 * 2**20
"""The budget L in the public code by default."""
SMALL_TABLE_BYTES = 10**6  # deviation 1


@dataclass(frozen=True, kw_only=True)
class HotChoice:
    """Hot rows of every table: the hottest ``rows[i]`` of table i, ``bytes`` in all.

    ``least_count`` is the fewest lookups that a hot row of a large table has in the log, 0 where
    no large table has a hot row.
    """

    rows: tuple[int, ...]
    bytes: int
    least_count: int


def calibrate(
    profiles: Sequence[AccessProfile], row_bytes: Sequence[int], budget_bytes: int, *, fill: bool = False
) -> HotChoice:
    """Choose hot rows under ``budget_bytes`` from profiles; ``row_bytes[i]`` is a row of table i, state included.

    With ``fill``, rows that were never seen take what room is left, table by table (deviation 14).
    Exact, as a profile holds how many rows have each count (deviation 2). Raises BadInput for a
    budget that holds not one row.
    """
    if not profiles or len(row_bytes) != len(profiles):
        raise BadInput(f"give at least one table and a row size for each, got {len(profiles)} and {len(row_bytes)}")
    if budget_bytes < min(row_bytes):
        raise BadInput(f"a budget of {budget_bytes} bytes holds no row of {min(row_bytes)} bytes: raise it")
    # Small tables are wholly hot, or none is where all of them exceed the budget: deviation 1.
    rows = [p.rows if p.rows * size <= SMALL_TABLE_BYTES else 0 for p, size in zip(profiles, row_bytes)]
    used_bytes = sum(n * size for n, size in zip(rows, row_bytes))
    if used_bytes > budget_bytes:
        rows, used_bytes = [0] * len(rows), 0
    large = [i for i, hot in enumerate(rows) if not hot]
    least = _least_count([profiles[i] for i in large], [row_bytes[i] for i in large], budget_bytes - used_bytes)
    for i in large:
        counts = np.asarray(profiles[i].counts)
        rows[i] = int(sum(profiles[i].row_counts[: int(np.count_nonzero(counts >= least))])) if least else 0
    if fill and least <= 1:
        free_bytes = budget_bytes - sum(n * size for n, size in zip(rows, row_bytes))
        for i in large:  # deviation 14
            more = min(profiles[i].rows - rows[i], free_bytes // row_bytes[i])
            rows[i], free_bytes = rows[i] + more, free_bytes - more * row_bytes[i]
    return HotChoice(
        rows=tuple(rows),
        bytes=sum(n * size for n, size in zip(rows, row_bytes)),
        least_count=least,
    )


def _least_count(profiles: Sequence[AccessProfile], row_bytes: Sequence[int], budget_bytes: int) -> int:
    """Return the lowest count whose rows, over all tables, fit the budget; 0 where even the highest do not."""
    counts = np.array([count for p in profiles for count in p.counts], dtype=np.int64)
    sizes = np.array([rows * size for p, size in zip(profiles, row_bytes) for rows in p.row_counts], dtype=np.int64)
    if not len(counts):
        return 0
    order = np.argsort(-counts, kind="stable")
    counts, ends = counts[order], np.cumsum(sizes[order])
    # All rows of one count are hot or none is.
    last = np.append(counts[1:] != counts[:-1], True)
    fitting = counts[last & (ends <= budget_bytes)]
    return int(fitting[-1]) if len(fitting) else 0


def expected_hot_share(profiles: Sequence[AccessProfile], choice: HotChoice) -> float:
    """Return the share of new inputs whose lookups are all hot, 0..1, from profiles as if independent (deviation 3).

    A table's present bags are taken to have their mean length. Rows are chosen by the very lookups
    that would judge them, so each lookup is judged by the log without it (see ``hot_access_share``).
    """
    log_share = 0.0
    for profile, hot in zip(profiles, choice.rows):
        if not profile.present:
            continue
        length = profile.lookups / profile.present
        share = 1.0 - profile.coverage * (1.0 - hot_access_share(profile, hot, choice.least_count) ** length)
        if share <= 0.0:
            return 0.0
        log_share += math.log(share)
    return math.exp(log_share)


def hot_access_share(profile: AccessProfile, hot: int, least_count: int) -> float:
    """Return the share of new lookups that go to the hottest ``hot`` rows, 0..1, leaving one out.

    It is the share of logged lookups whose row would still have ``least_count`` if they had not been
    logged; with ``least_count`` 1 that is Good and Turing's estimate.
    """
    if hot == profile.rows or not profile.lookups:
        return 1.0
    if not hot:
        return 0.0
    counts = np.asarray(profile.counts, dtype=np.float64)
    lookups = counts * np.asarray(profile.row_counts, dtype=np.float64)
    return float(lookups[counts > least_count].sum() / lookups.sum())
