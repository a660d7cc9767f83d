"""Random command lines on small files of all kinds, right and wrong ones, and wrong files that are planned."""

import contextlib
import io
import json
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import data_files
import mutations
import records
import typer.main
from parser import Parser, in_folder, words
from toy_machine import machine_file

from shardbench.base.errors import BadInput
from shardbench.cli.main import app, run_command
from shardbench.records.store import trial_store

SUITE = """
name = "mine"
description = "made up"
seeds = [0, 1]
[[workloads]]
dataset = "described"
name = "w"
batch_size = 32
test_batches = 1
profile_samples = 64
seed = 1
dense = { features = 13, bottom = [64], top = [32, 1] }
[[workloads.tables]]
name = "a"
rows = 100
dim = 16
pooling = 3.5
coverage = 0.9
alpha = 1.2
shift = 2.0
pooled = true
features = 2
seen_rows = 10
[[workloads.tables]]
name = "b"
rows = 1000
[[grids]]
machines = ["a100-40gb-2x8"]
backends = ["simulated"]
strategies = ["shuffle"]
iterations = 2
warmup = 1
plan_s = 3.0
timeout_s = 9.0
"""
KEPT = """
same_node = [["a", "b"]]
reserved_bytes = 10
[sharding_types]
a = ["table_wise", "row_wise"]
[tiers]
b = ["hbm"]
"""
QUICK = ("--strategy", "shuffle", "--budget", "0.05")
"""Of commands that plan: what they do is not the matter here."""
STARTING = (
    "conformance.checks.check",
    "trials.runner.run_suite",
    "studies.session.run_studies",
)
"""What starts trials, and takes minutes: it finds nothing here."""
KEPT_OUT = ("define", "again", "calibrate")
"""What writes into the project, or measures this machine."""
ODD = (
    "", "0", "-1", "nan", "inf", "1e309", "9" * 400, "18446744073709551616", "0.5", "x" * 5_000, "\x1b[2J\x9b",
    "\u202e", "a\nb", "\udcff", "/dev/null", "/proc/self/mem", "/proc/x", ".", "-", "--", "d/" * 1_500, "None", "true",
    "[]", "{}", "quick", "w", "a,b", "oom,failed", "x=1",
)  # fmt: skip
FILES = (
    "t.csv", "s.toml", "m.toml", "kept.toml", "plan.json", "log.csv", "prepared", "results", "bad.bin", "empty.csv",
    "none.toml", "none", "nan.csv", "twice.csv", "deep",
)  # fmt: skip
FITTING = {
    "tables": "t.csv", "machine": "a100-40gb-2x8", "suite": "s.toml", "name": "quick", "plan": "plan.json",
    "newer": "prepared", "older": "prepared", "profile": "prepared", "constraints": "kept.toml", "results": "results",
    "logs": "log.csv", "log": "log.csv", "paper": "recshard", "strategy": "shuffle", "folder": "results",
    "batch_size": "32", "out": "out", "work": "none", "columns": "user,item", "first": "results", "second": "results",
    "backend": "simulated", "precision": "fp16", "optimizer": "adam", "exchange": "bf16", "schedule": "pipelined",
    "mode": "ids", "retry": "oom", "against": "plan.json", "time": "time", "race": "out", "seed": "3", "workload": "w",
}  # fmt: skip


def _fill(folder: Path) -> list[bytes]:
    """Make the files that command lines name, and give the first command line."""
    machine = Path(machine_file(folder))
    texts = {
        "t.csv": "name,rows,dim\na,100,16\nb,1000,\n", "s.toml": SUITE, "m.toml": machine.read_text(),
        "kept.toml": KEPT, "empty.csv": "", "nan.csv": "name,rows\na,nan\n", "twice.csv": "name,rows,rows\na,1,2\n",
    }  # fmt: skip
    data_files._prepared(folder)
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "bad.bin").write_bytes(Random(0).randbytes(500))
    for record in records.sample():
        trial_store(folder / "results", "quick").append(record)
    deep = folder / "deep"
    for _ in range(60):
        deep.mkdir()
        deep /= "d" * 20
    with _quiet(), in_folder(folder):
        assert run_command(["plan", "t.csv", "a100-40gb-2x8", *QUICK, "--out", "plan.json"]) == 0
    return [json.dumps(["list"]).encode()]


