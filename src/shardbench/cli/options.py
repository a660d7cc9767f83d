"""What the commands share: options, exit codes and ways to print."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130

ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of records, environments, tables and pages.")]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of data sets that you brought or prepared.")]
WorkOption = Annotated[
    Path | None, typer.Option("--work", help="Make job folders here and keep them; torchrun can run measured ones.")
]
PageOption = Annotated[bool, typer.Option("--page", help="Also write one self-contained HTML page.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]

DEFAULT_RESULTS = Path("runs")
DEFAULT_DATA = Path("data")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, sort_keys=True, indent=2, allow_nan=False))


def ascii_text(text: str) -> str:
    """The text with everything else than ASCII escaped."""
    return text.encode("ascii", "backslashreplace").decode("ascii")
