"""How a session is shown while it goes: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from shardbench.base.generated import ascii_text
from shardbench.base.serialise import to_data
from shardbench.records.base_record import BaseRecord


class PlainProgress:
    """One ASCII line per finished piece of work."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.open = 0

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """See Listener."""
        self.open = total - settled
        self.say(f"{work}: {total} {unit}s, {settled} settled, {self.open} to run")

    def started(self, piece: str) -> None:
        """See Listener."""

    def finished(self, number: int, record: BaseRecord) -> None:
        """See Listener."""
        self.say(finished_line(number, self.open, record))

    def say(self, line: str) -> None:
        """Print one line."""
        print(line, file=self._out, flush=True)

    def stop(self) -> None:
        """Nothing to take away."""


class BarProgress(PlainProgress):
    """The same lines, scrolling by above a bar that names the running piece."""

    def __init__(self, console: Console) -> None:
        super().__init__(sys.stdout)
        self._console = console
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """See Listener."""
        super().planned(work, unit, total, settled)
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if self.open:
            self._task = self._progress.add_task(escape(work), total=self.open)
            self._progress.start()

    def started(self, piece: str) -> None:
        """See Listener."""
        if self._task is not None:
            self._progress.update(self._task, description=escape(piece))

    def finished(self, number: int, record: BaseRecord) -> None:
        """See Listener."""
        super().finished(number, record)
        if self._task is not None:
            self._progress.update(self._task, completed=number)

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away; also after an interrupt."""
        self._progress.stop()


class JsonProgress(PlainProgress):
    """One JSON object a line: ``planned``, then ``finished`` with the record."""

    def planned(self, work: str, unit: str, total: int, settled: int) -> None:
        """See Listener."""
        self.write({"event": "planned", "work": work, "unit": unit, "total": total, "settled": settled})

    def finished(self, number: int, record: BaseRecord) -> None:
        """See Listener."""
        self.write({"event": "finished", "number": number, "record": to_data(record)})

    def write(self, event: dict[str, Any]) -> None:
        """Write one event."""
        self.say(json.dumps(event, sort_keys=True))


@contextmanager
def progress(as_json: bool = False) -> Iterator[PlainProgress]:
    """The one that fits stdout, taken away where the block ends."""
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


def finished_line(number: int, of: int, record: BaseRecord) -> str:
    """One ASCII line about a finished piece of work."""
    return ascii_text(f"[{number:>{len(str(of))}}/{of}] {record.summary}".replace("\n", " "))
