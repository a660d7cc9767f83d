"""What records, plans and files say reaches no terminal and no page as what these obey."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest
import records as make

from shardbench.base.generated import visible
from shardbench.cli import main as cli
from shardbench.records.record import Record
from shardbench.trials import runner

OBEYED = "\x1b[2J\x9b31m\u202e\x07"
"""What clears a screen, colours it, turns text around and rings."""
SHOWN = r"\x1b[2J\x9b31m\u202e\x07"
PRINTS = {"base/generated.py": 1, "cli/options.py": 1}
"""What prints without ``say``: itself, JSON, which is ASCII, and a count of rows, which has nobody's text in it."""


def hostile() -> list[Record]:
    good, bad = make.ok("greedy-size"), make.failed(rank=None, strategy="shuffle")
    failure = bad.failure.model_copy(update={"cause": f"no {OBEYED} room", "phase": OBEYED})
    return [good, bad.model_copy(update={"failure": failure})]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("command", ["report quick --page", "run quick --tables --page"])
def test_what_records_say_is_shown_and_never_obeyed(capsys, monkeypatch, tmp_path, command, terminal):
    make.kept(tmp_path, *hostile())
    monkeypatch.setattr(runner, "run_suite", lambda *_: hostile())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "dumb")
    cli.run_command([*command.split(), "--results", str(tmp_path)])
    said = capsys.readouterr()
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.glob("pages/*")]
    assert SHOWN in " ".join([said.out, said.err, *pages])
    for text in (said.out, said.err, *pages):
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(text)


def test_plain_text_stays_as_it_is():
    assert visible("a\tb\n20 \u2264 30, caf\u00e9") == "a\tb\n20 \u2264 30, caf\u00e9"
    assert visible("\u2066\ud800\x00") == r"\u2066\ud800\x00"


def test_what_is_printed_goes_one_way():
    root = Path(cli.__file__).parents[1]
    found = Counter(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    )
    assert found == PRINTS
