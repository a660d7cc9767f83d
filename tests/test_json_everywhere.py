"""What commands say: ``--json`` in each, and nothing that a terminal or a page obeys."""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import records as make
from two_days import write_days

from shardbench.base.generated import visible
from shardbench.cli import main as cli
from shardbench.conformance import checks as conformance
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.table import Table
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.record import Record
from shardbench.records.store import cell_store
from shardbench.studies import definitions, session
from shardbench.trials import runner
from shardbench.trials.measured_trial import TRIAL

COMMANDS = [str(command.name) for command in cli.app.registered_commands]
SUITE = """
name = "tiny"
description = "for the walk over all commands"
[[workloads]]
name = "drawn"
dataset = "synthetic"
batch_size = 4096
[[grids]]
machines = ["cpu-1x2"]
backends = ["simulated"]
iterations = 1
strategies = ["greedy-size"]
"""
CALLS: dict[str, list[str]] = {
    "list": ["list"],
    "test": ["test greedy-size"],
    "run": ["run tiny.toml", "run tiny.toml --fresh"],
    "status": ["status tiny.toml", "status recshard"],
    "report": [
        "report quick --results known",
        "report quick --results known --check",
        "report quick --results known --latex paper",
        "report prediction --results known",
        "report prediction --results known --check",
    ],
    "reproduce": ["reproduce recshard --study solve --quick --parallel 1"],
    "claims": ["claims recshard --define", "claims --check"],
    "explain": ["explain quick/dlrm20/cpu-1x2/measured/greedy-size quick/dlrm20/cpu-1x2/measured/row --results known"],
    "doctor": ["doctor"],
    "plan": ["plan tables.csv cpu-1x2 --batch-size 64 --strategy greedy-size"],
    "drift": ["drift plan.json newer --profile older --machine cpu-1x2 --batch-size 64 --strategy greedy-size"],
    "export": ["export plan.json"],
    "prepare": ["prepare criteo_kaggle dac.txt kaggle --rows 50"],
    "profile": ["profile log.csv --out mine"],
    "new": ["new my-own --package"],
    "collect": ["collect kept"],
    "check-submission": ["check-submission board"],
    "compare": ["compare known --with again", "compare known --with again --order quick"],
}
"""Every command, in every form that prints something else; run in the folder that ``workplace`` fills."""
FAILS = {
    "report quick --results known --check", "report prediction --results known --check", "claims --check",
    "collect kept", "check-submission board",
}  # fmt: skip
"""Those whose check fails there, which is said in JSON as well."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make.kept(tmp_path / "known", *make.sample(), make.ok("row", (40.0, 41.0)))
    make.kept(tmp_path / "again", make.ok("row", (50.0, 51.0)))
    asked = {"version": 1, "workload": "none", "machine": "none", "strategy": "shuffle", "effort": "timed"}
    failed = CellRecord(
        key=cell_key("steps", 1, asked), environment="e" * 16, study="steps", version=1, cell=asked, wall_s=1.0,
        cpu_s=1.0, failure="no such problem",
    )  # fmt: skip
    cell_store(tmp_path / "board", "leaderboard", "steps").append(failed)
    Path("tiny.toml").write_text(SUITE)
    Path("tables.csv").write_text("name,rows,dim\na,1000,64\nb,2000,64\n")
    Path("log.csv").write_text("user,item\n" + "".join(f"{i % 7},{i % 11}\n" for i in range(100)))
    Path("dac.txt").write_text("\t".join(["1"] * 14 + ["00ff00ff"] * 26) + "\n" + "\t".join(["0"] * 40) + "\n")
    tables = [Table(name="a", rows=10, dim=8), Table(name="b", rows=10, dim=8)]
    Path("plan.json").write_text(Plan(world_size=2, segments=whole_tables(tables, [0, 1])).to_json())
    for folder in ("older", "newer"):
        write_days(tmp_path, folder=folder, days=(0,), rows={"a": 10, "b": 10}, dim=8)
    (Path("kept") / "job" / "trial").mkdir(parents=True)
    (Path("kept") / "job" / "trial" / TRIAL).write_text("not a trial")
    # What checks and cells give is not the matter here.
    monkeypatch.setattr(conformance, "check", lambda _: None)
    monkeypatch.setattr(session, "run_studies", lambda *_: [])
    monkeypatch.setattr(definitions, "define", lambda *_: ["memory"])
    return tmp_path


def test_every_command_is_called_here() -> None:
    assert sorted(CALLS) == sorted(COMMANDS), "say here how a new command is called"


@pytest.mark.parametrize("line", [line for lines in CALLS.values() for line in lines])
def test_stdout_is_json_and_nothing_else(line: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run_command([*line.split(), "--json"])
    printed = capsys.readouterr()
    # What a machine is fit for is its own matter.
    assert code == (1 if line in FAILS else 0) or (line == "doctor" and code == 1), printed.err
    assert printed.out.isascii()
    assert printed.out.endswith("\n")
    streams = line.split(maxsplit=1)[0] in {"run", "reproduce"}
    documents = [json.loads(text) for text in (printed.out.splitlines() if streams else [printed.out])]
    assert documents
    assert all(isinstance(document, dict) for document in documents)
    if streams:
        assert documents[-1]["event"] == "done"


@pytest.mark.parametrize("line", ["run nosuch", "report nosuch", "explain a b", "plan nosuch cpu-1x2", "new quick--"])
def test_a_refusal_leaves_stdout_empty(line: str, workplace: Path, command) -> None:
    command(*line.split(), "--json", code=2)


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
