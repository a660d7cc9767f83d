"""The strategy, the data set and the machine of an installed package are found, run and checked like ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

PROGRAM = """
from shardbench.runs.conformance import check
from shardbench.model.discovery import get_strategy, strategies
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


def test_entry_point_of_an_installed_package(tmp_path: Path) -> None:
    # Built from a copy, because setuptools leaves build folders in the source.
    source = shutil.copytree(HERE / "third_party", tmp_path / "source")
    site = tmp_path / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True, timeout=120)
    paths = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "conforms"

    shardbench = [sys.executable, "-c", "from shardbench.cli.main import main; main()"]

    def command_line(*arguments: str) -> str:
        done = subprocess.run(
            [*shardbench, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "rank-zero" in command_line("list", "strategies")
    assert "desk-1x2" in command_line("list", "machines")
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    chosen = ["--strategy", "rank-zero", "--strategy", "shuffle"]
    assert "rank-zero" in command_line("run", str(suite), "--results", str(tmp_path / "results"), *chosen)
    for table in ("throughput", "balance", "traffic"):
        rows = (tmp_path / "results" / "tables" / "tiny" / f"{table}.csv").read_text().splitlines()
        assert [row.split(",")[:5] for row in rows[1:]] == [
            ["crowd", "desk-1x2", "simulated", name, "ok"] for name in ("rank-zero", "shuffle")
        ]
