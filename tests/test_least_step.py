"""Measured steps are held to what their bytes take at the calibrated link rates."""

from dataclasses import replace
from pathlib import Path

import pytest

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment, Gpus
from shardbench.engine.processes.failures import TrialFailed
from shardbench.model.calibrated import calibrated_on, chip_of
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.records.record import Record, Timing, TrafficTotals
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.trials.calibrating import BEFORE, machine_path
from shardbench.trials.measured_trial import least_step_ms, refuse_too_fast

RESULTS = Path(__file__).parent.parent / "results"
TRAFFIC = TrafficTotals(
    lookups=1, off_hbm_lookups=0, distinct_rows=(1, 1), hbm_bytes=1, uvm_bytes=0, host_bytes=0,
    collectives={"input": (3e6, 0.0), "output": (5e6, 2e6)},
)  # fmt: skip


def timed(*step_ms: float) -> Timing:
    return Timing(step_ms=step_ms, phases_ms={}, embedding_ms=(0.0, 0.0))


def test_least_step_is_the_busier_links_share_of_a_rank() -> None:
    machine = load_machine("cpu-1x2")
    rate = machine.constants.intra_bytes_per_s * machine.errors["intra_bytes_per_s"]
    assert least_step_ms(TRAFFIC, machine) == pytest.approx(1e3 * 8e6 / 2 / rate)
    across = TRAFFIC.model_copy(update={"collectives": {"input": (1e6, 9e6)}})
    nodes = load_machine("cpu-2x2")
    rate = nodes.constants.inter_bytes_per_s * nodes.errors["inter_bytes_per_s"]
    assert least_step_ms(across, nodes) == pytest.approx(1e3 * 9e6 / 4 / rate)
    assert least_step_ms(TRAFFIC.model_copy(update={"collectives": {}}), machine) == 0.0


def test_nothing_is_held_against_rates_that_nobody_measured() -> None:
    assert least_step_ms(TRAFFIC, load_machine("h100-1x8")) is None
    machine = load_machine("cpu-1x2")
    overridden = replace(machine, sources=dict.fromkeys(machine.sources, "override of the job"))
    assert least_step_ms(TRAFFIC, overridden) is None


def test_a_step_below_it_is_invalid_and_one_iteration_is_not() -> None:
    with pytest.raises(TrialFailed) as caught:
        refuse_too_fast(timed(1.0, 1.1, 9.0), 1.2)
    failure = caught.value.failure
    assert (failure.outcome, failure.rule) == (Outcome.INVALID, "bandwidth")
    assert "1.1 ms, is shorter than its bytes take" in failure.cause
    refuse_too_fast(timed(1.0, 1.3, 9.0), 1.2)
    refuse_too_fast(timed(1.0), None)


def test_processors_are_named_as_calibration_names_them() -> None:
    known = calibrated_on(load_machine("cpu-1x2"))
    assert known is not None
    name = known.removesuffix(", 2 cores")
    assert name != known
    cpu = Environment.here().model_copy(update={"cpu": name, "cores": 2, "gpus": Gpus(count=0, names=())})
    assert chip_of(cpu, "cpu") == known
    assert chip_of(cpu.model_copy(update={"gpus": Gpus(count=1, names=("H100",))}), "cuda") == "H100"


def measured() -> list[tuple[Path, Record]]:
    """Measured records that are ok, each with its results folder."""
    paths = [*(RESULTS / "records").glob("*.jsonl"), *(RESULTS / "again" / "records").glob("*.jsonl")]
    folders = [(path.parent.parent, path.stem) for path in paths]
    found = [(folder, record) for folder, suite in folders for record in trial_store(folder, suite).read()]
    return [one for one in found if one[1].spec.backend is Backend.MEASURED and one[1].outcome is Outcome.OK]


def machine_of(folder: Path, record: Record) -> Machine:
    """The machine that a run calibrated, else that of its name."""
    calibrated = machine_path(folder, record.spec.suite, BEFORE, record.spec.machine)
    return load_machine(str(calibrated) if calibrated.is_file() else record.spec.machine)


def test_no_committed_step_is_too_good_to_be_true() -> None:
    held = 0
    for folder, record in measured():
        try:
            machine = machine_of(folder, record)
        except BadInput:  # with constants of the job's own
            assert "+" in record.spec.machine
            continue
        least_ms = least_step_ms(record.traffic, machine) if record.traffic is not None else record.least_step_ms
        assert least_ms is not None
        refuse_too_fast(record.timing, least_ms)
        held += least_ms > 0.0
    assert held > 300
