"""What `shardbench doctor` says of machines that are not this one."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from fresh_process import beside, said_by

from shardbench.base import host
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment, Gpus
from shardbench.base.memory import RANK_BYTES
from shardbench.calibrate import calibration
from shardbench.cli import diagnosis as doctor
from shardbench.cli import main as cli
from shardbench.engine.processes.failures import failure_of
from shardbench.model.machine_file import load_machine
from shardbench.records.trial import Backend
from shardbench.trials.jobcheck import lacking_devices
from shardbench.trials.suite import load_suite


def machine_like(monkeypatch, *, cores=2, gpus=0, free=32 * 10**9):
    here = Environment.here().model_copy(update={"cores": cores, "gpus": Gpus(count=gpus, names=("H100",) * gpus)})
    monkeypatch.setattr(doctor.Environment, "here", classmethod(lambda _: here))
    monkeypatch.setattr(doctor, "free_memory_bytes", lambda: free)


def measured(diagnosis):
    return [job for job in diagnosis.jobs if job.suite == "quick" and job.backend == Backend.MEASURED]


def test_a_machine_that_runs_the_default_suite(monkeypatch, tmp_path):
    machine_like(monkeypatch)
    diagnosis = doctor.diagnose(tmp_path)
    assert diagnosis.ok
    assert all(job.fits for job in measured(diagnosis))
    criteo = {"criteo_kaggle", "criteo_terabyte", "criteo_multi_hot"}
    assert set(diagnosis.datasets) == {"access_log", "avazu", "dlrm_datasets", "taobao", "yambda", *criteo}
    assert all(state.startswith("not here: ") for state in diagnosis.datasets.values())
    assert doctor.lines(diagnosis)[-1] == "suite quick can run here"
    assert all(line.isascii() for line in doctor.lines(diagnosis))


def test_too_little_memory_is_said_per_job(monkeypatch, tmp_path):
    machine_like(monkeypatch, free=10**9)
    diagnosis = doctor.diagnose(tmp_path)
    assert not diagnosis.ok
    assert not any(job.fits for job in measured(diagnosis))
    assert "of memory, 1.0 GB are free" in measured(diagnosis)[0].reason
    assert doctor.lines(diagnosis)[-1] == "suite quick cannot run here"


def test_an_engine_is_held_against_those_that_were_tried():
    def said(**versions):
        here = Environment.here()
        nothing = dict.fromkeys(("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"))
        found = replace(diagnosis, environment=here.model_copy(update={"versions": here.versions | nothing | versions}))
        lines = doctor.lines(found)
        at = next(i for i, line in enumerate(lines) if line.startswith("engine: "))
        return found.engine_was_tried, lines[at : lines.index("jobs:")]

    diagnosis = doctor.Diagnosis(
        environment=Environment.here(), free_memory_bytes=0, jobs=(), datasets={}, problems=(),
        engines_tried=tuple(tomllib.loads(doctor.TRIED.read_text())["engines"]),
    )  # fmt: skip
    first = diagnosis.engines_tried[0]
    listed = [f"  torch {e['torch']}, torchrec {e['torchrec']}, fbgemm-gpu-cpu {e['fbgemm-gpu-cpu']}"
              for e in diagnosis.engines_tried]  # fmt: skip
    assert said(**first | {"torch": first["torch"] + "+cpu"}) == (True, ["engine: tried with this release"])
    other = ["engine: not tried with this release; tried on CPUs were", *listed]
    assert said(**first | {"torchrec": "1.7.0"}) == (False, other)
    # CUDA's build of FBGEMM is another one.
    assert said(torch="2.13.0", torchrec="1.8.0", **{"fbgemm-gpu": "1.8.0"}) == (False, other)
    assert said() == (False, ["engine: not here; tried on CPUs were", *listed])


def test_what_is_locked_was_tried():
    pins = {}
    for name in ("torch", "fbgemm-cpu", "common"):
        text = (Path(__file__).parent.parent / "requirements" / "locked" / f"{name}.txt").read_text()
        pins.update(re.findall(r"^(torch|torchrec|fbgemm-gpu-cpu)==([\d.]+)", text, flags=re.MULTILINE))
    assert pins in tomllib.loads(doctor.TRIED.read_text())["engines"]


def test_a_job_that_no_plan_fits_is_said_to_not_fit(monkeypatch, tmp_path):
    machine_like(monkeypatch)
    suite = load_suite("quick")
    job = next(job for job in suite.jobs if job.backend is Backend.SIMULATED).model_copy(update={"batch_size": 30})
    fit = doctor._fit(suite, job, tmp_path, doctor.Environment.here(), 10**10, engine=True)
    assert not fit.fits
    assert not fit.missing_data
    assert "batch size 30 is not a multiple of the 4 devices; set batch_size = 28 there" in fit.reason


def test_memory_is_the_tables_and_the_ranks():
    job = next(job for job in load_suite("quick").jobs if job.backend is Backend.MEASURED)
    tables = load_suite("quick").workload(job).build(None).tables
    weights = sum(table.rows * table.dim * 4 for table in tables)
    need = doctor.memory_bytes(tables, job, load_machine("cpu-1x2"))
    # The control's tables, too.
    assert need == 2 * weights + 2 * RANK_BYTES


@pytest.mark.parametrize(
    ("machine", "gpus", "fits", "says"),
    [
        ("h100-1x8", 0, False, "needs 8 CUDA devices, this machine has 0"),
        ("h100-1x8", 8, True, "GB"),
        ("a100-40gb-2x8", 8, False, "needs 16 CUDA devices, this machine has 8; or start the ranks on 2 machines"),
        ("a100-40gb-2x8", 16, True, "this machine stands for 2 nodes"),
        ("cpu-1x4", 0, True, "4 ranks share 2 cores"),
        ("cpu-2x2", 0, True, "4 ranks share 2 cores: times are not compared; this machine stands for 2 nodes"),
    ],
)
def test_what_a_machine_needs(monkeypatch, machine, gpus, fits, says):
    machine_like(monkeypatch, gpus=gpus)
    monkeypatch.setattr("shardbench.trials.jobcheck.cuda_devices", lambda: gpus)
    on = load_machine(machine)
    answer = doctor._runs(on, 10**9, doctor.Environment.here(), 10**10, engine=True)
    assert answer[0] is fits
    assert says in answer[1]
    # `run` asks the same.
    assert (lacking_devices(on, Backend.MEASURED) == "") is fits


def test_a_missing_engine_says_what_to_install(monkeypatch, tmp_path, command):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchrec" else find(name))
    lacking = lacking_devices(load_machine("cpu-1x2"), Backend.MEASURED)
    assert lacking == "needs torchrec, not installed here: requirements/ lists the engine"
    assert lacking_devices(load_machine("cpu-1x2"), Backend.SIMULATED) == ""
    document = json.loads(command("doctor", "--data", tmp_path, "--json", code=1))
    assert document["ok"] is False
    assert document["problems"] == [
        "torchrec is not installed; measured trials need it: `nox -s reproduce` installs the engine, "
        "requirements/ lists it"
    ]
    with pytest.raises(BadInput, match="torchrec is not installed"):
        doctor.ranks_here(2)


@pytest.fixture
def without_driver(monkeypatch):
    """The CUDA build of FBGEMM is installed where there is no driver."""

    def load(name, *_):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(host, "_version", lambda name: "1.8.0" if name == "fbgemm-gpu" else None)
    monkeypatch.setattr(host.ctypes, "CDLL", load)


def test_a_missing_driver_is_one_line_wherever_the_engine_is_needed(without_driver, monkeypatch, command):
    line = host.missing_driver()
    assert line.startswith("the NVIDIA driver is not installed: libnvidia-ml.so.1 is missing, which the CUDA build of")
    assert line.endswith("or the CPU engine: python requirements/install.py cpu")
    for machine in ("cpu-1x2", "h100-1x8"):
        assert lacking_devices(load_machine(machine), Backend.MEASURED) == line
    with pytest.raises(BadInput, match="libnvidia-ml"):
        doctor.ranks_here(2)
    # What torch says of it, and of a library that lacks something else.
    unloaded = OSError("Could not load this library: /site/fbgemm_gpu/fbgemm_gpu_config.so")
    assert failure_of(unloaded, "plan").cause == line
    assert failure_of(OSError("disk full"), "plan").cause == "OSError: disk full"
    monkeypatch.setattr(cli, "app", Mock(side_effect=unloaded))
    assert command("export", "plan.json", code=2) == f"error: {line}\n"


def test_the_driver_is_only_asked_for_by_the_cuda_build(without_driver, monkeypatch):
    monkeypatch.setattr(host, "_version", lambda name: "1.8.0" if name == "fbgemm-gpu-cpu" else None)
    assert host.missing_driver() == ""
    monkeypatch.setattr(host, "_version", lambda name: "1.8.0")
    monkeypatch.setattr(host.ctypes, "CDLL", lambda name: None)
    assert host.missing_driver() == ""
    assert failure_of(OSError("Could not load this library: x.so"), "plan").cause.startswith("OSError: Could not load")


def test_fewer_devices_than_ranks(monkeypatch):
    machine_like(monkeypatch, gpus=1)
    with pytest.raises(BadInput, match="--ranks 2: here are 1 CUDA devices"):
        doctor.ranks_here(2)
    assert doctor.ranks_here(None) == ("cuda", 1)
    machine_like(monkeypatch, gpus=8)
    assert doctor.ranks_here(2) == ("cuda", 2)
    assert doctor.ranks_here(None) == ("cuda", 8)
    machine_like(monkeypatch)
    assert doctor.ranks_here(None) == ("cpu", 2)
    assert doctor.ranks_here(4) == ("cpu", 4)


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ([], ("cuda", 8, Path("cuda-1x8.toml"), 1)),
        (["--ranks", "4"], ("cuda", 4, Path("cuda-1x4.toml"), 1)),
        (["--nodes", "2", "--out", "."], ("cuda", 8, Path("cuda-2x8.toml"), 2)),
        (["--out", "mine.toml"], ("cuda", 8, Path("mine.toml"), 1)),
    ],
)
def test_a_calibration_is_of_all_gpus_and_names_its_file(monkeypatch, command, told, asked):
    called = []

    def calibrate(device, ranks, out, *, nodes, **_):
        called.append((device, ranks, out, nodes))
        raise BadInput("enough")

    machine_like(monkeypatch, gpus=8)
    monkeypatch.setattr(calibration, "calibrate", calibrate)
    command("doctor", "--calibrate", *told, code=2)
    assert called == [asked]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--quick"], "belong to --calibrate"),
        (["--ranks", "2"], "--ranks, --nodes, --out, --quick and --force belong to --calibrate"),
        (["--calibrate", "--ranks", "0"], "'--ranks'"),
        (["--calibrate", "--out", "machine.json"], "must end in .toml"),
        (["--calibrate", "--out", "{here}"], "give --force to write it again"),
        (["--calibrate", "--out", "new-cpu.toml"], "GB of memory, 0.0 are free: give --quick"),
        (["--calibrate", "--force", "--ranks", "4", "--out", "{here}"], "is 1x2 cpu, this calibration is 1x4 cpu"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, command, monkeypatch, arguments, says):
    machine_like(monkeypatch)
    monkeypatch.setattr(calibration, "free_memory_bytes", lambda: 0)
    here = tmp_path / "cpu-1x2.toml"
    text = (Path(__file__).parent.parent / "benchmarks" / "machines" / "cpu-1x2.toml").read_text()
    here.write_text(text)
    assert says in command("doctor", *(a.format(here=here) for a in arguments), code=2)
    assert here.read_text() == text


WITHOUT_TORCH = """
import sys
for name in ("torch", "torchrec", "fbgemm_gpu"):
    sys.modules[name] = None
import shardbench.cli.diagnosis, shardbench.cli.run, shardbench.cli.plan
import shardbench.trials.run_trial, shardbench.trials.runner
from shardbench.datasets.dlrm_datasets import CONFIG
from shardbench.base import host
from shardbench.base.errors import BadInput
from pathlib import Path
try:
    CONFIG().build(Path("nowhere"))
except BadInput as error:
    print(str(error)[:7])
from shardbench.cli.main import run_command
print(run_command(["export", "plan.json"]))
"""


def test_without_torch_it_can_be_asked_and_trials_can_be_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120, check=False
    )
    needs = "error: this needs torch, not installed here: run it in the environment that your trainer runs in\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "no file\n2\n", needs)


def test_without_torch_a_strategy_is_tested(tmp_path: Path) -> None:
    """Modules of these names that cannot be imported stand in every process's way."""
    for name in ("torch", "torchrec", "fbgemm_gpu"):
        (tmp_path / f"{name}.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        )
    assert said_by(beside(tmp_path), ["test", "row-wise"]) == ["row-wise: passes all 21 checks\n"]
