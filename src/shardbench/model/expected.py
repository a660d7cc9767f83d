"""Profiles as new batches are expected to be: rows that the sample never saw take their share of the lookups.

Good and Turing expect of the next lookup that it meets a row never seen with the share of the sample's lookups that met
a row seen once (``AccessProfile.unseen_share``). These lookups are spread over all rows never seen, and each row seen
gives up the same part of a count (absolute discounting): hot rows lose next to nothing, rows seen once most. Where
every row was seen once, all is given up, as it should be.
"""

from dataclasses import replace

from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile

FINE = 16
"""Counts are whole numbers: they are multiplied so that a row never seen gets at least so many."""


def as_expected(problem: Problem) -> Problem:
    """Return the same problem with expected profiles."""
    return replace(problem, profiles=tuple(expected(profile) for profile in problem.profiles))


def expected(profile: AccessProfile) -> AccessProfile:
    """Return the profile with lookups of rows never seen; the profile itself where the sample tells of none."""
    never = profile.rows - profile.seen_rows
    unseen = profile.unseen_share * profile.lookups
    if unseen == 0.0:
        return profile
    discount = unseen / profile.seen_rows
    rates = [(count - discount, number) for count, number in zip(profile.counts, profile.row_counts)]
    each, rows = unseen / never, never
    # Rows never seen are no hotter than those seen least: these are all alike, then.
    while rates and each > rates[-1][0]:
        rate, number = rates.pop()
        each, rows = (each * rows + rate * number) / (rows + number), rows + number
    times = max(int(FINE / each) + 1, FINE)
    counts: dict[int, int] = {}
    for rate, number in [*rates, (each, rows)]:
        counts[round(times * rate)] = counts.get(round(times * rate), 0) + number
    return replace(
        profile,
        samples=profile.samples * times,
        present=profile.present * times,
        counts=tuple(counts),
        row_counts=tuple(counts.values()),
    )
