"""The ranked table of a page: every strategy once, measured beside simulated, with what the page's script filters.

The share of problems on which a strategy's step is within 5 % of the best is a problem's mean over the draws of the
model where its rows state them; measured, and of older tables, it counts problems. Families weigh alike.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from shardbench.report.compare.same_numbers import SAME
from shardbench.report.page.palette import strategy_look
from shardbench.report.standing import Standing, by_strategy, is_measured
from shardbench.report.tables.text import significant

NEAR_PCT = 5.0
"""A step that is at most so far over the best counts as near it."""
LARGEST_S = 60.0
"""Seconds of planning at which a bar is full."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """How often a strategy is near the best, of how many problems."""

    value: float
    finished: int
    problems: int

    @property
    def text(self) -> str:
        """Say it as a cell."""
        return f"{100.0 * self.value:.0f} %"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A line of the table."""

    number: int
    """The strategy's on the page."""
    name: str
    look: str
    rank: int | None
    """The place among those that compete; None of what does not, or was not asked, and measured, as noise makes it."""
    reference: bool
    """Whether it does not compete."""
    shares: Mapping[str, Share | None]
    """The shares by backend, in the order of the columns; None where it has no rows."""
    seconds: float | None

    @property
    def seconds_text(self) -> str:
        """Say the seconds of learning and planning as a cell."""
        return "" if self.seconds is None else significant(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The table, as it stands without a script, and the data by which a script makes it anew."""

    backends: tuple[str, ...]
    budgets: tuple[str, ...]
    """The budgets of simulated rows, the longest first; one where there is no choice."""
    devices: tuple[int, ...]
    memories: tuple[str, ...]
    rows: tuple[Ranked, ...]
    data: str
    """JSON: the problems, the strategies, and a line a row."""


def ranking(standings: Sequence[Standing], numbers: Mapping[str, int]) -> Ranking | None:
    """Return the ranked table of all standings; None where nothing ended well."""
    if not any(one.ok for one in standings):
        return None
    backends = tuple(sorted({one.backend for one in standings}, key=is_measured))
    budgets = tuple(sorted({one.budget for one in standings if one.backend == backends[0]}, key=longest_first))
    of_budget = [one for one in standings if is_measured(one.backend) or one.budget == budgets[0]]
    competing = {one.strategy for one in standings if one.competes}
    rows = [
        replace(_row(name, own, backends, numbers[name]), reference=name not in competing)
        for name, own in by_strategy(of_budget).items()
    ]
    return Ranking(
        backends=backends,
        budgets=budgets,
        devices=tuple(sorted({int(one.devices) for one in standings if one.devices})),
        memories=tuple(sorted({one.memory for one in standings if one.memory})),
        rows=tuple(_in_order(rows, backends[0])),
        data=_data(standings, numbers, competing),
    )


def near(one: Standing) -> float | None:
    """Return the share of draws in which a standing is near the best; None where it did not end well."""
    if not one.ok or one.over_best_pct is None:
        return None
    if one.p_near is not None:
        return one.p_near
    return float(one.over_best_pct <= NEAR_PCT * (1.0 + SAME))


def longest_first(budget: str) -> tuple[float, str]:
    """Order budgets by their seconds, the longest first, then those that state none."""
    word = budget.partition(" ")[0]
    return (-float(word) if word.replace(".", "", 1).isdigit() else 0.0, budget)


def _row(name: str, own: Sequence[Standing], backends: Sequence[str], number: int) -> Ranked:
    seconds = [(one.plan_s or 0.0) + (one.fit_s or 0.0) for one in own if one.ok and one.backend == backends[0]]
    return Ranked(
        number=number,
        name=name,
        look=f"mark {strategy_look(name)}",
        rank=None,
        reference=False,
        shares={backend: _share([one for one in own if one.backend == backend]) for backend in backends},
        seconds=median(seconds) if seconds else None,
    )


def _share(own: Sequence[Standing]) -> Share | None:
    if not own:
        return None
    families: dict[str, list[float]] = {}
    for one in own:
        families.setdefault(one.family, []).append(near(one) or 0.0)
    value = sum(sum(each) / len(each) for each in families.values()) / len(families)
    return Share(value=value, finished=sum(one.ok for one in own), problems=len(own))


def _in_order(rows: Iterable[Ranked], backend: str) -> list[Ranked]:
    """Put rows in order of the first column; those that compete have ranks where simulated, and equals share theirs."""

    def value(row: Ranked) -> float:
        share = row.shares[backend]
        return -1.0 if share is None else share.value

    ordered = sorted(rows, key=lambda row: (-value(row), row.name))
    competitors = [row for row in ordered if not row.reference and row.shares[backend] is not None]
    ranks = {row.name: 1 + sum(value(other) > value(row) + SAME for other in competitors) for row in competitors}
    return [replace(row, rank=None if is_measured(backend) else ranks.get(row.name)) for row in ordered]


def _data(standings: Sequence[Standing], numbers: Mapping[str, int], competing: set[str]) -> str:
    problems: dict[tuple[str, ...], int] = {}
    problem_rows: list[dict[str, Any]] = []
    rows = []
    for one in standings:
        key = (*one.problem, one.budget)
        if key not in problems:
            problems[key] = len(problem_rows)
            problem_rows.append(
                {
                    "backend": one.backend, "budget": one.budget, "devices": int(one.devices or 0),
                    "memory": one.memory, "family": one.family,
                }
            )  # fmt: skip
        share = near(one)
        search_s = round((one.plan_s or 0.0) + (one.fit_s or 0.0), 6)
        rows.append([numbers[one.strategy], problems[key], None if share is None else round(share, 6), search_s])
    names = {str(numbers[name]): name in competing for name in {one.strategy for one in standings}}
    text = json.dumps({"problems": problem_rows, "rows": rows, "competing": names}, separators=(",", ":"))
    # It stands in a script element: no text may end that.
    return text.replace("<", "\\u003c")
