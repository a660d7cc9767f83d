"""Claims: what an interval says beside a paper's number, and files that must be refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.base.statistics import Estimate, mean
from shardbench.cli.reproduce import claims_text
from shardbench.studies.claim import COLUMNS, Claim, Verdict, claims_frame, parse_claims

FACTS = {
    "name": "speed",
    "statement": "throughput over the best baseline",
    "paper": 6.0,
    "unit": "x",
    "relation": "at least",
    "neutral": 1.0,
    "sourced": True,
    "source": "the abstract",
    "definition": "baseline step over ours",
    "conditions": "simulated only",
}


def claim(**changes: object) -> Claim:
    return Claim.model_validate({**FACTS, **changes})


def interval(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, n=5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (6.0, 9.0, Verdict.REPRODUCED),
        (5.9, 6.0, Verdict.INCONCLUSIVE),
        (1.1, 5.9, Verdict.SMALLER),
        (0.9, 1.2, Verdict.NONE),
        (1.0, 1.0, Verdict.NONE),
        (0.5, 0.9, Verdict.OPPOSITE),
    ],
)
def test_at_least(low: float, high: float, verdict: Verdict) -> None:
    assert claim().verdict(interval(low, high)) is verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.2, Verdict.REPRODUCED), (0.2, 0.6, Verdict.INCONCLUSIVE), (0.5, 0.8, Verdict.SMALLER),
     (0.8, 1.1, Verdict.NONE), (1.1, 1.3, Verdict.OPPOSITE)],
)  # fmt: skip
def test_at_most_counts_downwards(low: float, high: float, verdict: Verdict) -> None:
    assert claim(paper=0.25, relation="at most").verdict(interval(low, high)) is verdict


def test_about_may_be_exceeded() -> None:
    about = claim(relation="about")
    assert about.verdict(interval(5.0, 7.0)) is Verdict.REPRODUCED
    assert about.verdict(interval(6.5, 7.0)) is Verdict.LARGER
    assert about.verdict(interval(3.0, 4.0)) is Verdict.SMALLER
    assert about.verdict(interval(0.5, 7.0)) is Verdict.INCONCLUSIVE  # holds the paper's number and no effect
    same = claim(relation="about", paper=1.0)
    assert same.verdict(interval(0.9, 1.1)) is Verdict.REPRODUCED
    assert same.verdict(interval(1.01, 1.1)) is same.verdict(interval(0.8, 0.9)) is Verdict.DIFFERENT


@given(st.floats(-50, 50), st.floats(0, 20))
def test_reproduced_only_where_the_whole_interval_is_beyond_the_papers_number(low: float, width: float) -> None:
    verdict = claim().verdict(interval(low, low + width))
    assert (verdict is Verdict.REPRODUCED) == (low >= 6.0)


def test_the_frame_has_one_row_a_claim_and_keeps_unsourced_numbers_back() -> None:
    claims = (claim(), claim(name="memory", sourced=False), claim(name="silent"))
    frame = claims_frame(claims, {"speed": [7.0, 8.0, 9.0], "memory": [2.0]}, "someone")
    assert tuple(frame.columns) == COLUMNS
    speed, memory, silent = frame.to_dict("records")
    assert speed["ours"] == pytest.approx(8.0)
    assert speed["paper"] == 6.0
    assert (speed["n"], speed["verdict"]) == (3, "reproduced")
    assert 7.0 <= speed["low"] <= speed["high"] <= 9.0
    assert memory["paper"] != memory["paper"]
    assert (memory["ours"], memory["n"], memory["verdict"]) == (2.0, 1, "inconclusive")
    assert memory["low"] != memory["low"]
    assert "ours 2 x (n=1): inconclusive" in claims_text(frame)
    assert (silent["n"], silent["verdict"]) == (0, "not tested")


def test_mean_of_equal_numbers_has_no_width() -> None:
    assert mean([3.0, 3.0]) == Estimate(value=3.0, low=3.0, high=3.0, n=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("claims = []", "claims"),
        ("x = ", "not TOML"),
        ('[[claims]]\nname = "a"', "statement"),
    ],
)
def test_malformed_claims_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_claims(text, "claims.toml")


def test_a_claim_must_point_one_way() -> None:
    with pytest.raises(ValueError, match="at least"):
        claim(paper=0.5)


def test_observations_of_no_claim_are_refused() -> None:
    with pytest.raises(BadInput, match="'typo'"):
        claims_frame((claim(),), {"typo": [1.0]}, "someone")
