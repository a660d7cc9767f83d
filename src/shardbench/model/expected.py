"""Profiles as new batches are expected to be: rows that the sample never saw take their share of the lookups.

Good and Turing expect of the next lookup that it meets a row never seen with the share of the sample's lookups that met
a row seen once (``AccessProfile.unseen_share``). These lookups are spread over all rows never seen, and each row seen
gives up the same part of a count (absolute discounting): hot rows lose next to nothing, rows seen once most. Where
every row was seen once, all is given up, as it should be.

Where lookups come in clusters, a row may have been seen often in one of them, and then gives up as much as one that was
seen once. There, rows of each class of counts get what was measured of them (``AccessProfile.held_out``),
and so many lookups count as drawn one by one that a block has as many distinct rows as was measured
(``AccessProfile.drawn_share``).
"""

from dataclasses import replace

import numpy as np

from shardbench.model.problem import Problem
from shardbench.model.profile import BLOCKS, AccessProfile, count_classes

FINE = 16
"""Counts are whole numbers: they are multiplied so that a row never seen gets at least so many."""
HALVINGS = 40
"""Steps by which a share is found."""


def as_expected(problem: Problem) -> Problem:
    """Return the same problem with expected profiles."""
    return replace(problem, profiles=tuple(expected(profile) for profile in problem.profiles))


def expected(profile: AccessProfile) -> AccessProfile:
    """Return the profile with lookups of rows never seen; the profile itself where the sample tells of none."""
    if profile.unseen_share == 0.0 and profile.held_out is None:
        return profile
    pooled: list[tuple[float, int]] = []
    for rate, rows in _rates(profile):
        # Rows seen less are no hotter than those seen more: these are all alike, then.
        each, number = rate, rows
        while pooled and each > pooled[-1][0]:
            hotter, more = pooled.pop()
            each, number = (each * number + hotter * more) / (number + more), number + more
        pooled.append((each, number))
    times = max(int(FINE / min(rate for rate, _ in pooled if rate > 0.0)) + 1, FINE)
    counts: dict[int, int] = {}
    for rate, number in pooled:
        if rate > 0.0:
            counts[round(times * rate)] = counts.get(round(times * rate), 0) + number
    drawn = replace(
        profile,
        samples=profile.samples * times,
        present=profile.present * times,
        counts=tuple(counts),
        row_counts=tuple(counts.values()),
        held_out=None,
    )
    if profile.held_out is None:
        return drawn
    return replace(drawn, drawn_share=_drawn_share(drawn, profile.lookups / BLOCKS, profile.held_out.block_rows))


def _drawn_share(profile: AccessProfile, lookups: float, distinct: float) -> float:
    """Return the share of ``lookups`` that have so many distinct rows if they are drawn one by one."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if profile.expected_distinct(middle * lookups) >= distinct else (middle, high)
    return high


def _rates(profile: AccessProfile) -> list[tuple[float, int]]:
    """Return how often new lookups, as many as the sample's, meet a row, and how many rows: hottest first."""
    never, unseen = profile.rows - profile.seen_rows, profile.unseen_share * profile.lookups
    counts, row_counts = np.array(profile.counts, dtype=np.float64), profile.row_counts
    if profile.held_out is None:
        rates = counts - unseen / profile.seen_rows
    else:
        classes = count_classes(counts)
        counted = np.bincount(classes, weights=counts * row_counts, minlength=len(profile.held_out.shares))
        rates = counts * profile.lookups * np.take(profile.held_out.shares, classes) / counted[classes]
    return [*zip(rates.tolist(), row_counts), *([(unseen / never, never)] if never else [])]
