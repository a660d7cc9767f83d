"""How studies are shown while they run, and how claims are printed."""

import sys
import textwrap
from typing import TextIO

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from shardbench.studies.files import cell_text
from shardbench.studies.study_store import StudyRecord


class PlainStudies:
    """One ASCII line per finished cell."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._name = ""

    def study(self, name: str, cells: int, settled: int) -> None:
        """See StudyListener."""
        self._name = name
        print(f"study {name}: {cells} cells, {settled} on record, {cells - settled} to run", file=self._out, flush=True)

    def cell(self, number: int, of: int, record: StudyRecord) -> None:
        """See StudyListener."""
        print(cell_line(number, of, record), file=self._out, flush=True)

    def stop(self) -> None:
        """Nothing to take away."""


class BarStudies(PlainStudies):
    """The same lines, scrolling by above a bar."""

    def __init__(self, console: Console) -> None:
        super().__init__(sys.stdout)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def study(self, name: str, cells: int, settled: int) -> None:
        """See StudyListener."""
        line = f"study {name}: {cells} cells, {settled} on record, {cells - settled} to run"
        self._console.print(line, markup=False, highlight=False)
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=cells - settled) if cells > settled else None
        self._progress.start()

    def cell(self, number: int, of: int, record: StudyRecord) -> None:
        """See StudyListener."""
        self._console.print(cell_line(number, of, record), markup=False, highlight=False, soft_wrap=True)
        if self._task is not None:
            self._progress.update(self._task, completed=number)

    def stop(self) -> None:
        """Take the bar away; also after an interrupt."""
        self._progress.stop()


def studies_listener() -> PlainStudies:
    """The one that fits stdout."""
    return BarStudies(Console(file=sys.stdout)) if sys.stdout.isatty() else PlainStudies(sys.stdout)


def cell_line(number: int, of: int, record: StudyRecord) -> str:
    """One ASCII line about a finished cell."""
    cell = " ".join(f"{name}={cell_text(value)}" for name, value in record.cell.items())
    outcome = f"failed: {record.failure}" if record.failure else f"{len(record.rows)} rows"
    return f"[{number:>{len(str(of))}}/{of}] {record.study} {cell}: {outcome} ({record.wall_s:.1f} s)"


def claims_text(frame: pd.DataFrame) -> str:
    """The claims as aligned ASCII, each with what it says and how ours is defined."""
    lines = ["Claims: the paper's number, ours with its 95 % interval over n conditions, and the verdict"]
    for row in frame.to_dict("records"):
        paper = f"{row['relation']} {cell_text(row['paper'])} {row['unit']}" if row["sourced"] else "not sourced"
        ours = "no number"
        if row["n"]:
            interval = f"{_short(row['low'])} to {_short(row['high'])}, " if row["n"] > 1 else ""
            ours = f"{_short(row['ours'])} {row['unit']} ({interval}n={row['n']})"
        lines.append(f"  {row['claim']}: paper {paper}; ours {ours}: {row['verdict']}")
        for text in (row["statement"], f"Ours: {row['definition']} {row['conditions']}"):
            lines += textwrap.wrap(cell_text(text), 116, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:.3g}"
