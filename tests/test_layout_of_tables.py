"""Tables on terminals of any width: columns are left out by rule, and no number is ever cut."""

import io
from pathlib import Path

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shardbench.report.tables.layout import lay_out, print_tables
from shardbench.report.tables.suite_tables import tables
from shardbench.report.tables.text import ALWAYS, Section, sections

WORDS = st.text("abcxyz", min_size=1, max_size=9)


def section(headers: list[str], rows: list[list[str]], keep: list[int]) -> Section:
    return Section(
        backend="measured",
        heading="w on m",
        note="",
        headers=tuple(headers),
        rows=tuple(map(tuple, rows)),
        numeric=(False, *(True for _ in headers[1:])),
        keep=tuple(keep),
        causes=(),
    )


EXAMPLE = section(
    ["strategy", "step p50 (ms)", "vs best", "plan (s)"],
    [["greedy-size", "12.3", "best", "0.5"], ["shuffle", "1234567", "+7.5 %", "< 0.001"]],
    [ALWAYS, ALWAYS, 5, 2],
)


def test_all_columns_where_there_is_room() -> None:
    table = lay_out(EXAMPLE)
    assert table.left_out == ()
    assert table.heads == ("strategy     step p50 (ms)  vs best  plan (s)",)
    assert table.rows[1] == "shuffle            1234567   +7.5 %   < 0.001"
    assert lay_out(EXAMPLE, 80) == table


def test_headers_are_wrapped_before_a_column_goes() -> None:
    table = lay_out(EXAMPLE, 40)
    assert table.left_out == ()
    assert table.heads == (
        "                step",
        "                 p50      vs     plan",
        "strategy        (ms)    best      (s)",
    )
    assert table.rows[0] == "greedy-size     12.3    best      0.5"


@pytest.mark.parametrize(
    ("width", "left_out"), [(30, ("plan (s)",)), (21, ("vs best", "plan (s)")), (5, ("vs best", "plan (s)"))]
)
def test_the_least_column_goes_first_and_some_never(width: int, left_out: tuple[str, ...]) -> None:
    assert lay_out(EXAMPLE, width).left_out == left_out


def test_of_equal_columns_the_last_goes_first() -> None:
    equal = section(["strategy", "a", "b"], [["x", "1" * 10, "2" * 10]], [ALWAYS, 3, 3])
    assert lay_out(equal, 22).left_out == ("b",)


@given(st.data(), st.integers(1, 6), st.integers(1, 4), st.integers(1, 120))
def test_lines_fit_and_cells_are_whole(data: st.DataObject, columns: int, rows: int, width: int) -> None:
    several = st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=columns, max_size=columns)
    headers = [" ".join([*words, str(number)]) for number, words in enumerate(data.draw(several))]
    cells = [data.draw(st.lists(WORDS, min_size=columns, max_size=columns)) for _ in range(rows)]
    keep = [ALWAYS, *data.draw(st.lists(st.integers(0, 8), min_size=columns - 1, max_size=columns - 1))]
    made = section(headers, cells, keep)
    table = lay_out(made, width)
    shown = len(headers) - len(table.left_out)
    assert shown >= 1
    if shown > 1:
        assert all(len(line) <= width for line in (*table.heads, *table.rows))
    assert all(len(line.split()) == shown for line in table.rows)
    by_header = dict(zip(headers, keep))
    gone = [by_header.pop(header) for header in table.left_out]
    assert max(gone, default=0) <= min(by_header.values()), "what is left out matters no more than what is shown"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_terminal_has_whole_numbers_and_says_what_it_left_out(width: int) -> None:
    frames = tables(make.sample())
    out = io.StringIO()
    print_tables(frames, Console(file=out, force_terminal=True, width=width, color_system=None), Path("t"))
    text = out.getvalue()
    lines = text.splitlines()
    for name, frame in frames.items():
        for one in sections(name, frame, compact=True):
            table = lay_out(one, width)
            assert all(line in lines for line in table.rows)
            if table.left_out:
                assert f"no room for {', '.join(table.left_out)}: {Path('t') / name}.csv" in lines
    if width in (40, 200):
        assert ("no room for" in text) == (width == 40)
    if width >= 80:
        assert all(len(line) <= width for line in lines if not line.startswith("no room for"))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
