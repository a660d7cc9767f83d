"""Shows a session while it goes: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from shardbench.base.generated import ascii_text, say
from shardbench.base.serialise import to_data
from shardbench.records.base_record import BaseRecord

EVERY_S = 30.0
"""The seconds between two plain lines about the time left."""
SPOKEN_S = 2.0
"""The seconds between two plain lines about the best step so far."""
LEAST = 3
"""The number of pieces that must have finished before anything is said."""
_SPREAD = 2.0
"""A range has so many standard deviations either way: about 95 % where pieces are alike."""
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))


class TimeLeft:
    """Takes the seconds between one finish and the next, whatever runs side by side, for those to come.

    Pieces differ (a strategy that learns, a larger workload later), so that the answer is a range: the sum of what is
    left varies, and its mean is known only so well.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.begin(0)

    def begin(self, pieces: int) -> None:
        """Begin a list of so many open pieces."""
        self.open = pieces
        self._last = self._clock()
        self._gaps: list[float] = []

    def finished(self) -> None:
        """Count one more piece as done."""
        now = self._clock()
        self._gaps.append(now - self._last)
        self._last = now
        self.open -= 1

    def left_s(self) -> tuple[float, float] | None:
        """Estimate the least and the most seconds left; None before enough is known, and where nothing is left."""
        count, left = len(self._gaps), self.open
        if count < LEAST or left <= 0:
            return None
        middle = left * statistics.fmean(self._gaps)
        off = _SPREAD * statistics.stdev(self._gaps) * math.sqrt(left + left**2 / count)
        return max(0.0, middle - off), middle + off

    def text(self) -> str:
        """Say how long the rest takes, such as ``2 to 6 min left``; empty where nothing is left."""
        if self.open <= 0:
            return ""
        range_s = self.left_s()
        if range_s is None:
            return "time left not known yet"
        size, unit = next((size, unit) for size, unit in _UNITS if range_s[1] >= 3 * size or size == 1)
        low, high = math.floor(range_s[0] / size), math.ceil(range_s[1] / size)
        if low == 0:
            return f"at most {high} {unit} left"
        return f"about {high} {unit} left" if high - low <= 1 else f"{low} to {high} {unit} left"


class _NowAndThen:
    """Tells whether it is time to say something again: so many seconds after the last time, or after the beginning."""

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        self._every_s, self._clock, self._last_s = every_s, clock, clock()

    def __call__(self) -> bool:
        is_time = self._clock() - self._last_s >= self._every_s
        if is_time:
            self._last_s = self._clock()
        return is_time


