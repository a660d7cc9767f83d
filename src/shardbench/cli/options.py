"""What the commands share: options, exit codes and ways to print."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.generated import ascii_text
from shardbench.cli.names import completing, papers, retried, strategy_names, suites, suites_and_papers
from shardbench.records.trial import Backend
from shardbench.runs.cluster import Engine

if TYPE_CHECKING:
    from shardbench.records.base_record import BaseRecord

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

SuiteArgument = Annotated[
    str, typer.Argument(help="Name of a suite, or the path of a .toml file.", autocompletion=completing(suites))
]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="A suite (or the path of a .toml file), or a baseline with studies.",
        autocompletion=completing(suites_and_papers),
    ),
]
PaperArgument = Annotated[
    str,
    typer.Argument(help="A baseline with studies or claims (see: shardbench list).", autocompletion=completing(papers)),
]
BackendOption = Annotated[Backend | None, typer.Option("--backend", help="Only trials of this backend.")]
StrategiesOption = Annotated[
    list[str] | None,
    typer.Option("--strategy", help="Only this strategy; repeatable.", autocompletion=completing(strategy_names)),
]
SeedsOption = Annotated[
    list[int] | None, typer.Option("--seed", min=0, help="These seeds, not the suite's; repeatable.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Run again what is settled.")]
RetryOption = Annotated[
    str,
    typer.Option(
        "--retry",
        help="Outcomes to run again, such as oom,timeout; failed: all but ok.",
        autocompletion=completing(retried),
    ),
]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of records, environments, tables and pages.")]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of data sets that you brought or prepared.")]
WorkOption = Annotated[
    Path | None, typer.Option("--work", help="Make job folders here and keep them; torchrun can run measured ones.")
]
NoLaunchOption = Annotated[
    bool, typer.Option("--no-launch", help="With --work: make measured trials' folders, start no ranks.")
]
ParallelOption = Annotated[
    int, typer.Option("--parallel", min=0, help="Simulated trials at once, measured ones run alone; 0: one a core.")
]
ClusterOption = Annotated[
    Engine | None, typer.Option("--cluster", help="Run simulated trials as jobs, --parallel of them at once.")
]
ClusterOptions = Annotated[
    list[str] | None,
    typer.Option("--cluster-option", help="NAME=VALUE for submitit, such as timeout_min=60; repeatable."),
]
PageOption = Annotated[bool, typer.Option("--page", help="Also write one self-contained HTML page.")]
TablesOption = Annotated[bool, typer.Option("--tables", help="Also print the tables, as shardbench report does.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]

DEFAULT_RESULTS = Path("runs")
DEFAULT_DATA = Path("data")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, sort_keys=True, indent=2, allow_nan=False))


def failure_lines(records: "Iterable[BaseRecord]", results: Path) -> list[str]:
    """One line a record that failed: what, why, and where its log lies."""
    lines = []
    for record in records:
        if record.cause:
            log = results / "logs" / f"{record.key}.log"
            where = f" (log: {log})" if log.is_file() else ""
            lines.append(ascii_text(f"failed: {record.summary}{where}"))
    return lines
