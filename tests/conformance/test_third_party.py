"""An installed package's strategy is found, run and checked like ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

PROGRAM = """
from shardbench.conformance import check
from shardbench.discovery import get_strategy, strategies
assert "rank-zero" in strategies(), sorted(strategies())
check(get_strategy("rank-zero"))
print("conforms")
"""


def test_entry_point_of_an_installed_package(tmp_path: Path) -> None:
    # Built from a copy, because setuptools leaves build folders in the source.
    source = shutil.copytree(HERE / "third_party", tmp_path / "source")
    site = tmp_path / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "conforms"
