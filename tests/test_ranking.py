"""The ranked table of pages: shares by hand, ranks, ties, families, and the data that the script filters."""

import json

import pytest

from shardbench.report.page.ranking import Ranking, ranking
from shardbench.report.standing import Standing, TieMark, memory_of


def one(strategy: str, over: float | None, workload: str = "w", **changes: object) -> Standing:
    facts: dict[str, object] = {
        "workload": workload, "machine": "m", "backend": "simulated", "strategy": strategy, "role": "competitor",
        "outcome": "ok" if over is not None else "timeout", "over_best_pct": over, "plan_s": 2.0, "fit_s": 1.0,
        "mark": TieMark.APART, "devices": 8.0,
    }  # fmt: skip
    return Standing(**{**facts, **changes})


def made(*listed: Standing) -> Ranking:
    numbers = {name: number for number, name in enumerate(sorted({each.strategy for each in listed}))}
    found = ranking(listed, numbers)
    assert found is not None
    return found


def test_shares_are_expectations_where_rows_state_draws_and_counts_where_not() -> None:
    found = made(
        one("a", 0.0, p_near=0.9), one("b", 4.0, p_near=0.4), one("c", None),
        one("a", 0.0, "x"), one("b", 5.0, "x"), one("c", 5.1, "x"),
    )  # fmt: skip
    rows = {row.name: row.shares["simulated"] for row in found.rows}
    assert {name: share and (share.value, share.finished, share.problems) for name, share in rows.items()} == {
        "a": (0.95, 2, 2), "b": (0.7, 2, 2), "c": (0.0, 1, 2),
    }  # fmt: skip
    assert [(row.rank, row.name) for row in found.rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert {row.name: row.seconds for row in found.rows} == {"a": 3.0, "b": 3.0, "c": 3.0}


def test_families_weigh_alike() -> None:
    listed = [one("a", 0.0, f"w{i}", family="many") for i in range(3)] + [one("a", 50.0, "x", family="one")]
    (row,) = made(*listed).rows
    assert row.shares["simulated"] is not None and row.shares["simulated"].value == 0.5


def test_equals_share_a_rank_and_what_does_not_compete_has_none() -> None:
    found = made(one("a", 0.0), one("b", 0.0), one("c", 9.0), one("search", 0.0, role="search"))
    assert [(row.rank, row.name, row.reference) for row in found.rows] == [
        (1, "a", False), (1, "b", False), (None, "search", True), (3, "c", False),
    ]  # fmt: skip


def test_measured_stands_beside_simulated_and_is_of_no_budget() -> None:
    found = made(
        one("a", 0.0, budget="1 s"), one("a", 9.0, budget="60 s"), one("a", 0.0, backend="measured", machine="n"),
        one("only", 3.0, backend="measured", machine="n"),
    )  # fmt: skip
    assert (found.backends, found.budgets) == (("simulated", "measured"), ("60 s", "1 s"))
    rows = {row.name: row for row in found.rows}
    assert rows["a"].shares["simulated"] is not None and rows["a"].shares["simulated"].value == 0.0
    assert rows["a"].shares["measured"] is not None and rows["a"].shares["measured"].value == 1.0
    assert rows["only"].shares["simulated"] is None and rows["only"].rank is None, "it was not asked"


def test_the_scripts_data_has_every_row_and_ends_no_script() -> None:
    found = made(one("</script>", 0.0, "w", memory="tight"), one("b", None, "w", budget="1 s"))
    assert "<" not in found.data
    data = json.loads(found.data)
    assert [(each["budget"], each["memory"], each["devices"]) for each in data["problems"]] == [
        ("as run", "tight", 8), ("1 s", "", 8),
    ]  # fmt: skip
    assert data["rows"] == [[0, 0, 1.0, 3.0], [1, 1, None, 3.0]]


def test_there_is_no_ranking_where_nothing_ended() -> None:
    assert ranking([one("a", None)], {"a": 0}) is None


@pytest.mark.parametrize(("fills", "word"), [(None, ""), (0.2, "ample"), (0.85, "tight"), (1.5, "short")])
def test_memory_is_ample_tight_or_short(fills: float | None, word: str) -> None:
    assert memory_of(fills) == word
