"""Scores over many problems: shares by hand, ranks, ties, families, medians where some failed."""

import pytest

from shardbench.report.ranking import Score, scores
from shardbench.report.standing import Standing, TieMark, memory_of


def one(strategy: str, over: float | None, workload: str = "w", **changes: object) -> Standing:
    facts: dict[str, object] = {
        "workload": workload, "machine": "m", "backend": "simulated", "strategy": strategy, "role": "competitor",
        "outcome": "ok" if over is not None else "timeout", "over_best_pct": over, "plan_s": 2.0, "fit_s": 1.0,
        "mark": TieMark.APART, "devices": 8.0, "step_ms": 1.0,
    }  # fmt: skip
    return Standing(**{**facts, **changes})


def made(*listed: Standing) -> list[Score]:
    return next(iter(scores(listed).values()))


def test_shares_are_expectations_where_rows_state_draws_and_counts_where_not() -> None:
    rows = made(
        one("a", 0.0, p_near=0.9), one("b", 4.0, p_near=0.4), one("c", None),
        one("a", 0.0, "x"), one("b", 5.0, "x"), one("c", 5.1, "x"),
    )  # fmt: skip
    assert [(row.strategy, row.near, len(row.ratios), row.problems) for row in rows] == [
        ("a", 0.95, 2, 2), ("b", 0.7, 2, 2), ("c", 0.0, 1, 2),
    ]  # fmt: skip
    assert [row.seconds for row in rows] == [3.0, 3.0, 3.0]


def test_families_weigh_alike() -> None:
    listed = [one("a", 0.0, f"w{i}", family="many") for i in range(3)] + [one("a", 50.0, "x", family="one")]
    (row,) = made(*listed)
    assert row.near == 0.5


def test_what_does_not_compete_says_so() -> None:
    rows = made(one("a", 0.0), one("b", 0.0), one("c", 9.0), one("search", 0.0, role="search"))
    assert [row.name for row in rows] == ["a", "b", "search (reference)", "c"]


def test_a_problem_that_was_not_ended_is_behind_all_in_the_median_and_leaves_no_mean() -> None:
    over = {"first": (0.0, 10.0, 0.0, 0.0), "second": (50.0, 0.0, 100.0, 900.0), "last": (300.0, None, None, 20.0)}
    rows = {
        row.strategy: row
        for row in made(*(one(name, value, f"w{i}") for name, values in over.items() for i, value in enumerate(values)))
    }
    assert {name: row.median for name, row in rows.items()} == {"first": 1.0, "second": 1.75, "last": None}
    assert rows["second"].mean == pytest.approx((1.5 * 2.0 * 10.0) ** 0.25)
    assert rows["last"].mean is None
    assert {name: row.ratios[-1] for name, row in rows.items()} == pytest.approx(
        {"first": 1.1, "second": 10.0, "last": 4.0}
    )


def test_who_was_not_asked_a_problem_did_not_end_it() -> None:
    rows = {row.strategy: row for row in made(one("a", 0.0), one("a", 9.0, "x"), one("b", 0.0))}
    assert (rows["b"].near, rows["b"].problems, rows["b"].median) == (0.5, 2, None)


def test_ties_and_the_best_are_counted() -> None:
    marks = (TieMark.BEST, TieMark.SAME, TieMark.OPEN, TieMark.UNKNOWN, TieMark.APART)
    (row,) = made(*(one("a", 0.0, f"w{i}", mark=mark) for i, mark in enumerate(marks)))
    assert row.tied == 3


def test_simulated_and_the_longest_budget_come_first() -> None:
    found = scores([
        one("a", 0.0, budget="1 s"), one("a", 9.0, budget="60 s"), one("b", 0.0, backend="measured", machine="n"),
    ])  # fmt: skip
    assert list(found) == [("simulated", "60 s"), ("simulated", "1 s"), ("measured", "as run")]


@pytest.mark.parametrize(("fills", "word"), [(None, ""), (0.2, "ample"), (0.85, "tight"), (1.5, "short")])
def test_memory_is_ample_tight_or_short(fills: float | None, word: str) -> None:
    assert memory_of(fills) == word
