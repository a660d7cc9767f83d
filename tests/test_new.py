"""`shardbench new`: what it writes lints, is typed, conforms and runs; names that cannot be are refused."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import ONE_JUDGE, beside, said_by

from shardbench import baselines
from shardbench.base.errors import BadInput
from shardbench.base.wall import Kind, kind
from shardbench.cli import new
from shardbench.leaderboard.problems import load
from shardbench.records.store import cell_store

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "round_robin"
SHARDBENCH = [sys.executable, "-c", "from shardbench.cli.main import main; main()"]
ONE_PROBLEM = (
    f'from shardbench.leaderboard import studies; studies.QUICK = {{("meta-traces", "h100-1x8")}}\n{ONE_JUDGE}'
)
AGAIN = "write it again: shardbench new round-robin --package, in examples/"


def command(arguments: list[str], cwd: Path, *paths: Path) -> str:
    environment = beside(*paths) | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(source: Path, site: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command([sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)], source.parent)


def contents(folder: Path) -> dict[str, str]:
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    caches = {name for name in files if any(part[0] in "._" and part != "__init__.py" for part in name.parts)}
    return {str(name): path.read_text() for name, path in files.items() if name not in caches}


def test_the_example_is_what_the_command_writes_and_contributing_shows_it(tmp_path: Path) -> None:
    written = new.write_package("round-robin", tmp_path / "round_robin")
    assert contents(EXAMPLE) == contents(written), AGAIN
    shown = re.search(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    assert shown
    assert shown.group(1) == (EXAMPLE / "round_robin" / "__init__.py").read_text()


@pytest.mark.parametrize("name", ["my-strategy", "V2.hot+cold_rows", "x" * 60])
def test_what_is_written_lints(tmp_path: Path, name: str) -> None:
    package = new.write_package(name, tmp_path / "package")
    baseline = new.write_baseline(name, tmp_path / "baseline")
    ruff = [sys.executable, "-m", "ruff"]
    command([*ruff, "check", "--no-cache", "."], package)
    command([*ruff, "format", "--check", "--no-cache", "."], package)
    for settings in (["check"], ["format", "--check"]):
        command([*ruff, *settings, "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(baseline)], tmp_path)


def console(document: Path) -> list[str]:
    """Commands of the document's transcript."""
    return re.findall(r"^\$ (.*)$", document.read_text(), flags=re.MULTILINE)


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
@pytest.mark.parametrize("part", [["--quick"], pytest.param([], marks=pytest.mark.slow)])
def test_from_an_empty_folder_to_a_ranked_row(tmp_path: Path, part: list[str]) -> None:
    """The transcript of docs/add_a_strategy.md, command by command; pip installs beside, not into, this environment.

    By default one problem of the leaderboard is asked of one judge, where a plan takes a second and not forty; the
    checks of a package's strategy are made by conformance/test_third_party.py as well, and what a run says of it by
    test_ranks.py.
    """
    site = tmp_path / "site"
    lines = console(ROOT / "docs" / "add_a_strategy.md")
    assert [line.split()[:2] for line in lines] == [
        ["shardbench", "new"], ["pip", "install"], ["shardbench", "test"], ["shardbench", "run"],
        ["shardbench", "reproduce"],
    ]  # fmt: skip
    new_strategy, pip_install, *others = (shlex.split(line)[1:] for line in lines)
    command([*SHARDBENCH, *new_strategy], tmp_path, site)
    install(tmp_path / pip_install[-1], site)
    others[-1] += [*part, "--page"]
    asked, timeout_s = (others[-1:], 240.0) if part else (others, 3600.0)
    *said, board = said_by(
        {**beside(site), "PYTHONSAFEPATH": "1"},
        *asked,
        cwd=tmp_path,
        timeout_s=timeout_s,
        first=ONE_PROBLEM if part else "",
    )
    for suite in said[1:]:
        for table in ("throughput", "balance", "traffic"):
            rows = (tmp_path / "runs" / "tables" / "quick" / f"{table}.csv").read_text().splitlines()[1:]
            assert {row.split(",")[3] for row in rows} == {"my-strategy"}
            assert "ok" in {row.split(",")[4] for row in rows}
        places = re.findall(r"^  my-strategy: (no )?rank", suite, flags=re.MULTILINE)
        assert len(places) == suite.count(", simulated, batch ")
        assert re.search(r"compared with \d+ trials in .*results \(commit ", suite)
    problems = 1 if part else len(list(load().problems()))
    assert (
        len(re.findall(rf"^  (60|1) s: my-strategy has (no )?rank.* on {problems} problems?$", board, re.MULTILINE))
        == 2
    )
    assert len(re.findall(rf"^ *my-strategy +{problems} ", board, re.MULTILINE)) == 2
    assert "to submit: " in board.splitlines()[-1]
    assert re.search(
        r"others on record: 60 s: my-strategy has (no )?rank", (tmp_path / "mine/pages/leaderboard.html").read_text()
    )
    rows = [row for record in cell_store(tmp_path / "mine", "leaderboard", "steps").read() for row in record.rows]
    plans = {f"{row['plan_hash']}.json" for row in rows if "plan_hash" in row}
    assert {path.name for path in (tmp_path / "mine" / "plans").iterdir()} == plans, "check-submission judges them"


def test_a_new_baseline_is_found_without_an_edit_elsewhere(tmp_path: Path) -> None:
    ours = tmp_path / "site" / "shardbench"
    shutil.copytree(ROOT / "src" / "shardbench", ours)
    for part in (ROOT / "baselines", ROOT / "datasets", *(ROOT / "benchmarks").iterdir()):
        if part.is_dir():
            shutil.copytree(part, ours / part.name)
    new.write_baseline("my-strategy", ours / "baselines" / "my_strategy")
    program = """
from shardbench.conformance.checks import cases, check
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.trials.discovery import get_strategy
with FORK_SERVER.without_engine():
    check(get_strategy("my-strategy"), problems=cases()[:1])
print("conforms")
"""
    assert command([sys.executable, "-c", program], tmp_path, ours.parent).strip() == "conforms"


@pytest.mark.parametrize(
    "name", ["", "my strategy", "2fast", "-x", "a--b", "a/b", "..", "class", "x" * 61, "na\u00efve"]
)
def test_names_that_make_no_module_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"names no strategy|is a word of Python"):
        new.module_of(name)


def test_what_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadInput, match="is there already"):
        new.write_package("mine", tmp_path / "mine")
    with pytest.raises(BadInput, match="a module 'json' is installed here already"):
        new.write_package("json", tmp_path / "json")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="a strategy 'shuffle' is there already"):
        new.new_command("shuffle", package=True)


def test_outside_a_checkout_only_packages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert new.baselines_folder() == ROOT / "baselines"
    monkeypatch.setattr(baselines, "__path__", [str(tmp_path / "site-packages" / "baselines")])
    with pytest.raises(BadInput, match="is in no checkout of ShardBench: add --package"):
        new.baselines_folder()


def test_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    new.new_command("my-strategy", package=True, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["strategy"], said["module"]) == ("my-strategy", "my_strategy")
    assert all((tmp_path / file).is_file() for file in said["files"])
    assert said["next"][1] == "shardbench test my-strategy"
