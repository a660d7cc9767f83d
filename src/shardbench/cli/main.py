"""The command line. Commands import what they need, so that ``shardbench list`` is quick."""

import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from shardbench.base.code import commit_here, differs
from shardbench.base.errors import ShardBenchError, one_line
from shardbench.base.generated import ascii_text
from shardbench.cli import export as leave
from shardbench.cli import record_commands, tools
from shardbench.cli import reproduce as reproduce_command
from shardbench.cli.claims import claims_command
from shardbench.cli.collect import collect_command
from shardbench.cli.compare import compare_command
from shardbench.cli.names import completing, say_left_out, strategy_names
from shardbench.cli.new import new_command
from shardbench.cli.options import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    JsonOption,
    print_json,
)
from shardbench.cli.plan import plan_command
from shardbench.cli.prepare import prepare_command
from shardbench.cli.profile import profile_command
from shardbench.cli.run import suite_command
from shardbench.cli.submission import check_submission_command
from shardbench.cli.usage import usage_line

# Typer carries its own copy of click in new versions and imports click in older ones; the class
# of all usage errors can be reached in both only through the one that Typer exports.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="shardbench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Listing(StrEnum):
    """What ``list`` can list."""

    STRATEGIES = "strategies"
    WORKLOADS = "workloads"
    MACHINES = "machines"
    SUITES = "suites"
    PAPERS = "papers"


def main(arguments: Sequence[str] | None = None) -> None:
    """Console script: runs a command and exits with its code; SIGTERM, SIGHUP and SIGQUIT interrupt like ctrl-C."""
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ending, signal.default_int_handler)
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code.

    0 done, 1 a check failed or a trial ended in ``error``, 2 bad input or usage, 130 interrupted;
    every error is one line on stderr.
    """
    try:
        result = app(list(arguments) or ["--help"], prog_name="shardbench", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        result = EXIT_INTERRUPTED
    except ShardBenchError as error:
        return _fail(str(error))
    except _USAGE_ERROR as error:
        return _fail(usage_line(error))
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}")
    if result == EXIT_INTERRUPTED:
        return _fail("interrupted; finished trials are recorded, the same command goes on from there", result)
    return result if isinstance(result, int) else EXIT_OK


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    commit = commit_here()
    clone = "" if commit is None else f", commit {commit[:12]}" + (", changed since" if differs() else "")
    print(f"shardbench {installed_version('shardbench')}{clone}")
    raise typer.Exit


@app.callback()
def shardbench(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, in a clone the commit too."
        ),
    ] = False,
) -> None:
    """Benchmark and reproduction suite for embedding-table sharding in DLRM training."""


@app.command("list")
def list_command(
    what: Annotated[Listing | None, typer.Argument(help="All five where left out.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List strategies, workloads, machines, suites and papers."""
    from shardbench.cli import listing  # noqa: PLC0415

    wanted = [what] if what else list(Listing)
    found = {kind.value: listing.LISTS[kind.value]() for kind in wanted}
    say_left_out()
    if as_json:
        print_json(found)
        return
    for kind, entries in found.items():
        if what is None:
            print(f"{kind}:")
        width = max((len(entry["name"]) for entry in entries), default=0)
        indent = "  " if what is None else ""
        for entry in entries:
            print(ascii_text(f"{indent}{entry['name'].ljust(width)}  {entry['description']}"))


@app.command("test")
def test_command(
    strategy: Annotated[str, typer.Argument(help="Name of a strategy.", autocompletion=completing(strategy_names))],
    as_json: JsonOption = False,
) -> int:
    """Run the conformance checks that every strategy must pass."""
    from shardbench.model.discovery import get_strategy  # noqa: PLC0415
    from shardbench.runs.conformance import CHECKS, ConformanceError, check  # noqa: PLC0415

    found = get_strategy(strategy)
    try:
        check(found)
    except ConformanceError as error:
        if as_json:
            print_json({"strategy": strategy, "passed": False, "check": error.check, "cause": str(error)})
        else:
            print(ascii_text(f"failed: {error}"), file=sys.stderr)
        return EXIT_FAILED
    if as_json:
        print_json({"strategy": strategy, "passed": True, "checks": list(CHECKS)})
    else:
        print(f"{strategy}: passes all {len(CHECKS)} checks")
    return EXIT_OK


app.command("run")(suite_command)
app.command("prepare")(prepare_command)
app.command("profile")(profile_command)
app.command("new")(new_command)
app.command("status")(record_commands.status_command)
app.command("report")(record_commands.report_command)
app.command("reproduce")(reproduce_command.reproduce_command)
app.command("claims")(claims_command)
app.command("explain")(tools.explain_command)
app.command("archive")(tools.archive_command)
app.command("doctor")(tools.doctor_command)
app.command("plan")(plan_command)
app.command("export")(leave.export_command)
app.command("collect")(collect_command)
app.command("check-submission")(check_submission_command)
app.command("compare")(compare_command)


def _fail(message: str, code: int = EXIT_BAD_INPUT) -> int:
    print(ascii_text(f"error: {one_line(message)}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
