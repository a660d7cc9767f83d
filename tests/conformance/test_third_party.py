"""The strategy, the data set and the machine of an installed package are found, run and checked like ours."""

import json
import shutil
import tomllib
from pathlib import Path

from fresh_process import ONE_JUDGE, beside, said_by

HERE = Path(__file__).parent

CONFORMS = f"""{ONE_JUDGE}
from shardbench.conformance.checks import cases, check
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.trials.discovery import get_strategy
with FORK_SERVER.without_engine():
    check(get_strategy("rank-zero"), problems=cases()[:1])
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


def install(site: Path) -> None:
    """Lay the package down as pip does; pip itself, which takes as long as the trials, is tried by test_new.py."""
    shutil.copytree(HERE / "third_party" / "rank_zero", site / "rank_zero")
    project = tomllib.loads((HERE / "third_party" / "pyproject.toml").read_text())["project"]
    information = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (information / "entry_points.txt").write_text("\n".join(lines))


def test_an_installed_package_is_run_and_once_edited_is_planned_again(tmp_path: Path) -> None:
    site, results = tmp_path / "site", ["--results", str(tmp_path / "results")]
    install(site)
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    begins = ["run", str(suite), *results, "--strategy", "rank-zero", "--strategy", "shuffle"]
    strategies, machines, first = said_by(
        beside(site), ["list", "strategies"], ["list", "machines"], begins, options=("-W", "error"), first=CONFORMS
    )
    assert "rank-zero" in strategies
    assert "desk-1x2" in machines
    assert "rank-zero" in first
    assert first.splitlines()[0] == "suite tiny: 2 trials, 0 settled, 2 to run"
    for table in ("throughput", "balance", "traffic"):
        rows = (tmp_path / "results" / "tables" / "tiny" / f"{table}.csv").read_text().splitlines()
        assert [row.split(",")[:5] for row in rows[1:]] == [
            ["crowd", "desk-1x2", "simulated", name, "ok"] for name in ("rank-zero", "shuffle")
        ]

    strategy = site / "rank_zero" / "strategy.py"
    source_text = strategy.read_text()
    status = ["status", str(suite), *results, "--strategy", "rank-zero", "--json"]
    edited = source_text.replace("[0] * len(problem.tables)", "[1] * len(problem.tables)")
    assert edited != source_text
    strategy.write_text(edited)
    before, reported, as_json, third, after = said_by(
        beside(site),
        status,
        ["report", str(suite), *results],
        ["report", str(suite), *results, "--json"],
        begins,
        status[:-1],
        first=ONE_JUDGE,
    )
    state = json.loads(before)
    assert (state["settled"], state["open"], state["other_versions"]["other"]) == (0, 1, {"rank-zero": 1})
    said = "1 of 2 records are of other versions, a run makes them again: rank-zero (1)"
    assert said in reported
    assert json.loads(as_json)["other_versions"]["other"] == {"rank-zero": 1}

    assert third.splitlines()[0] == "suite tiny: 2 trials, 1 settled, 1 to run"
    lines = (tmp_path / "results" / "records" / "tiny.jsonl").read_text().splitlines()
    plans = [json.loads(line)["planned"]["plan_hash"] for line in lines if '"strategy":"rank-zero"' in line]
    assert len(set(plans)) == len(plans) == 2, "the old line stays, the new one has the new plan"
    assert "other code" not in after
