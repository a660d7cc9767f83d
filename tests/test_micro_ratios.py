"""The cases that ``nox -s micro`` reads, and the table of ratios that it prints."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases.case import Case

sys.path.insert(0, str(Path(__file__).parent.parent / "tools" / "micro"))
from ratios import Ratio, add, beside, table
from test_cases import listed


def test_ratio_by_hand(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = Ratio.of("sorting", [2.0, 4.0, 6.0], [1.0, 2.0])
    assert found.ratio == pytest.approx(4.0 / 1.5)
    # Every time over every other: 1, 2, 2, 3, 4, 6.
    assert (found.low, found.high) == (2.0, 3.75)
    assert (found.n, found.threads) == ("3 / 2", "1")


def test_a_benchmark_is_held_against_a_call():
    calls = []
    stats = SimpleNamespace(stats=SimpleNamespace(data=[1.0, 2.0]))
    benchmark = SimpleNamespace(stats=stats, extra_info={})
    found = beside(benchmark, "summing", lambda: calls.append(sum(range(1000))), rounds=3)
    assert len(calls) == 3
    assert found.n == "2 / 3"
    assert benchmark.extra_info["ratios"][0]["against"] == "summing"
    assert beside(SimpleNamespace(stats=None), "summing", lambda: None) is None


def test_table_is_for_people():
    benchmark = SimpleNamespace(extra_info={})
    add(benchmark, Ratio(against="a loop", ratio=1.02345678, low=1.0, high=1.05, n="200 pairs", threads="1"))
    assert table([("test_step", benchmark.extra_info), ("test_other", {})]) == [
        "benchmark  against  ratio  middle half  n          threads",
        "test_step  a loop   1.02   1 to 1.05    200 pairs  1",
    ]


def test_no_ratio_has_an_exponent():
    told = {"ratios": [{"against": "x", "ratio": 46_951.0, "low": 999.6, "high": 1e6, "n": "1", "threads": "1"}]}
    assert table([("one", told)])[1].split() == ["one", "x", "47,000", "1,000", "to", "1,000,000", "1", "1"]


def test_every_case_says_what_it_is_held_against():
    found = list(listed())
    assert len({one.id for one in found}) == len(found) > 100
    kinds = {one.values[0] for one in found}
    assert all(kind.against and kind.reference is not Case.reference for kind in kinds)
    kind, method, given = next(one.values for one in found if one.id == "Counting.time_count(whole, 8)")
    case = kind()
    case.setup(*given)
    case.check(getattr(case, method)(*given))
    assert len(case.reference()) == len(case.bags.values)
