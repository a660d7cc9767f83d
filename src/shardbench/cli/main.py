"""The command line. Commands import what they need, so that ``shardbench list`` is quick."""

import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from shardbench.base.errors import BadInput, ShardBenchError
from shardbench.base.generated import ascii_text
from shardbench.cli import leave, record_commands, tools
from shardbench.cli import reproduce as reproduce_command
from shardbench.cli.claims import claims_command
from shardbench.cli.new import new_command
from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    BackendOption,
    DataOption,
    JsonOption,
    PageOption,
    ResultsOption,
    SeedsOption,
    StrategiesOption,
    SuiteArgument,
    WorkOption,
    failure_lines,
    print_json,
)
from shardbench.cli.plan import plan_command
from shardbench.cli.prepare import prepare_command
from shardbench.cli.profile import profile_command
from shardbench.cli.record_commands import outcome_counts, print_report
from shardbench.records.trial import Outcome

# Typer carries its own copy of click in new versions and imports click in older ones; the class
# of all usage errors can be reached in both only through the one that Typer exports.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="shardbench",
    help="Benchmark and reproduction suite for embedding-table sharding in DLRM training.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Listing(StrEnum):
    """What ``list`` can list."""

    STRATEGIES = "strategies"
    WORKLOADS = "workloads"
    MACHINES = "machines"
    SUITES = "suites"


def main(arguments: Sequence[str] | None = None) -> None:
    """Console script: runs a command and exits with its code; SIGTERM interrupts like ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
        message: str = error.format_message()  # type: ignore[attr-defined]
        return _fail(f"{message.replace('Value error, ', '')} (see: shardbench --help)")
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}")
    if result == EXIT_INTERRUPTED:
        return _fail("interrupted; finished trials are recorded, the same command goes on from there", result)
    return result if isinstance(result, int) else EXIT_OK


@app.command("list")
def list_command(
    what: Annotated[Listing | None, typer.Argument(help="All four where left out.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List strategies, workloads, machines and suites."""
    from shardbench.cli import listing  # noqa: PLC0415

    wanted = [what] if what else list(Listing)
    found = {kind.value: listing.LISTS[kind.value]() for kind in wanted}
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


@app.command()
def run(
    suite: SuiteArgument,
    *,
    backend: BackendOption = None,
    strategy: StrategiesOption = None,
    seed: SeedsOption = None,
    data: DataOption = DEFAULT_DATA,
    results: ResultsOption = DEFAULT_RESULTS,
    force: Annotated[bool, typer.Option("--force", help="Run settled trials again.")] = False,
    retry: Annotated[str, typer.Option("--retry", help="Outcomes to run again, such as oom,timeout.")] = "",
    work: WorkOption = None,
    page: PageOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run what is open of a suite, then write its tables; a failed trial is recorded and the run goes on."""
    from shardbench.cli.progress import JsonProgress, progress  # noqa: PLC0415
    from shardbench.runs.runner import RunOptions, run_suite  # noqa: PLC0415
    from shardbench.runs.suite import load_suite  # noqa: PLC0415

    loaded = load_suite(suite)
    options = RunOptions(
        results=results,
        data=data,
        backend=backend,
        strategies=tuple(strategy or ()),
        seeds=tuple(seed or ()),
        force=force,
        retry=_outcomes(retry),
        work=work,
    )
    with progress(as_json) as listener:
        records = run_suite(loaded, options, listener)
    if not records:
        raise BadInput(f"suite {loaded.name} has no trial for this selection of backend, strategies and seeds")

    from shardbench.report.files import write_tables  # noqa: PLC0415

    written = write_tables(results, loaded.name)
    if page:
        from shardbench.studies.files import write_suite_page  # noqa: PLC0415

        written.append(write_suite_page(results, loaded.name))
    counts = outcome_counts(records)
    if isinstance(listener, JsonProgress):
        listener.write({"event": "done", "outcomes": counts, "tables": [str(path) for path in written]})
    else:
        print_report(results, loaded.name)
        if page:
            print(f"page: {written[-1]}")
        for line in failure_lines(records, results):
            print(line)
        print(_summary(len(records), counts))
    return EXIT_FAILED if counts.get(Outcome.ERROR) else EXIT_OK


@app.command("test")
def test_command(
    strategy: Annotated[str, typer.Argument(help="Name of a strategy.")], as_json: JsonOption = False
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


def _outcomes(text: str) -> frozenset[Outcome]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [outcome.value for outcome in Outcome]
    for name in names:
        if name not in known:
            raise BadInput(f"--retry: unknown outcome '{name}'; known: {', '.join(known)}")
    return frozenset(Outcome(name) for name in names)


def _summary(total: int, counts: dict[str, int]) -> str:
    failed = ", ".join(f"{number} {name}" for name, number in counts.items() if name != Outcome.OK)
    return f"{total} trials: {counts.get(Outcome.OK, 0)} ok" + (f"; not ok: {failed}" if failed else "")


def _fail(message: str, code: int = EXIT_BAD_INPUT) -> int:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    print(ascii_text(f"error: {' '.join(lines)}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
