"""One path for our folders and other people's packages, and one line for whatever is wrong."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbench import baselines
from shardbench.base import plugins
from shardbench.base.errors import BadInput
from shardbench.cli.main import run_command
from shardbench.model import discovery
from shardbench.model.discovery import broken_packages, get_strategy, missing_modules, strategies
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(path.name for path in (ROOT / "baselines").iterdir() if (path / "__init__.py").is_file())


class Mine(Strategy):
    name = "mine"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, [0] * len(problem.tables)))


class Taken(Mine):
    name = "shuffle"


class Spaced(Mine):
    name = "my own"


class Listed(Mine):
    moves = (Move.TABLE,)  # type: ignore[assignment]


class Needy(Mine):
    name = "needy"
    requires = ("no_such_module", "no_such_package.part", "numpy")


def _install(monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any]) -> None:
    point = SimpleNamespace(name="x", value="pkg:obj", dist=SimpleNamespace(name="their-package"), load=load)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == discovery.GROUP else [])


def test_all_folders_give_strategies() -> None:
    modules = {
        type(s).__module__.split(".")[2] for s in strategies().values() if "shardbench.baselines" in str(type(s))
    }
    assert {"search", "greedy", "shuffle", "torchrec_planner"} <= modules <= set(FOLDERS)


@pytest.mark.parametrize(
    "provided", [Mine, Mine(), lambda: [Mine()], lambda: iter((Mine(),)), [Mine()]],
    ids=["class", "instance", "function", "generator", "list"],
)  # fmt: skip
def test_entry_points_of_every_form(monkeypatch: pytest.MonkeyPatch, provided: Any) -> None:
    _install(monkeypatch, lambda: provided)
    assert isinstance(strategies()["mine"], Mine)
    assert list(strategies()) == sorted(strategies())


def test_a_package_that_takes_for_ever_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(strategies())
    monkeypatch.setattr(plugins, "LOADS_S", 1.0)
    for provided, what in ((lambda: time.sleep(1e6), "be imported"), (lambda: lambda: time.sleep(1e6), "strategies")):
        _install(monkeypatch, provided)
        assert list(strategies()) == whole
        (cause,) = broken_packages()
        assert "their-package" in cause and what in cause
        assert cause.endswith("TimeoutError: took more than 1 s")


def _boom() -> Any:
    raise RuntimeError("first\nsecond")


def _leave() -> Any:
    sys.exit(0)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (_leave, "cannot be imported: SystemExit: 0"),
        (lambda: _leave, "failed to make its strategies: SystemExit: 0"),
        (lambda: Taken, "strategy name 'shuffle' of their-package (entry point x = pkg:obj) is already taken by"),
        (lambda: Spaced, "Spaced must state a name of letters, digits"),
        (lambda: Listed, "Listed must state moves as a frozenset of Move"),
        (lambda: lambda: [Mine(), 3], "gives 3, which is not a Strategy"),
        (lambda: 3, "gives 3, not an iterable of Strategy"),
        (lambda: lambda: None, "gives None, not an iterable of Strategy"),
        (lambda: _boom, "failed to make its strategies: RuntimeError: first second"),
        (_boom, "cannot be imported: RuntimeError: first second"),
        (lambda: Strategy, "failed to make its strategies: TypeError"),
    ],
)
def test_faults_are_one_line_that_names_the_package(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any], message: str
) -> None:
    _install(monkeypatch, load)
    (cause,) = broken_packages()
    assert message in cause
    assert "their-package" in cause
    assert "\n" not in cause
    assert "shuffle" in strategies(), "what is not theirs is there"
    with pytest.raises(BadInput, match=r"unknown strategy 'mine'.*; left out: .*their-package"):
        get_strategy("mine")


def test_broken_packages_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _install(monkeypatch, _leave)
    assert run_command(["list", "strategies"]) == 0
    printed = capsys.readouterr()
    assert "shuffle" in printed.out
    assert printed.err.startswith(
        "left out: package their-package (entry point x = pkg:obj) cannot be imported: SystemE"
    )


def test_a_folder_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken_folder"
    broken.mkdir()
    (broken / "__init__.py").write_text("import no_such_module\n")
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    (cause,) = broken_packages()
    assert re.match(r"package shardbench.baselines.broken_folder cannot be imported: .*no_such_module", cause)


def test_a_folder_that_gives_no_strategies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_folder").mkdir()
    (tmp_path / "silent_folder" / "__init__.py").write_text("")
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    (cause,) = broken_packages()
    assert cause.startswith("package shardbench.baselines.silent_folder has no strategies(): add ")


def test_code_in_no_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    for ignored in ("__pycache__/x.py", ".hidden/x.py", "notes/README.md"):
        (tmp_path / ignored).parent.mkdir()
        (tmp_path / ignored).write_text("")
    assert broken_packages() == ()
    folder, single = tmp_path / "mine", tmp_path / "single.py"
    folder.mkdir()
    (folder / "plans.py").write_text("")
    assert broken_packages()[0].startswith(f"{folder} has Python files but no __init__.py")
    (folder / "__init__.py").write_text("def strategies():\n    return []\n")
    assert broken_packages() == ()
    single.write_text("")
    (cause,) = broken_packages()
    assert re.match(rf"{re.escape(str(single))} is in no folder of its own: make it .*__init__.py", cause)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"unknown strategy 'nope'; \d+ are known \(see: shardbench list strategies\)"):
        get_strategy("nope")


def test_strategies_with_missing_modules_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, lambda: Needy)
    assert missing_modules(strategies()["needy"]) == ("no_such_module", "no_such_package.part")


def test_listing_imports_no_heavy_package() -> None:
    program = (
        "import sys; from shardbench.model.discovery import strategies; strategies(); "
        "print(sorted({'torch', 'torchrec'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


HARNESS_WORDS = frozenset({"search"})
"""Strategy names that are also a word of the harness (it has a search's role): only their use as a name counts."""


def _naming(names: set[str]) -> re.Pattern[str]:
    every, telling = ("|".join(map(re.escape, sorted(n))) for n in (names, names - HARNESS_WORDS))
    imported = rf"baselines[./](?:{every})\b|import (?:{every})\b"
    quoted = rf"""["'](?:{telling})["']"""
    looked_up = rf"""(?:==|!=|\bin|get_strategy\(|strategies\(\)\[)\s*[(\[{{]?\s*["'](?:{every})["']"""
    return re.compile(f"{imported}|{quoted}|{looked_up}")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("from shardbench.baselines.search import Search", True),
        ('if strategy.name == "search":', True),
        ('get_strategy("search")', True),
        ("DEFAULTS = ['greedy-size']", True),
        ('role="search",', False),
        ("shuffled = rng.permutation(n)", False),
    ],
)
def test_what_counts_as_naming(line: str, named: bool) -> None:
    assert bool(_naming({"search", "greedy-size", "shuffle"}).search(line)) is named


def test_the_harness_names_no_baseline() -> None:
    words = _naming({*FOLDERS, *strategies()})
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_baselines_import_the_harness_and_nothing_of_each_other() -> None:
    for folder in FOLDERS:
        for path in (ROOT / "baselines" / folder).rglob("*.py"):
            text = path.read_text()
            others = re.findall(r"shardbench\.baselines\.(\w+)", text)
            assert set(others) <= {folder}, path
            assert "torch.distributed" not in text.replace("torchrec.distributed", ""), path
