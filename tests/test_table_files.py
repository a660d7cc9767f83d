"""Tables as CSV, JSON and plain text, and as files that are checked."""

import csv
import io
import math

import pytest
import records as make

from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome
from shardbench.report.tables.files import check_tables, json_rows, table_csv, write_tables
from shardbench.report.tables.suite_tables import balance, throughput, traffic
from shardbench.report.tables.terminal import plain_text
from shardbench.report.tables.text import readable_bytes, sections, significant


def test_csv_is_fixed_and_readable_by_programs():
    frame = throughput(make.sample())
    text = table_csv(frame)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[4]["strategy"] == "greedy-size"
    stated = [rows[4][column] for column in ("step_ms_p50", "samples_per_s", "same_as_best")]
    assert stated == ["25.49510", "39223.2", "true"]
    assert rows[5]["step_ms_p50"] == rows[5]["same_as_best"] == ""
    assert rows[0]["vs_best_pct"] == "0.000", "no minus zero"
    assert text.isascii()
    assert "\r" not in text


def test_large_byte_counts_keep_their_digits():
    record = make.ok(changes={"traffic": make.totals(hbm_bytes=123456789012.0)})
    assert "123456789012" in table_csv(traffic([record]))


def test_json_rows_are_plain():
    rows = json_rows(throughput(make.sample()))
    assert rows[2]["step_ms_p50"] is None
    assert rows[2]["same_as_best"] is None
    assert rows[0]["same_as_best"] is True


def test_text_marks_simulation_noise_and_failures():
    text = "\n".join(plain_text("Throughput", section) for section in sections("throughput", throughput(make.sample())))
    assert "Throughput: dlrm20 on a100-40gb-2x8: SIMULATED by the cost model, not a measurement" in text
    assert "compared by step, no common control plan; noise floor 12.5 %; 1 of 1 pairs differ by more" in text
    assert "oom (1/2 ok)" in text
    assert "local-search (reference)" in text


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


def test_plain_text_is_aligned():
    (simulated, _) = sections("balance", balance(make.sample()), compact=True)
    lines = plain_text("Balance", simulated).splitlines()
    assert lines[2].index("max (ms)") + len("max (ms)") == lines[3].index("3.40") + 4
    assert all(line == line.rstrip() for line in lines)


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


def test_written_twice_is_the_same_bytes(results):
    first = {path: path.read_bytes() for path in write_tables(results, "quick")}
    assert len(first) == 3
    assert {path: path.read_bytes() for path in write_tables(results, "quick")} == first
    assert sorted(p.name for p in (results / "tables" / "quick").iterdir()) == sorted(p.name for p in first)


def test_check_finds_what_differs(results):
    assert len(check_tables(results, "quick")) == 3
    write_tables(results, "quick")
    assert check_tables(results, "quick") == []
    path = results / "tables" / "quick" / "throughput.csv"
    path.write_text(path.read_text().replace("25.49510", "24.50000"))
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
