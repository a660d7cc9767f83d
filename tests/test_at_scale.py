"""What the suite promises of very large problems: a plan or a recorded timeout, and memory that rows do not fill."""

import subprocess
import sys
from pathlib import Path

import prepare_scale
import pytest
from kept_folders import Silent

from shardbench.model.machine_file import load_machine
from shardbench.records.trial import Outcome
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

SUITE = """
name = "scale"
description = "856 tables on 128 devices"
[[workloads]]
name = "meta856"
dataset = "synthetic"
batch_size = 8192
profile_samples = 8192
test_batches = 1
dense = {{ bottom = [64, 16], top = [64, 1] }}
[[grids]]
machines = ["{machine}"]
backends = ["simulated"]
iterations = 1
plan_s = {plan_s}
strategies = ["greedy-lookup", "search", "torchrec-table-wise", "torchrec-fused"]
"""


def machine_of_128(folder: Path) -> str:
    source = Path(__file__).parent.parent / "benchmarks" / "machines" / "a100-40gb-2x8.toml"
    text = source.read_text().replace("nodes = 2", "nodes = 16").replace("a100-40gb-2x8", "a100-40gb-16x8")
    path = folder / "a100-40gb-16x8.toml"
    path.write_text(text)
    assert load_machine(str(path)).topology.world_size == 128
    return str(path)


@pytest.mark.slow
def test_856_tables_on_128_devices(tmp_path):
    plan_s = 45
    suite = tmp_path / "scale.toml"
    suite.write_text(SUITE.format(machine=machine_of_128(tmp_path), plan_s=plan_s))
    records = run_suite(load_suite(str(suite)), RunOptions(results=tmp_path / "results", data=tmp_path), Silent())
    outcomes = {record.spec.strategy: record.outcome for record in records}
    assert outcomes.pop("torchrec-fused") in {Outcome.OK, Outcome.TIMEOUT}
    assert set(outcomes.values()) == {Outcome.OK}
    for record in records:
        if record.outcome is Outcome.TIMEOUT:
            assert record.failure.phase == "plan"


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_rows() -> None:
    rows = prepare_scale.measure((250_000, 2_000_000), repeated_rows=0)
    peaks = {(row["data_set"], row["file"], row["rows"]): row["peak_bytes"] for row in rows}
    for data_set in ("criteo_kaggle", "criteo_terabyte"):
        assert peaks[data_set, "text", 2_000_000] < 1.2 * peaks[data_set, "text", 250_000]


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
