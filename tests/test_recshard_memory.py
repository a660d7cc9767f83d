"""Profiling, planning and counting 5.3 billion rows stays under 6 GiB."""

import subprocess
import sys

import pytest

GIB = 2**30
PROGRAM = """
import resource, sys
from shardbench.baselines.recshard.reproduction.scaled import RECSHARD, RmCondition, ask
ask(RmCondition(form="rm3", row_scale=1.0, samples=int(sys.argv[1])).question(), RECSHARD)
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize(
    "samples", [pytest.param(1024, id="few"), pytest.param(1 << 20, id="suite", marks=pytest.mark.slow)]
)
def test_rm3_stays_under_six_gib(samples: int) -> None:
    # An upper bound: the system counts a process's memory from its parent's peak on.
    command = [sys.executable, "-c", PROGRAM, str(samples)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    # Less would mean that nothing was measured: the libraries alone take more.
    assert GIB / 16 < int(process.stdout) < 6 * GIB