def _lines(_: bytes, random: Random) -> bytes:
    """A command of those that there are, with some of its arguments and options, mostly of a kind that fits."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name = random.choice(sorted(commands))
    line = [name]
    for parameter in commands[name].params:
        given = parameter.param_type_name == "argument"
        if not given and (random.random() < 0.75 or parameter.name in KEPT_OUT):
            continue
        if not given:
            line.append(random.choice(parameter.opts))
        if given or not getattr(parameter, "is_flag", False):
            line.append(_value(parameter, random))
    if random.random() < 0.1:
        line.insert(random.randrange(len(line) + 1), random.choice((*ODD, "--nosuch", "--json", "--help")))
    # A new strategy without a package of its own is one of the project's.
    always = {"plan": QUICK, "drift": QUICK, "new": ("--package",)}
    return json.dumps([*line, *always.get(name, ())]).encode()


def _value(parameter: Any, random: Random) -> str:
    how = random.random()
    if how < 0.6 and parameter.name in FITTING:
        return FITTING[parameter.name]
    return random.choice(FILES if how < 0.8 else ODD)


@contextlib.contextmanager
def _quiet() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def _run(path: Path) -> object:
    line = json.loads(path.read_bytes())
    # An exit of its own would be no code.
    return _ended(line, path.parent)


def _ended(line: list[str], folder: Path) -> None:
    """Run a command line; raises BadInput with its error line, AssertionError where it ends in another way."""
    before = {path.name for path in folder.iterdir()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # Of torch's, where a command is the first that imports some of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for name in STARTING:
            stack.enter_context(mock.patch(f"shardbench.{name}", lambda *_, **__: []))
        stack.enter_context(in_folder(folder))
        out, err = stack.enter_context(_quiet())
        code = run_command(line)
    new = [path for path in folder.iterdir() if path.name not in before]
    half = [path.name for path in new if path.name.startswith(".")]
    for one in new:
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    said = [text for text in err.getvalue().splitlines() if not text.startswith(("left out:", "failed:", "cannot:"))]
    if code not in (0, 1, 2) or half or {"\x1b", "\x9b", "\u202e"} & set(out.getvalue() + err.getvalue()):
        raise AssertionError(f"{line} ended with {code}, left {half}, said {said[:2]}")
    if code == 2:
        if len(said) != 1 or not said[0].startswith("error: "):
            raise AssertionError(f"{line} ended with 2 and {len(said)} lines: {said[:2]}")
        raise BadInput(said[0])


def _planned(*line: str) -> Callable[[Path], object]:
    return lambda path: _ended(["plan", *line, *QUICK], path.parent)


def _suite(folder: Path) -> list[bytes]:
    (folder / "t.toml").write_bytes(mutations.toml_bytes(tomllib.loads(SUITE)))
    return [SUITE.encode()]


def _machine(folder: Path) -> list[bytes]:
    _suite(folder)
    return [Path(machine_file(folder)).read_bytes()]


def _kept(folder: Path) -> list[bytes]:
    _suite(folder)
    return [KEPT.encode()]


_TABLE_LIST = words("name,rows,dim,pooled,features,pooling\na,100,16,true,x|y,3.5\nb,20,,false,,\n")


LINES = (
    Parser("command lines", "line.json", _fill, _lines, _run, 7),
    Parser("planned suite", "s.toml", _suite, mutations.toml, _planned("s.toml", "a100-40gb-2x8"), 2),
    Parser("planned machine", "m.toml", _machine, mutations.toml, _planned("t.toml", "m.toml"), 2),
    Parser(
        "planned constraints",
        "kept.toml",
        _kept,
        mutations.toml,
        _planned("t.toml", "a100-40gb-2x8", "--constraints", "kept.toml"),
        1,
    ),
    Parser(
        "planned tables",
        "t.csv",
        _TABLE_LIST,
        mutations.lines,
        _planned("t.csv", "a100-40gb-2x8", "--batch-size", "32"),
        1,
    ),
)
