"""Command lines in a Python of their own, several in one: imports take most of the time of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

ONE_JUDGE = "from shardbench.cli import run, reproduce; run.second_judge = reproduce.second_judge = lambda: None"
"""Python that leaves TorchRec's judgement of plans out, whose imports take as long as all else; test_two_judges.py."""
PROGRAM = """
import contextlib, io, json, sys
from shardbench.cli.main import run_command
exec(sys.argv[2])
said = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = run_command(arguments)
    assert code == 0, (arguments, code)
    said.append(out.getvalue())
print(json.dumps(said))
"""


def beside(*folders: Path) -> dict[str, str]:
    """The environment in which packages of these folders are found as well."""
    places = filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def said_by(
    environment: dict[str, str],
    *commands: list[str],
    cwd: Path | None = None,
    timeout_s: float = 240.0,
    options: tuple[str, ...] = (),
    first: str = "",
) -> list[str]:
    """What each of the commands prints, one after the other in one fresh process; all must end with 0.

    ``options`` are Python's; ``first`` is Python that it runs before the commands.
    """
    program = [sys.executable, *options, "-c", PROGRAM, json.dumps(commands), first]
    done = subprocess.run(
        program, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout)
    return said
