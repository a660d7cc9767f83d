"""Turns Typer's usage errors into one line: what is wrong, what was probably meant, where the help is."""

import re
from typing import Any

from shardbench.base.closest import closest_name
from shardbench.cli.names import papers, suites

_NO_COMMAND = re.compile(r"No such command '(?P<name>.*?)'\.", flags=re.DOTALL)
_NO_CHOICE = re.compile(r"'(?P<name>[^']*)' is not one of (?P<known>'.*')\.?$", flags=re.DOTALL)


def usage_line(error: Any) -> str:
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