class PlainProgress:
    """Prints an ASCII line a finished piece of work, on a terminal above a bar that names the running piece.

    Elsewhere a line every half minute says how long the rest takes.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        self._console = console
        self._is_time = _NowAndThen(EVERY_S, clock)
        self._bar = _bar_of_pieces(console) if console.is_terminal else None
        self.left = TimeLeft(clock)
        self.open = 0

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Say how much is to run, and begin a new bar; the time left counts from here."""
        self.open = total - settled
        self.left.begin(self.open)
        self.say(f"{work}: {total} {unit}s, {settled} settled, {self.open} to run")
        if self._bar is None:
            return
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        if self.open:
            self._bar.add_task(escape(ascii_text(work)), total=self.open, left=self.left.text())
            self._bar.start()

    def started(self, piece: str) -> None:
        """Name the piece in the bar; elsewhere a line comes when it is finished."""
        self._move(description=escape(ascii_text(piece)))

    def noted(self, line: str) -> None:
        """Print the line as it is."""
        self.say(line)

    def finished(self, number: int, record: BaseRecord) -> None:
        """Print how the piece ended, and now and then how long the rest takes, which the bar always shows."""
        self.left.finished()
        self.say(finished_line(number, self.open, record))
        self._move(completed=number, left=self.left.text())
        if self._bar is None and self.left.open and self._is_time():
            self.say(f"{number} of {self.open} done, {self.left.text()}")

    def _move(self, **changes: Any) -> None:
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.update(task, **changes)

    def say(self, line: str) -> None:
        """Print one line, above the bar where there is one."""
        if self._bar is None:
            say(line, self._console.file)
        else:
            self._console.print(ascii_text(line), markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away; also after an interrupt."""
        if self._bar is not None:
            self._bar.stop()


def _bar_of_pieces(console: Console) -> Progress:
    # Where the line is too long the name of the piece is wrapped, so that no number is cut.
    piece = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    left = TextColumn("{task.fields[left]}")
    columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), left, piece)
    return Progress(*columns, console=console, transient=True)


class JsonProgress(PlainProgress):
    """Prints a JSON object a line: ``planned``, then ``finished`` with the record and the seconds left."""

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Write the event ``planned``."""
        self.left.begin(total - settled)
        self.write({"event": "planned", "work": work, "unit": unit, "total": total, "settled": settled})

    def noted(self, line: str) -> None:
        """Write the event ``noted``."""
        self.write({"event": "noted", "text": line})

    def finished(self, number: int, record: BaseRecord) -> None:
        """Write the event ``finished``, with the least and the most seconds left."""
        self.left.finished()
        self.write({"event": "finished", "number": number, "record": to_data(record), "left_s": self.left.left_s()})

    def write(self, event: dict[str, Any]) -> None:
        """Write one event as a line of JSON."""
        self.say(json.dumps(event, sort_keys=True, allow_nan=False))


@contextmanager
def progress(as_json: bool = False) -> Iterator[PlainProgress]:
    """Give the kind of progress that fits stdout, and take it away where the block ends."""
    listener = (JsonProgress if as_json else PlainProgress)(console_of_stdout(bar=not as_json))
    try:
        yield listener
    finally:
        listener.stop()


def console_of_stdout(*, bar: bool = True) -> Console:
    """Give what prints on stdout, which has a bar where that is a terminal and ``bar`` allows one."""
    return Console(file=sys.stdout, force_terminal=bar and sys.stdout.isatty())


class BestSoFar:
    """Says on stderr how short the best step so far is: in one line on a terminal, in a line now and then elsewhere."""

    def __init__(self, budget_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._budget_s, self._clock, self._begun_s = budget_s, clock, clock()
        self._is_time = _NowAndThen(SPOKEN_S, clock)
        console = Console(stderr=True)
        self._status = console.status("profiles of the tables") if console.is_terminal else None

    def __enter__(self) -> "BestSoFar":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take away what is shown; also after an interrupt."""
        if self._status is not None:
            self._status.stop()

    def __call__(self, strategy: str, step_ms: float) -> None:
        """Say that a strategy has a better plan than its last one, and the whole step that it expects of it itself."""
        now_s = self._clock()
        step = "has a first plan" if math.isnan(step_ms) else f"expects {step_ms:.4g} ms a step"
        line = ascii_text(f"{now_s - self._begun_s:.0f} of {self._budget_s:g} s: {strategy} {step}")
        if self._status is not None:
            self._status.update(escape(f"{line}; ctrl-C answers with it"))
        elif self._is_time():
            say(line, sys.stderr)


class LogReading:
    """Counts what is read of a log and which tables are counted, and has it shown."""

    def __init__(self, total: int, tables: int, show: Callable[[float, str], None]) -> None:
        """``total`` are the bytes to read, and ``tables`` are to be counted after that.

        ``show`` takes the share of all that is done, reading being the first half, and that in words.
        """
        self._total, self._tables, self._bytes, self._rows = max(total, 1), tables, 0, 0
        self._show = show

    def read_more(self, more_bytes: int, more_rows: int) -> None:
        """Count more bytes of the files, and more rows, as read."""
        self._bytes += more_bytes
        self._rows += more_rows
        share = self._bytes / self._total
        self._show(share / 2, f"read {100 * share:.0f} % of the log, {self._rows:,} rows")

    def count_tables(self, tables: int) -> None:
        """Note that the lookups of so many tables are counted, after all rows were read."""
        self._show(0.5 + tables / self._tables / 2, f"counted {tables} of {self._tables} tables, {self._rows:,} rows")


@contextmanager
def reading(
    total: int, tables: int, console: Console | None, clock: Callable[[], float] = monotonic
) -> Iterator[LogReading]:
    """Show how far the profile of ``tables`` tables out of ``total`` bytes is: in a bar on a terminal.

    Elsewhere a line every half minute says it, and nothing where ``console`` is None, as stdout is for JSON.
    """
    if console is not None and console.is_terminal:
        columns = (BarColumn(bar_width=None), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
        labels = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, *labels, console=console, transient=True, expand=True) as bar:
            task = bar.add_task("0 rows", total=1.0)
            yield LogReading(total, tables, lambda share, line: bar.update(task, completed=share, description=line))
        return
    is_time = _NowAndThen(EVERY_S, clock)

    def show(_: float, line: str) -> None:
        if console is not None and is_time():
            say(line, console.file)

    yield LogReading(total, tables, show)


@contextmanager
def counting_rows(as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """Give what takes more bytes and rows as read, and shows the rows so far and the time on a terminal."""
    console = console_of_stdout(bar=not as_json)
    columns = (TextColumn("{task.completed:,.0f} rows"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=None)
        yield lambda _, more_rows: shown.advance(task, more_rows)


def finished_line(number: int, of: int, record: BaseRecord) -> str:
    """Make one ASCII line about a finished piece of work."""
    return ascii_text(f"[{number:>{len(str(of))}}/{of}] {record.summary}".replace("\n", " "))
