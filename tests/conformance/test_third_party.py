"""The strategy, the data set and the machine of an installed package are found, run and checked like ours."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from fresh_process import said_by

HERE = Path(__file__).parent

PROGRAM = """
from shardbench.conformance.checks import check
from shardbench.trials.discovery import get_strategy, strategies
assert "rank-zero" in strategies(), sorted(strategies())
check(get_strategy("rank-zero"))
print("conforms")
"""

SUITE = """
name = "tiny"
description = "a data set and a machine of the package, every strategy"
[[workloads]]
name = "crowd"
dataset = "crowded"
tables = 3
dense = { bottom = [64, 16], top = [1] }
[[grids]]
machines = ["desk-1x2"]
backends = ["simulated"]
iterations = 1
"""


def beside(site: Path) -> dict[str, str]:
    """The environment in which packages of a folder are installed as well."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}


def test_entry_point_of_an_installed_package(tmp_path: Path) -> None:
    # Built from a copy, because setuptools leaves build folders in the source.
    source = shutil.copytree(HERE / "third_party", tmp_path / "source")
    site = tmp_path / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True, timeout=120)
    environment = beside(site)
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "conforms"

    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    chosen = ["--strategy", "rank-zero", "--strategy", "shuffle"]
    strategies, machines, run_lines = said_by(
        environment,
        ["list", "strategies"],
        ["list", "machines"],
        ["run", str(suite), "--results", str(tmp_path / "results"), *chosen],
    )
    assert "rank-zero" in strategies
    assert "desk-1x2" in machines
    assert "rank-zero" in run_lines
    for table in ("throughput", "balance", "traffic"):
        rows = (tmp_path / "results" / "tables" / "tiny" / f"{table}.csv").read_text().splitlines()
        assert [row.split(",")[:5] for row in rows[1:]] == [
            ["crowd", "desk-1x2", "simulated", name, "ok"] for name in ("rank-zero", "shuffle")
        ]


DISTRIBUTION = "Metadata-Version: 2.1\nName: edited-in-a-test\nVersion: 1.0\n"


def test_an_edited_strategy_is_planned_again_and_said_to_have_been_edited(tmp_path: Path) -> None:
    site, results = tmp_path / "site", ["--results", str(tmp_path / "results")]
    installed = site / "edited_in_a_test-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(DISTRIBUTION)
    points = tomllib.loads((HERE / "third_party" / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {value}\n" for group, named in points.items() for name, value in named.items()]
    (installed / "entry_points.txt").write_text("".join(lines))
    shutil.copytree(HERE / "third_party" / "rank_zero", site / "rank_zero")
    strategy = site / "rank_zero" / "strategy.py"
    source = strategy.read_text()
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    begins = ["run", str(suite), *results, "--strategy", "rank-zero", "--strategy", "shuffle"]
    (first,) = said_by(beside(site), begins)
    assert first.splitlines()[0] == "suite tiny: 2 trials, 0 settled, 2 to run"
    status = ["status", str(suite), *results, "--strategy", "rank-zero", "--json"]
    edited = source.replace("[0] * len(problem.tables)", "[1] * len(problem.tables)")
    assert edited != source
    strategy.write_text(edited)
    before, reported, as_json, third, after = said_by(
        beside(site),
        status,
        ["report", str(suite), *results, "--page"],
        ["report", str(suite), *results, "--json"],
        begins,
        status[:-1],
    )
    state = json.loads(before)
    assert (state["settled"], state["open"], state["other_versions"]["other"]) == (0, 1, {"rank-zero": 1})
    said = "1 of 2 records are of other versions, a run makes them again: rank-zero (1)"
    assert said in reported
    page = (tmp_path / "results" / "pages" / "tiny.html").read_text(encoding="utf-8")
    assert said in page
    assert json.loads(as_json)["other_versions"]["other"] == {"rank-zero": 1}

    assert third.splitlines()[0] == "suite tiny: 2 trials, 1 settled, 1 to run"
    lines = (tmp_path / "results" / "records" / "tiny.jsonl").read_text().splitlines()
    plans = [json.loads(line)["planned"]["plan_hash"] for line in lines if '"strategy":"rank-zero"' in line]
    assert len(set(plans)) == len(plans) == 2, "the old line stays, the new one has the new plan"
    assert "other code" not in after
