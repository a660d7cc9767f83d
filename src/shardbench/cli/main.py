"""The command line. Commands import what they need only when they run, so that ``shardbench list`` is quick."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

from shardbench.base.atomic import no_room
from shardbench.base.closest import closest_name
from shardbench.base.code import commit_here, differs
from shardbench.base.deadline import interrupt
from shardbench.base.errors import ShardBenchError, described, one_line
from shardbench.base.generated import say
from shardbench.base.host import why_not_loaded
from shardbench.cli.names import papers, suites
from shardbench.cli.options import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK
from shardbench.engine.processes.failures import LEAST_BYTES, memory_limit_bytes, out_of_memory

# Typer carries its own copy of click in new versions and imports click in older ones; the class
# of all usage errors can be reached in both only through the one that Typer exports.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
_NO_COMMAND = re.compile(r"No such command '(?P<name>.*?)'\.", flags=re.DOTALL)
_NO_CHOICE = re.compile(r"'(?P<name>[^']*)' is not one of (?P<known>'.*')\.?$", flags=re.DOTALL)

COMMANDS = (
    "list", "plan", "drift", "export", "profile", "prepare", "run", "reproduce", "status", "report", "explain",
    "compare", "claims", "new", "test", "collect", "check-submission", "doctor",
)  # fmt: skip
"""Each is the function NAME_command of a module of its name, in the order in which the help lists them."""

app = typer.Typer(
    name="shardbench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; SIGTERM, SIGHUP and SIGQUIT interrupt like ctrl-C."""
    _open_standard_streams()
    # A shell has its background jobs ignore ctrl-C.
    ctrl_c = (signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()
    for stop_signal in (*ctrl_c, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(stop_signal, interrupt)
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _fail(_not_written(error)) if code != EXIT_BAD_INPUT else code
        # Python flushes once more, and would complain of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_standard_streams() -> None:
    """Open what a caller closed of stdin, stdout and stderr, or files that are opened later stand in their places."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    # For the process's whole life.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _raised_by(error: BaseException) -> str:
    """Return the name of the package that raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")).partition(".")[0]


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code.

    0 done, 1 a check failed or a trial ended in ``error``, 2 bad input or usage, 130 interrupted;
    every error is one line on stderr.
    """
    limit_bytes = memory_limit_bytes()
    if limit_bytes is not None and limit_bytes < LEAST_BYTES:
        return _fail(_out_of_memory())
    try:
        result = app(list(arguments) or ["--help"], prog_name="shardbench", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        result = EXIT_INTERRUPTED
    except ShardBenchError as error:
        return _fail(str(error))
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            # The module rich leaves so.
            return _fail(_not_written(error.__context__))
        if _raised_by(error) == "typer":
            # It has answered a shell that asked for completions.
            return int(error.code or 0)
        return _fail(f"a plug-in ended the program by {described(error)}")
    except _USAGE_ERROR as error:
        return _fail(_usage_line(error))
    except ModuleNotFoundError as error:
        from shardbench.trials.jobcheck import ENGINE  # noqa: PLC0415

        if error.name not in ENGINE:
            raise
        return _fail(
            f"this needs {error.name}, not installed here: run it in the environment that your trainer runs in"
        )
    except (MemoryError, ImportError) as error:
        if not out_of_memory(error):
            raise
        return _fail(_out_of_memory())
    except RecursionError:
        # What is read of files is bounded: it is folders that nest so.
        return _fail("a folder is nested too deeply: give one that is nested in fewer than 500")
    except OSError as error:
        unloaded = why_not_loaded(error)
        if unloaded:
            return _fail(unloaded)
        if error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror}")
        if no_room(error) or isinstance(error, BrokenPipeError):
            return _fail(_not_written(error))
        raise
    if result == EXIT_INTERRUPTED:
        return _fail("interrupted; finished trials are recorded, the same command goes on from there", result)
    return result if isinstance(result, int) else EXIT_OK


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    commit = commit_here()
    clone = "" if commit is None else f", commit {commit[:12]}" + (", changed since" if differs() else "")
    say(f"shardbench {installed_version('shardbench')}{clone}")
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


for name in COMMANDS:
    module = name.replace("-", "_")
    app.command(name)(getattr(import_module(f"shardbench.cli.{module}"), f"{module}_command"))


def _out_of_memory() -> str:
    limit = memory_limit_bytes()
    remedy = "free some" if limit is None else f"{limit >> 20} MiB are the limit: raise it (ulimit -v, ulimit -d)"
    return f"out of memory: {remedy}, or lower batch_size, profile_samples, rows or dim"


def _not_written(error: OSError) -> str:
    """Say that the system took no more of what has no name here: the output, or a file that a library writes."""
    hint = (
        "what reads the output has ended"
        if isinstance(error, BrokenPipeError)
        else ("make room where the output, results, data and temporary files (TMPDIR) go; what is recorded stays")
    )
    return f"{error.strerror}: {hint}"


def _fail(message: str, code: int = EXIT_BAD_INPUT) -> int:
    say(f"error: {one_line(message)}", sys.stderr)
    return code


def _usage_line(error: Any) -> str:
    """Make the line about an error of Typer's that has ``format_message()``."""
    message: str = error.format_message().replace("Value error, ", "")
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "shardbench"
    if unknown := _NO_COMMAND.search(message):
        message = _no_command(unknown["name"], list(context.command.commands))
    elif hasattr(error, "possibilities"):
        message = _no_option(error)
    elif choice := _NO_CHOICE.search(message):
        near = closest_name(choice["name"], re.findall(r"'([^']*)'", choice["known"]))
        message = f"{message.rstrip('.')}{_perhaps(near)}"
    return f"{message} (see: {path} --help)"


def _no_command(name: str, commands: list[str]) -> str:
    for verb, names in (("run", suites()), ("reproduce", papers())):
        if name in names:
            return f"No such command '{name}'; did you mean: shardbench {verb} {name}?"
    return f"No such command '{name}'{_perhaps(closest_name(name, commands))}"


def _no_option(error: Any) -> str:
    """Say which other command has that very option, or which option of this command was probably meant."""
    name = str(error.option_name)
    commands = error.ctx.find_root().command.commands
    owners = [
        verb
        for verb, command in commands.items()
        if any(name in (*option.opts, *option.secondary_opts) for option in command.params)
    ]
    message = f"No such option: {name}"
    if owners:
        return f"{message}; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
    return message + _perhaps(next(iter(error.possibilities or ()), None))


def _perhaps(near: str | None) -> str:
    return f"; did you mean '{near}'?" if near else ""
