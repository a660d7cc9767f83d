"""What the suite promises of 856 tables on 128 devices: a plan or a recorded timeout, never a hang."""

from pathlib import Path

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
