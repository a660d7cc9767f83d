"""Tables as CSV, JSON and plain text, and as files that are checked."""

import math
from pathlib import Path

import pytest
import records as make

from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome
from shardbench.report.tables.files import check_tables, json_rows, table_csv, write_tables
from shardbench.report.tables.layout import plain_text
from shardbench.report.tables.suite_tables import tables, throughput, traffic
from shardbench.report.tables.text import readable_bytes, sections, significant

SAMPLE = Path(__file__).parent / "sample_tables"
"""Golden: the tables of ``records.sample()`` as files and as a terminal shows them. Edit by hand what is to change."""


@pytest.mark.parametrize("name", ["throughput", "balance", "traffic"])
def test_tables_of_the_sample_are_as_they_were(name):
    frame = tables(make.sample())[name]
    assert table_csv(frame).encode() == (SAMPLE / f"{name}.csv").read_bytes()
    shown = "\n".join(plain_text(name, section) for section in sections(name, frame))
    assert shown == (SAMPLE / f"{name}.txt").read_text()


def test_large_byte_counts_keep_their_digits():
    record = make.ok(changes={"traffic": make.totals(hbm_bytes=123456789012.0)})
    assert "123456789012" in table_csv(traffic([record]))


def test_json_rows_are_plain():
    rows = json_rows(throughput(make.sample()))
    assert rows[2]["step_ms"] is None
    assert rows[2]["same_as_best"] is None
    assert rows[0]["same_as_best"] is True


def test_other_peoples_words_are_shown_as_they_are():
    wild = "a | \x1b[31mred\x07"
    failure = make.failed(Outcome.ERROR, "mine").failure.model_copy(update={"cause": wild})
    record = make.failed(Outcome.ERROR, "mine").model_copy(update={"failure": failure})
    assert "a | \\x1b[31mred\\x07" in table_csv(throughput([make.ok("theirs"), record]))


def test_equal_marks_and_order():
    steps = {"a": (5.0, 5.1), "b": (5.0, 5.1), "c": (5.05, 5.15), "d": (9.0, 9.0)}
    frame = throughput([make.ok(name, (step,), repeat=i) for name, two in steps.items() for i, step in enumerate(two)])
    (section,) = sections("throughput", frame)
    place = section.headers.index("vs best")
    assert [r[0] for r in section.rows] == ["a", "b", "c", "d"]
    assert [r[place] for r in section.rows] == ["best", "best", "=", "+78.2 %"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (54.21, "54.2"), (0.01234, "0.0123"), (1234.6, "1235"), (-3.14159, "-3.14"), (math.inf, "inf")],
)
def test_significant(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (999, "999 B"), (12800, "12.8 kB"), (1.5e12, "1.50 TB")])
def test_readable_bytes(value, text):
    assert readable_bytes(value) == text


@pytest.fixture
def results(tmp_path):
    make.kept(tmp_path, *make.sample())
    return tmp_path


def test_check_finds_what_differs(results):
    assert len(check_tables(results, "quick")) == 3
    write_tables(results, "quick")
    assert check_tables(results, "quick") == []
    path = results / "tables" / "quick" / "throughput.csv"
    path.write_text(path.read_text().replace("20.49390", "21.50000"))
    (difference,) = check_tables(results, "quick")
    assert str(path) in difference
    assert "line 6" in difference
    path.unlink()
    assert check_tables(results, "quick") == [f"{path}: missing; run: shardbench report quick"]


def test_tables_without_records_are_a_difference(results):
    write_tables(results, "quick")
    trial_store(results, "quick").remove(lambda record: True)
    nothing, *stale = check_tables(results, "quick")
    assert nothing.startswith("quick: nothing to check: ")
    assert len(stale) == 3
    (nothing,) = check_tables(results, "other")
    assert nothing.startswith("other: nothing to check: ")
    with pytest.raises(BadInput, match="shardbench run quick"):
        write_tables(results, "quick")
