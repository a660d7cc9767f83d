"""How a run is shown while it goes: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import statistics
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from shardbench.base.serialise import to_data
from shardbench.records.record import Record
from shardbench.records.trial import TrialSpec


class PlainProgress:
    """One ASCII line per finished trial."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.open = 0

    def planned(self, total: int, settled: int) -> None:
        """See Listener."""
        self.open = total - settled
        print(planned_line(total, settled), file=self._out, flush=True)

    def started(self, number: int, spec: TrialSpec) -> None:
        """See Listener."""

    def finished(self, number: int, record: Record) -> None:
        """See Listener."""
        print(finished_line(number, self.open, record), file=self._out, flush=True)


class BarProgress:
    """A bar that names the running trial; finished trials scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self.open = 0

    def planned(self, total: int, settled: int) -> None:
        """See Listener."""
        self.open = total - settled
        self._console.print(planned_line(total, settled), markup=False, highlight=False)
        if self.open:
            self._task = self._progress.add_task("", total=self.open)
            self._progress.start()

    def started(self, number: int, spec: TrialSpec) -> None:
        """See Listener."""
        if self._task is not None:
            self._progress.update(self._task, description=escape(spec_text(spec)))

    def finished(self, number: int, record: Record) -> None:
        """See Listener."""
        line = finished_line(number, self.open, record)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._task is not None:
            self._progress.update(self._task, completed=number)
            if number == self.open:
                self.stop()

    def stop(self) -> None:
        """Take the bar away; also after an interrupt."""
        self._progress.stop()


class JsonProgress:
    """One JSON object a line: ``planned``, then ``finished`` with the record."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def planned(self, total: int, settled: int) -> None:
        """See Listener."""
        self.write({"event": "planned", "total": total, "settled": settled})

    def started(self, number: int, spec: TrialSpec) -> None:
        """See Listener."""

    def finished(self, number: int, record: Record) -> None:
        """See Listener."""
        self.write({"event": "finished", "number": number, "record": to_data(record)})

    def write(self, event: dict[str, Any]) -> None:
        """Write one event."""
        print(json.dumps(event, sort_keys=True), file=self._out, flush=True)


def progress(as_json: bool) -> PlainProgress | BarProgress | JsonProgress:
    """The one that fits stdout."""
    if as_json:
        return JsonProgress(sys.stdout)
    if sys.stdout.isatty():
        return BarProgress(Console(file=sys.stdout))
    return PlainProgress(sys.stdout)


def planned_line(total: int, settled: int) -> str:
    """How much there is to do."""
    return f"{total} trials, {settled} settled, {total - settled} to run"


def finished_line(number: int, of: int, record: Record) -> str:
    """One ASCII line about a finished trial; ``ms/step`` is the median over its n iterations."""
    width = len(str(of))
    head = f"[{number:>{width}}/{of}] {spec_text(record.spec)}: {record.outcome}"
    if record.failure is not None:
        rank = f" (rank {record.failure.rank})" if record.failure.rank is not None else ""
        text = f"{head} in {record.failure.phase}{rank}: {record.failure.cause}"
    elif record.timing is not None and record.timing.step_ms:
        steps = record.timing.step_ms
        text = f"{head} {statistics.median(steps):.3g} ms/step (n={len(steps)})"
    else:
        text = head
    return text.replace("\n", " ").encode("ascii", "backslashreplace").decode("ascii")


def spec_text(spec: TrialSpec) -> str:
    """A trial in a few words."""
    seed = f" s{spec.seed}" if spec.seed else ""
    return f"{spec.backend} {spec.workload} {spec.machine} {spec.strategy}{seed} r{spec.repeat}"
