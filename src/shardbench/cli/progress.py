"""Shows a session while it goes: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
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


class PlainProgress:
    """Prints an ASCII line a finished piece of work, and every half minute one about the time left."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._out = out
        self._clock = clock
        self._last_line_s = clock()
        self.left = TimeLeft(clock)
        self.open = 0

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Say how much is to run; the time left counts from here."""
        self.open = total - settled
        self.left.begin(self.open)
        self.say(f"{work}: {total} {unit}s, {settled} settled, {self.open} to run")

    def started(self, piece: str) -> None:
        """Say nothing: a line comes when the piece is finished."""

    def noted(self, line: str) -> None:
        """Print the line as it is."""
        self.say(line)

    def finished(self, number: int, record: BaseRecord) -> None:
        """Print how the piece ended, and now and then how long the rest takes."""
        self.left.finished()
        self.say(finished_line(number, self.open, record))
        self.say_left(number)

    def say_left(self, number: int) -> None:
        """Say how long the rest takes, where it is not the last piece and nothing was said for a while."""
        if self.left.open and self._clock() - self._last_line_s >= EVERY_S:
            self._last_line_s = self._clock()
            self.say(f"{number} of {self.open} done, {self.left.text()}")

    def say(self, line: str) -> None:
        """Print one line on the output."""
        say(line, self._out)

    def stop(self) -> None:
        """Take away what is shown, which is nothing here."""


class BarProgress(PlainProgress):
    """Prints the same lines, which scroll by above a bar that names the running piece."""

    def __init__(self, console: Console) -> None:
        super().__init__(sys.stdout)
        self._console = console
        # Where the line is too long the name of the piece is wrapped, so that no number is cut.
        piece = TextColumn("{task.description}", table_column=Column(overflow="fold"))
        left = TextColumn("{task.fields[left]}")
        columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), left, piece)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """Say how much is to run, and begin a new bar."""
        super().planned(work, unit, total, settled)
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if self.open:
            self._task = self._progress.add_task(escape(ascii_text(work)), total=self.open, left=self.left.text())
            self._progress.start()

    def started(self, piece: str) -> None:
        """Name the piece in the bar."""
        if self._task is not None:
            self._progress.update(self._task, description=escape(ascii_text(piece)))

    def finished(self, number: int, record: BaseRecord) -> None:
        """Print how the piece ended, and move the bar on."""
        super().finished(number, record)
        if self._task is not None:
            self._progress.update(self._task, completed=number, left=self.left.text())

    def say_left(self, number: int) -> None:
        """Say nothing, as the bar shows the time left."""

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(ascii_text(line), markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away; also after an interrupt."""
        self._progress.stop()


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
    if as_json:
        listener: PlainProgress = JsonProgress(sys.stdout)
    elif sys.stdout.isatty():
        listener = BarProgress(Console(file=sys.stdout))
    else:
        listener = PlainProgress(sys.stdout)
    try:
        yield listener
    finally:
        listener.stop()


class BestSoFar:
    """Says on stderr how short the best step so far is: in one line on a terminal, in a line now and then elsewhere."""

    def __init__(self, budget_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._budget_s, self._clock, self._begun_s = budget_s, clock, clock()
        self._last_line_s = self._begun_s
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
        """Say that a strategy has a better plan than its last one."""
        now_s = self._clock()
        step = "a first plan" if math.isnan(step_ms) else f"{step_ms:.4g} ms a step"
        line = ascii_text(f"{now_s - self._begun_s:.0f} of {self._budget_s:g} s: {strategy} has {step}")
        if self._status is not None:
            self._status.update(escape(f"{line}; ctrl-C answers with it"))
        elif now_s - self._last_line_s >= SPOKEN_S:
            self._last_line_s = now_s
            say(line, sys.stderr)


class PlainReading:
    """Says how far the profile of a log is: nothing at first, then a line every half minute."""

    def __init__(self, total: int, tables: int, clock: Callable[[], float] = monotonic) -> None:
        """``total`` are the bytes to read, and ``tables`` are to be counted after that."""
        self._total, self._tables, self._bytes, self._rows = max(total, 1), tables, 0, 0
        self._clock = clock
        self._last_line_s = clock()

    def __enter__(self) -> "PlainReading":
        return self

    def __exit__(self, *error: object) -> None:
        """Take away what is shown, which is nothing here."""

    def read_more(self, more_bytes: int, more_rows: int) -> None:
        """Count more bytes of the files, and more rows, as read."""
        self._bytes += more_bytes
        self._rows += more_rows
        share = self._bytes / self._total
        self.show(share / 2, f"read {100 * share:.0f} % of the log, {self._rows:,} rows")

    def count_tables(self, tables: int) -> None:
        """Note that the lookups of so many tables are counted, after all rows were read."""
        self.show(0.5 + tables / self._tables / 2, f"counted {tables} of {self._tables} tables, {self._rows:,} rows")

    def show(self, share: float, line: str) -> None:
        """Say it, where nothing was said for a while; ``share`` of all is done, reading being the first half."""
        if self._clock() - self._last_line_s >= EVERY_S:
            self._last_line_s = self._clock()
            say(line)


class BarReading(PlainReading):
    """Shows how far the profile of a log is in a bar that ends where the profile is done."""

    def __init__(self, total: int, tables: int, console: Console) -> None:
        super().__init__(total, tables)
        columns = (BarColumn(bar_width=None), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
        labels = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, *labels, console=console, transient=True, expand=True)
        self._task = self._progress.add_task("0 rows", total=1.0)

    def __enter__(self) -> "BarReading":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bar away; also after an interrupt."""
        self._progress.stop()

    def show(self, share: float, line: str) -> None:
        """Move the bar on."""
        self._progress.update(self._task, completed=share, description=line)


class NoReading(PlainReading):
    """Says nothing: stdout is for JSON."""

    def show(self, share: float, line: str) -> None:
        """Say nothing of how far it is."""


def reading(total: int, tables: int, as_json: bool) -> PlainReading:
    """Give what shows on stdout how far the profile of ``tables`` tables out of ``total`` bytes is."""
    if as_json:
        return NoReading(total, tables)
    return BarReading(total, tables, Console(file=sys.stdout)) if sys.stdout.isatty() else PlainReading(total, tables)


def finished_line(number: int, of: int, record: BaseRecord) -> str:
    """Make one ASCII line about a finished piece of work."""
    return ascii_text(f"[{number:>{len(str(of))}}/{of}] {record.summary}".replace("\n", " "))
