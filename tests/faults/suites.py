"""The small suites that faults happen to: made-up traces on made-up machines."""

import json
from pathlib import Path

from toy_machine import MADE_UP, machine_file

from shardbench.trials.suite import Suite, load_suite

SIMULATED = (
    """
name = "tiny"
description = "a made-up trace on made-up machines"
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
overrides = [{{}}, {{ uvm_bandwidth = "3 GB/s" }}, {{ uvm_bandwidth = "2 GB/s" }}]
backends = ["simulated"]
iterations = 2
strategies = ["shuffle", "row-wise"]
"""
)
MEASURED = (
    """
name = "ranks"
description = "a made-up trace on two made-up devices, measured"
"""
    + MADE_UP
    + """
[[grids]]
machines = ["{machine}"]
backends = ["measured"]
iterations = {iterations}
warmup = {warmup}
timeout_s = 300
strategies = ["row-wise"]
"""
)
TRIALS = 6
"""Of the simulated suite."""


def suite_file(folder: Path, text: str = SIMULATED, **values: object) -> Path:
    """A suite in ``folder``, with its trace and machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.txt").write_text("\n".join(str(7 * i % 500) for i in range(2000)) + "\n")
    path = folder / "suite.toml"
    path.write_text(text.format(trace=folder / "trace.txt", machine=machine_file(folder), **values))
    return path


def suite(folder: Path, text: str = SIMULATED, **values: object) -> Suite:
    """The same, loaded."""
    return load_suite(str(suite_file(folder, text, **values)))


def keys_of(lines: Path) -> set[str]:
    """Keys of the records in a file, which may not be whole."""
    if not lines.is_file():
        return set()
    whole = [line for line in lines.read_bytes().split(b"\n")[:-1] if line]
    return {json.loads(line)["key"] for line in whole}
