"""The options, exit codes and ways to print that commands share."""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from shardbench.base.generated import say
from shardbench.cli.names import papers, retry_words, strategy_names, suites, suites_and_papers
from shardbench.model.table import MAX_SEED, Optimizer, Precision, StepSchedule
from shardbench.records.base_record import BaseRecord
from shardbench.records.trial import Backend
from shardbench.trials.cluster import Engine

MOST_S = 604_800.0
"""The longest that anything is given, a week."""
MAX_WORKERS = 1024
COLUMNS = 79
"""Width of lines where stdout is no terminal."""


def seconds(duration_s: float | None) -> float | None:
    """Return seconds as given; raises a usage error for what is no number, or longer than a week."""
    if duration_s is not None and not duration_s <= MOST_S:
        raise typer.BadParameter(f"{duration_s} is no number of seconds up to {MOST_S:g}, a week")
    return duration_s


EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

PrecisionOption = Annotated[Precision, typer.Option("--precision", help="Precision of the weights.")]
OptimizerOption = Annotated[
    Optimizer, typer.Option("--optimizer", help="Optimizer of the tables; its state takes memory and moves with rows.")
]
ExchangeOption = Annotated[
    Precision, typer.Option("--exchange", help="Number format in which vectors and their gradients are sent.")
]
ScheduleOption = Annotated[
    StepSchedule, typer.Option("--schedule", help="Whether the next batch's lookups are sent beside a step.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of strategies that draw at random.")]
BudgetOption = Annotated[
    float,
    typer.Option("--budget", min=0.01, callback=seconds, help="Seconds that the answer may take."),
]
ConstraintsOption = Annotated[
    Path | None, typer.Option("--constraints", help="A .toml file that says what the plan must keep.")
]
SuiteArgument = Annotated[str, typer.Argument(help="Name of a suite, or path of a .toml file.", autocompletion=suites)]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a suite or of a paper's baseline, or path of a suite's .toml file.",
        autocompletion=suites_and_papers,
    ),
]
PaperArgument = Annotated[
    str,
    typer.Argument(help="Name of a paper's baseline (see: shardbench list papers).", autocompletion=papers),
]
BackendOption = Annotated[Backend | None, typer.Option("--backend", help="Take only trials of this backend.")]
StrategiesOption = Annotated[
    list[str] | None,
    typer.Option("--strategy", help="Take only this strategy; repeatable.", autocompletion=strategy_names),
]
SeedsOption = Annotated[
    list[int] | None,
    typer.Option("--seed", min=0, max=MAX_SEED, help="Use this seed instead of the suite's; repeatable."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Run again what is settled; its old records stay.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Delete the records of all that is chosen first, then make them again.")
]
OutdatedOption = Annotated[
    bool, typer.Option("--outdated", help="Delete first what is of older versions; an interrupted run so goes on.")
]
RetryOption = Annotated[
    str,
    typer.Option(
        "--retry",
        help="Run again what ended so, such as oom,timeout; failed: all but ok.",
        autocompletion=retry_words,
    ),
]
BusyOption = Annotated[
    bool, typer.Option("--busy-ok", help="Measure a suite that wants a quiet machine on a busy one too.")
]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of records, environments, tables and pages.")]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of data sets that you brought or prepared.")]
WorkOption = Annotated[
    Path | None,
    typer.Option("--work", help="Make job folders here and keep them; torchrun can run measured ones."),
]
NoLaunchOption = Annotated[
    bool, typer.Option("--no-launch", help="With --work: make the folders of measured trials but start no ranks.")
]
ParallelOption = Annotated[
    int,
    typer.Option(
        "--parallel",
        min=0,
        max=MAX_WORKERS,
        help="Simulated trials and cells to run at once; 0: one a core. What is timed runs alone.",
    ),
]
ClusterOption = Annotated[
    Engine | None, typer.Option("--cluster", help="Run simulated trials and cells as jobs, --parallel of them at once.")
]
ClusterOptions = Annotated[
    list[str] | None,
    typer.Option("--cluster-option", help="NAME=VALUE for submitit, such as timeout_min=60; repeatable."),
]
PageOption = Annotated[bool, typer.Option("--page", help="Also write one self-contained HTML page.")]
TablesOption = Annotated[bool, typer.Option("--tables", help="Also print the tables, as shardbench report does.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]

DEFAULT_RESULTS = Path("runs")
DEFAULT_DATA = Path("data")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, sort_keys=True, indent=2, allow_nan=False))


def tell(data: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command found on stdout: its data as JSON for programs, or the lines in ASCII for people."""
    if as_json:
        print_json(data)
        return
    for line in lines:
        say(line)


def line_width(elsewhere: int = COLUMNS) -> int:
    """Return how wide lines on stdout may be: a column less than its terminal has, ``elsewhere`` where it is none."""
    return max(20, get_terminal_size().columns - 1) if sys.stdout.isatty() else elsewhere


def wrapped(line: str) -> list[str]:
    """Return a line as lines that stdout has room for; an empty one stays."""
    return textwrap.wrap(line, line_width(), subsequent_indent="    ") or [""]


def tell_differences(name: str, differences: Sequence[str], *, as_json: bool, **data: str) -> int:
    """Print the differences between files and records that ``--check`` found, and give the exit code."""
    tell({**data, "differences": differences}, differences or [f"{name}: tables and records agree"], as_json=as_json)
    return EXIT_FAILED if differences else EXIT_OK


def failure_lines(records: Iterable[BaseRecord], results: Path) -> list[str]:
    """Give a line a record that failed: what it is of, why it failed, and where its log lies."""
    lines = []
    for record in records:
        if record.cause:
            log = results / "logs" / f"{record.key}.log"
            place = f" (log: {log})" if log.is_file() else ""
            lines.append(f"failed: {record.summary}{place}")
    return lines
