"""The cases that ``nox -s micro`` reads, and the ratios that it prints."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv_runner.discovery import disc_benchmarks
from cases.case import Case

sys.path.insert(0, str(Path(__file__).parent.parent / "tools" / "micro"))
import ratios
from test_cases import listed


def test_a_ratio_by_hand(monkeypatch):
    monkeypatch.setattr(ratios, "cpu_s", iter([0.0, 1.0, 1.0, 3.0, 3.0, 6.0, 6.0, 10.0, 10.0, 15.0]).__next__)
    stats = SimpleNamespace(stats=SimpleNamespace(q1=3.0, median=6.0, q3=90_000.0))
    benchmark, calls = SimpleNamespace(name="one", stats=stats, extra_info={}), []
    assert ratios.beside(benchmark, "summing", lambda: calls.append(1)) == pytest.approx(6.0 / 3.0)
    assert len(calls) == 5
    other = SimpleNamespace(name="other", extra_info={})
    assert list(ratios.lines([benchmark, other])) == ["one: 2.00 times summing (1.00 to 30,000.00)"]


def test_every_case_says_what_it_is_held_against():
    found = list(listed())
    assert len({one.id for one in found}) == len(found) > 80
    kinds = {one.values[0] for one in found}
    assert all(kind.against and kind.reference is not Case.reference for kind in kinds)
    kind, method, given = next(one.values for one in found if one.id == "Counting.time_count(whole, 8)")
    case = kind()
    case.setup(*given)
    case.check(getattr(case, method)(*given))
    assert len(case.reference()) == len(case.bags.values)


def test_asv_tells_the_kinds_of_benchmarks_by_their_names():
    found = list(disc_benchmarks("cases"))
    kinds = {"time": "time", "peakmem": "peakmemory", "track": "track"}
    assert [one.type for one in found] == [kinds[one.name.rpartition(".")[2].partition("_")[0]] for one in found]
    assert {one.type for one in found} == set(kinds.values())
