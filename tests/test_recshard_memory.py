"""Profiling, planning and counting billions of rows takes a few GiB."""

import subprocess
import sys

import pytest

GIB = 2**30
PROGRAM = """
import resource, sys
from shardbench.baselines.recshard.reproduction.scaled import RECSHARD, RmCondition, ask
samples, parts = map(int, sys.argv[1:])
ask(RmCondition(form="rm3", row_scale=1.0, samples=samples, parts=parts).question(), RECSHARD)
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize(
    ("samples", "parts", "most_gib"),
    [pytest.param(1024, 4, 1.5, id="few"), pytest.param(1 << 20, 1, 6.0, id="suite", marks=pytest.mark.slow)],
)
def test_rm3_takes_less_than_two_bytes_a_row(samples: int, parts: int, most_gib: float) -> None:
    """A quarter of the model has 1.1 billion rows, and the whole of it 5.3."""
    # An upper bound: the system counts a process's memory from its parent's peak on.
    command = [sys.executable, "-c", PROGRAM, str(samples), str(parts)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    # Less would mean that nothing was measured: the libraries alone take more.
    assert GIB / 16 < int(process.stdout) < most_gib * GIB
