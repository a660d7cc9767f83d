"""One simulated trial, as `shardbench run` makes it: drawn, planned elsewhere, validated, counted, recorded."""

import shutil
import tempfile
from pathlib import Path

from shardbench.cli.main import run_command

from .case import Case

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


class SimulatedTrial(Case):
    """A trial of ten synthetic tables on 16 devices."""

    def setup(self) -> None:
        """Make an empty results folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="regression-trial-"))
        (self.folder / "one.toml").write_text(SUITE)

    def teardown(self) -> None:
        """Remove the results folder again."""
        shutil.rmtree(self.folder)

    def time_trial(self) -> None:
        """Run the trial; `bench_planning` times the planning, which is done by a grandchild of this process."""
        folder = self.folder
        code = run_command(["run", str(folder / "one.toml"), "--results", str(folder / "runs"), "--force"])
        if code:
            raise RuntimeError(f"the trial ended with exit code {code}")
