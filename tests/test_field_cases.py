"""The table of what people reported: of every case, made by a test that is there, and with no outcome but the right."""

import csv
from types import SimpleNamespace

from field_cases import AS_EXPECTED, CASES, COLUMNS, ROOT, Outcomes, rows

TABLE = ROOT / "results" / "tables" / "field" / "cases.csv"


def test_the_table_has_every_case_as_expected_by_a_test_that_is_there():
    with TABLE.open() as file:
        found = [tuple(row) for row in csv.reader(file)]
    assert found == [COLUMNS, *rows(CASES, {one.test: [] for one in CASES})], "nox -s tables -- field"
    for one in CASES:
        name, _, test = one.test.partition("::")
        assert f"\ndef {test}(" in (ROOT / "tests" / name).read_text(), one.test


def test_what_fails_and_what_is_not_run_is_not_as_expected():
    outcomes, one = Outcomes(), CASES[0]
    for name, passed, said in (("a", True, ""), ("b", False, "x.py:1: AssertionError")):
        told = SimpleNamespace(nodeid=f"tests/{one.test}[{name}]", passed=passed, outcome="failed", longrepr=None)
        told.longreprtext = said
        outcomes.pytest_runtest_logreport(told)
    assert [row[3] for row in rows(CASES[:2], outcomes.wrong)] == ["failed: x.py:1: AssertionError", "not run"]
    assert AS_EXPECTED not in {row[3] for row in rows(CASES[:2], outcomes.wrong)}
