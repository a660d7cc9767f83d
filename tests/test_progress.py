"""How long the rest of a session takes, and how that is shown."""

import io
import json
import math

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shardbench.cli.progress import (
    EVERY_S,
    LEAST,
    JsonProgress,
    PlainProgress,
    TimeLeft,
    console_of_stdout,
    reading,
)

SECONDS = st.floats(0.0, 1e5)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def after(gaps: list[float], pieces: int) -> TimeLeft:
    clock = Clock()
    left = TimeLeft(clock)
    left.begin(pieces)
    for gap in gaps:
        clock.now += gap
        left.finished()
    return left


@pytest.mark.parametrize(
    ("gaps", "pieces", "says"),
    [
        ([], 10, "time left not known yet"),
        ([5.0] * (LEAST - 1), 10, "time left not known yet"),
        ([5.0] * 4, 10, "about 30 s left"),
        ([60.0] * 4, 14, "about 10 min left"),
        ([3600.0] * 3, 9, "about 6 h left"),
        ([1.0, 100.0, 3.0], 4, "at most 166 s left"),
        ([50.0, 70.0, 60.0, 60.0], 104, "86 to 114 min left"),
        ([5.0] * 10, 10, ""),
    ],
)
def test_what_is_said(gaps: list[float], pieces: int, says: str) -> None:
    assert after(gaps, pieces).text() == says


def test_the_range_by_hand() -> None:
    # Deviation of 10, 20, 30 is 10; mean 20; 3 are left: 60 -+ 2 * 10 * sqrt(3 + 9 / 3).
    assert after([10.0, 20.0, 30.0], 6).left_s() == pytest.approx((60 - 20 * math.sqrt(6), 60 + 20 * math.sqrt(6)))


@given(st.lists(SECONDS, max_size=20), st.integers(0, 50))
def test_the_mean_of_what_finished_is_in_the_range(gaps: list[float], more: int) -> None:
    left = after(gaps, len(gaps) + more)
    range_s = left.left_s()
    assert (range_s is None) == (len(gaps) < LEAST or more == 0)
    if range_s is not None:
        middle = more * sum(gaps) / len(gaps)
        assert 0 <= range_s[0] <= middle * (1 + 1e-9) + 1e-9
        assert range_s[1] >= middle * (1 - 1e-9) - 1e-9
    assert left.text().endswith("left not known yet" if range_s is None and more else " left" if more else "")
    assert bool(left.text()) == bool(more)


def test_a_new_list_of_work_begins_anew() -> None:
    left = after([5.0] * 5, 5)
    left.begin(4)
    assert left.text() == "time left not known yet"


def run(listener: PlainProgress, clock: Clock, seconds: float, pieces: int, settled: int = 0) -> None:
    listener.planned("suite quick", "trial", pieces + settled, settled)
    for number in range(1, pieces + 1):
        clock.now += seconds
        listener.finished(number, make.ok(repeat=number))


def test_plain_lines_say_it_every_half_minute_and_not_after_the_last() -> None:
    out, clock = io.StringIO(), Clock()
    run(PlainProgress(Console(file=out), clock), clock, 20.0, 6, settled=2)
    lines = out.getvalue().splitlines()
    assert lines[0] == "suite quick: 8 trials, 2 settled, 6 to run"
    told = [line for line in lines if "left" in line]
    assert told == ["2 of 6 done, time left not known yet", "4 of 6 done, about 40 s left"]
    assert len(lines) == 1 + 6 + len(told)


def test_quick_work_is_not_told_of() -> None:
    out, clock = io.StringIO(), Clock()
    run(PlainProgress(Console(file=out), clock), clock, 0.1, 50)
    assert "left" not in out.getvalue()


def test_events_have_the_seconds_left() -> None:
    out, clock = io.StringIO(), Clock()
    run(JsonProgress(Console(file=out), clock), clock, 10.0, 4)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event.get("left_s") for event in events] == [None, None, None, [10.0, 10.0], None]


def test_the_bar_says_it() -> None:
    out = io.StringIO()
    bar = PlainProgress(Console(file=out, force_terminal=True, width=80, color_system=None))
    bar.planned("suite quick", "trial", 1000, 0)
    bar.started("simulated a-workload-with-a-long-name a100-40gb-2x8 a-strategy-with-a-long-name r0")
    bar.finished(1, make.ok())
    assert bar._bar is not None
    bar._bar.refresh()
    bar.stop()
    text = out.getvalue()
    assert "1/1000" in text
    assert "time left not known yet" in text
    assert "greedy-size r0: ok" in text


def test_how_far_a_log_is_read_is_said_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with reading(2000, 4, console_of_stdout(), clock) as show:
        for _ in range(3):
            show.read_more(500, 10)
            clock.now += 0.6 * EVERY_S
        show.read_more(500, 0)
        clock.now += EVERY_S
        show.count_tables(2)
    assert capsys.readouterr().out.splitlines() == [
        "read 75 % of the log, 30 rows",
        "counted 2 of 4 tables, 30 rows",
    ]
    with reading(10, 1, None, clock) as silent:
        clock.now += EVERY_S
        silent.read_more(10, 1)
        silent.count_tables(1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("counted", "says"), [((), ("50 %", "1,234 rows")), ((2,), ("100 %", "counted 2 of 2"))])
def test_the_bar_of_a_log_has_an_end_and_goes_away(counted: tuple[int, ...], says: tuple[str, ...]) -> None:
    out = io.StringIO()
    with reading(2000, 2, Console(file=out, force_terminal=True, width=80, color_system=None)) as bar:
        bar.read_more(2000, 1234)
        for tables in counted:
            bar.count_tables(tables)
    assert all(text in out.getvalue() for text in says)
    assert out.getvalue().endswith("\x1b[2K")
