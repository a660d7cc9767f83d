"""Claims: what numbers of ours say beside a statement of a paper, and files that must be refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shardbench.base.errors import BadInput
from shardbench.studies.claim import Claim, NumberKind, parse_claims
from shardbench.studies.claim_text import claim_text, ledger_cells, summary
from shardbench.studies.rules import rule_row
from shardbench.studies.verdict import Finding, judge

FACTS = {
    "name": "speed",
    "kind": "statement",
    "statement": "throughput over the best baseline",
    "quote": "over 6 times",
    "sourced": True,
    "source": "the abstract",
    "definition_of": "ours",
    "definition": "baseline step over ours",
    "conditions": "simulated only",
    "relation": "at least",
    "paper": 6.0,
    "unit": "x",
    "scale": "ratio",
    "neutral": 1.0,
    "n_unit": "draw",
    "sample": True,
    "evidence": "simulated",
    "judged_by": ["suite"],
}


def claim(**changes: object) -> Claim:
    return Claim.model_validate({name: value for name, value in {**FACTS, **changes}.items() if value is not None})


ABOUT = {"relation": "about", "paper": 6.0}
NOT_WORSE = {"relation": "not worse", "paper": None, "margin": 0.001, "scale": "difference", "neutral": 0.0}
DIRECTION = {"relation": "direction", "paper": None, "quote": ""}


@pytest.mark.parametrize(
    ("changes", "numbers", "expected"),
    [
        # A sample is judged by its whole interval.
        ({}, [6.5, 7.0, 7.2, 6.9, 6.8], ("reproduced", "reproduced")),
        ({}, [6.5, 7.0, 7.2, 6.9], ("consistent", "consistent")),  # fewer than five units
        ({}, [5.0, 7.0, 7.2, 6.9, 6.8], ("reproduced", "inconclusive")),
        ({}, [2.0, 2.2, 2.1, 1.9, 2.3], ("reproduced", "not reproduced")),
        ({}, [0.5, 2.0, 1.0, 0.9, 1.4], ("inconclusive", "not reproduced")),
        ({}, [0.5, 0.6, 0.5, 0.6, 0.5], ("not reproduced", "not reproduced")),
        ({}, [9.0], ("inconclusive", "inconclusive")),  # one number does not say how far off it is
        ({}, [], ("not run", "not run")),
        # About needs the interval inside a quarter either way: more than about is not about.
        (ABOUT, [5.9, 6.0, 6.1, 6.0, 6.0], ("reproduced", "reproduced")),
        (ABOUT, [5.0, 6.0, 7.0, 8.0, 4.0], ("reproduced", "inconclusive")),
        (ABOUT, [9.0, 9.1, 9.2, 9.0, 9.1], ("reproduced", "not reproduced")),
        # Better is not worse, which is a direction: the margin is no number of a paper's.
        (NOT_WORSE, [0.01, 0.02, 0.03, 0.02, 0.02], ("reproduced", "not stated")),
        (NOT_WORSE, [-0.01] * 5, ("not reproduced", "not stated")),
        (NOT_WORSE, [-0.0005, -0.0004, -0.0006, -0.0005, -0.0005], ("reproduced", "not stated")),  # within the margin
        (NOT_WORSE | {"better": "lower"}, [-0.01, -0.02, -0.01, -0.01, -0.01], ("reproduced", "not stated")),
        (NOT_WORSE | {"better": "lower"}, [0.0005, 0.0015, 0.0, 0.0012, 0.001], ("inconclusive", "not stated")),
        # A direction has no magnitude and may point down; without a number of no effect there is none.
        (DIRECTION, [1.1, 1.2, 1.3, 1.2, 1.1], ("reproduced", "not stated")),
        (DIRECTION | {"better": "lower"}, [1.1, 1.2, 1.3, 1.2, 1.1], ("not reproduced", "not stated")),
        ({"neutral": None}, [6.5, 7.0, 7.2, 6.9, 6.8], ("not stated", "reproduced")),
        (DIRECTION | {"judged_by": None, "not_testable": "not public"}, [], ("not testable here", "not testable here")),
        # Chosen conditions are listed and never called reproduced.
        ({"sample": False}, [7.0, 8.0] * 2, ("too few, all agree",) * 2),  # in 6 % of cases without any effect
        ({"sample": False}, [7.0, 8.0] * 3, ("consistent", "consistent")),
        ({"sample": False}, [7.0] * 9, ("consistent", "consistent")),  # they are no sample, however many
        ({"sample": False}, [7.0, 2.0] * 3, ("consistent", "partly")),
        ({"sample": False}, [0.5, 2.0], ("partly", "not reproduced")),
        ({"sample": False}, [0.5], ("not reproduced", "not reproduced")),
    ],
)
def test_direction_and_magnitude(changes: dict[str, object], numbers: list[float], expected: tuple[str, str]) -> None:
    verdict = judge(claim(**changes), numbers)
    assert (verdict.direction.value, verdict.magnitude.value) == expected
    if changes == {"sample": False}:
        assert (verdict.low, verdict.high) == ((min(numbers), max(numbers)) if len(numbers) > 1 else (None, None))


def test_about_is_a_quarter_either_way() -> None:
    assert claim(**ABOUT).limits() == (4.8, 7.5)


@pytest.mark.parametrize(("paper", "number", "shown"), [("gain", 1.2, 20.0), ("saving", 4.0, 75.0)])
def test_gains_and_savings_are_ratios_in_print_only(paper: str, number: float, shown: float) -> None:
    verdict = judge(claim(scale=paper, unit="%", neutral=0.0, paper=10.0), [number] * 5)
    assert verdict.ours == pytest.approx(shown)
    # The geometric mean of ratios, not the mean of percents.
    mixed = judge(claim(scale="gain", unit="%", neutral=0.0, paper=10.0), [1.0, 4.0])
    assert mixed.ours == pytest.approx(100.0)


@given(st.sampled_from(list(NumberKind)), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_print_keeps_the_order_of_numbers(scale: NumberKind, a: float, b: float) -> None:
    assert (scale.in_print(a) <= scale.in_print(b)) or a > b


@given(st.lists(st.floats(0.2, 30.0), min_size=5, max_size=12))
def test_reproduced_is_the_one_sided_t_test_of_the_logarithms(numbers: list[float]) -> None:
    logs = np.log(numbers)
    if logs.std() < 1e-9:
        return
    below = stats.ttest_1samp(logs, math.log(6.0), alternative="greater").pvalue
    if abs(below - 0.025) > 1e-6:
        assert (judge(claim(), numbers).magnitude is Finding.REPRODUCED) == (below < 0.025)


def test_a_ratio_that_is_not_positive_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="positive"):
        judge(claim(), [1.0, 0.0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("claims = []", "claims"),
        ("x = ", "not TOML"),
        ('[[claims]]\nname = "a"', "kind"),
    ],
)
def test_malformed_claims_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_claims(text, "claims.toml")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paper": None}, "needs number 'paper'"),
        ({"relation": "direction"}, "takes no number"),
        ({"relation": "not worse", "paper": None}, "'margin' belongs"),
        ({"margin": 1.0}, "'margin' belongs"),
        ({"relation": "about", "paper": -1.0}, "positive"),
        ({"judged_by": None}, "either 'judged_by'"),
        ({"not_testable": "no data"}, "either 'judged_by'"),
        ({"quote": ""}, "the paper's words"),
        ({"of": "speed"}, "'of' names"),
        ({"kind": "reading"}, "'of' names"),
        ({"kind": "control"}, "a statement is sourced"),
        ({"sourced": False}, "a statement is sourced"),
        ({"relation": "direction", "paper": None, "neutral": None}, "a direction needs 'neutral'"),
    ],
)
def test_a_claim_that_contradicts_itself_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        claim(**changes)


ROW = {
    "paper": "recshard", "claim": "speed", "statement": "It is faster.", "paper_value": 6.0, "ours": 4.17, "low": 1.4,
    "high": 7.5, "unit": "x", "direction": "reproduced", "magnitude": "inconclusive", "region_share": 0.25,
    "strength": "simulated (model error 19 %); made-up workload", "n": 5, "n_unit": "draw", "conditions": "all",
    "relation": "at least", "sourced": True,
}  # fmt: skip


def test_a_row_in_words_keeps_an_unsourced_number_back() -> None:
    assert claim_text(ROW) == (
        "`speed`: **direction reproduced, magnitude inconclusive**: It is faster; paper at least 6 x; ours 4.17 x "
        "(1.40 to 7.50, n = 5 draw); holds in 25 % of the region; simulated (model error 19 %); made-up workload."
    )
    assert ledger_cells(ROW)[3:] == ("at least 6 x", "4.17 x (1.40 to 7.50, 5 draw)", "25 %")
    unsourced = {**ROW, "paper_value": None, "region_share": None, "low": None, "high": None, "n": 1}
    assert "no number of the paper was seen; ours 4.17 x (n = 1 draw); simulated" in claim_text(unsourced)
    untested = {**ROW, "direction": "not testable here", "magnitude": "not testable here", "conditions": "not public"}
    assert claim_text(untested) == "`speed`: **not testable here**: It is faster; not public."


def test_the_summary_counts_numbers_of_papers_and_verdicts_that_were_given_before() -> None:
    told = {"kind": "statement", "defined_first": True, "first_judged": "2026-11-22", "redefined": 2}
    rows = [
        {**ROW, **told},
        {**ROW, **told, "magnitude": "not stated", "first_judged": "2026-11-21", "redefined": 0},
        {**ROW, **told, "direction": "not testable here", "magnitude": "not testable here", "defined_first": None},
        {**ROW, **told, "kind": "control"},
    ]
    text = summary(rows)
    assert "Of the other 2, 2 state a direction: 2 reproduced." in text
    assert "Of the other 2, 1 state a number, of which none is reproduced: 1 inconclusive." in text
    assert "In 3 of 3 judged rows the definition was committed before the run that is shown." in text
    assert "between 2026-11-21 and 2026-11-22; 2 were judged again by another definition, at most 2 times." in text


def test_what_stands_below_a_statement_names_one_of_its_file() -> None:
    def text(of: str) -> str:
        facts = {**FACTS, "name": "each", "kind": "reading", "of": of}
        lines = [f"{name} = {json.dumps(value)}" for name, value in FACTS.items()]
        below = [f"{name} = {json.dumps(value)}" for name, value in facts.items()]
        return "\n".join(["[[claims]]", *lines, "[[claims]]", *below])

    assert [made.of for made in parse_claims(text("speed"), "claims.toml")] == ["", "speed"]
    with pytest.raises(BadInput, match="claim each stands below 'nothing', which is no statement there"):
        parse_claims(text("nothing"), "claims.toml")


def test_the_false_positive_rate_of_a_rule_is_that_of_judging_draws_without_an_effect() -> None:
    """Against the rule itself, judge(), on draws of the same law."""
    rng = np.random.default_rng(3)
    for made, numbers in (
        (claim(), [5.0, 7.0, 7.2, 6.9, 6.8]),
        (claim(sample=False), [1.1, 1.4, 0.9, 1.2, 1.3]),
        (claim(scale="saving", unit="%", neutral=0.0, paper=1.0), [1.1, 1.2, 1.3, 0.9, 1.0, 1.2]),
        (
            claim(relation="not worse", paper=None, margin=0.2, scale="difference", neutral=0.0),
            [0.1, 0.2, 0.0, 0.3, 0.1],
        ),
    ):
        row = rule_row(made, numbers)
        logs = made.scale is not NumberKind.DIFFERENCE
        spread = np.std(np.log(numbers) if logs else numbers, ddof=1)
        noise = rng.normal(0.0, spread, (2000, len(numbers)))
        yes = (Finding.REPRODUCED, Finding.CONSISTENT)
        drawn = np.exp(noise) if logs else noise - (made.margin or 0.0)
        found = np.mean([judge(made, each.tolist()).direction in yes for each in drawn])
        assert row["false_direction"] == pytest.approx(found, abs=0.015)
    # The largest of three equals is above no effect far too often, which is why no claim is about one.
    largest = np.exp(rng.normal(0.0, 0.02, (2000, 5, 3)).max(axis=2))
    assert np.mean([judge(claim(), each.tolist()).direction is Finding.REPRODUCED for each in largest]) > 0.25


def test_a_rule_is_asked_where_its_statement_begins_if_no_number_is_without_effect() -> None:
    row = rule_row(claim(neutral=None), [6.5, 7.0, 7.2, 6.9, 6.8])
    assert row["false_direction"] is None
    assert row["false_magnitude"] == pytest.approx(0.025, abs=0.005)
    assert rule_row(claim(), [6.0])["draws"] == 0, "one number is never called reproduced"
