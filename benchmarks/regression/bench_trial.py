"""One simulated trial, as `shardbench run` makes it: drawn, planned elsewhere, validated, counted, recorded."""

import shutil
import tempfile
from pathlib import Path

from shardbench.cli.main import run_command

from .made_up import cpu_s

SUITE = """
name = "one-trial"
description = "What one simulated trial costs"

[[workloads]]
name = "synthetic"
dataset = "synthetic"
tables = 10
batch_size = 4096
profile_samples = 4096

[[grids]]
machines = ["a100-40gb-2x8"]
backends = ["simulated"]
strategies = ["greedy-lookup"]
iterations = 1
"""


class SimulatedTrial:
    """Ten synthetic tables on 16 devices."""

    timer = staticmethod(cpu_s)

    def setup(self) -> None:
        """An empty results folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="regression-trial-"))
        (self.folder / "one.toml").write_text(SUITE)

    def teardown(self) -> None:
        """Nothing stays."""
        shutil.rmtree(self.folder)

    def time_trial(self) -> None:
        """CPU seconds of the process that asks; `bench_planning` has those of the one that plans, a grandchild."""
        folder = self.folder
        code = run_command(["run", str(folder / "one.toml"), "--results", str(folder / "runs"), "--force"])
        if code:
            raise RuntimeError(f"the trial ended with exit code {code}")
