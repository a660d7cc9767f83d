"""Suites, machine files and jobs that cannot be used are refused at load, in one line."""

import re
from dataclasses import replace

import pydantic
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.model.machine import load_machine
from shardbench.model.table import DenseShape, Optimizer, Table
from shardbench.records.trial import Backend
from shardbench.runs.jobcheck import check_job, lacking_devices
from shardbench.runs.suite import Job, load_suite

WORKLOAD = """
[[workloads]]
name = "drawn"
dataset = "synthetic"
batch_size = 16
"""
JOB = """
[[jobs]]
workload = "drawn"
machine = "cpu-1x2"
backend = "simulated"
iterations = 1
"""
HEAD = 'name = "tiny"\ndescription = "for tests"\n'


def load(tmp_path, text):
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return load_suite(str(path))


def test_a_suite_loads(tmp_path):
    other = JOB.replace("simulated", "measured")
    larger = JOB + "batch_size = 32\n"
    suite = load(tmp_path, HEAD + WORKLOAD + JOB + other + larger)
    assert [job.warmup for job in suite.jobs] == [3, 3, 3]


REFUSED = [
    (WORKLOAD + WORKLOAD + JOB, "two workloads have the name 'drawn'"),
    (WORKLOAD + JOB + JOB, "two jobs are alike: drawn cpu-1x2 simulated 16 fp32 sgd"),
    (WORKLOAD + JOB + JOB + "batch_size = 16\n", "two jobs are alike"),
    (WORKLOAD + JOB + 'strategies = ["shuffle", "shuffle"]', "strategy 'shuffle' is listed twice"),
    (WORKLOAD.replace('"synthetic"', '["synthetic"]') + JOB, "workload drawn states dataset ['synthetic'], which is"),
    (WORKLOAD.replace('dataset = "synthetic"', "") + JOB, "workload drawn states no dataset; known: "),
    (WORKLOAD + JOB + "plan_s = inf", "jobs.0.plan_s: "),
    (WORKLOAD + JOB + "fit_s = nan", "jobs.0.fit_s: "),
    (WORKLOAD + JOB + "timeout_s = 604801", "jobs.0.timeout_s: "),
    (WORKLOAD + JOB.replace("simulated", "measured") + "warmup = 0", "a measured job needs warmup of at least 1"),
    (WORKLOAD + "dense = { top = [8, 2] }" + JOB, "must end in 1, the logit"),
    (WORKLOAD + "dense = { bottom = [] }" + JOB, "needs at least one layer width"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_suites_are_refused_at_load(tmp_path, text, says):
    with pytest.raises(BadInput) as caught:
        load(tmp_path, HEAD + text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [load_suite, load_machine])
def test_bytes_that_are_no_text_are_refused(tmp_path, read):
    path = tmp_path / "bad.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(BadInput, match="is not UTF-8 text: invalid start byte at byte 8"):
        read(str(path))


@pytest.mark.parametrize("shape", [{"rows": 8, "dim": 6}, {"rows": 8, "dim": 0}, {"rows": 2**40 + 1, "dim": 8}])
def test_tables_that_no_kernel_takes_are_refused(shape):
    with pytest.raises(pydantic.ValidationError):
        Table(name="t", **shape)


@pytest.mark.parametrize("shape", [{"bottom": ()}, {"top": ()}, {"top": (8,)}])
def test_dense_parts_without_layers_or_logit_are_refused(shape):
    with pytest.raises(pydantic.ValidationError):
        DenseShape(**shape)


def job(**changes):
    return Job(workload="random", machine="toy", backend=Backend.SIMULATED, iterations=1, **changes)


@pytest.mark.parametrize(
    ("batch", "devices", "says"),
    [(7, 2, "batch size 7 is not a multiple of the 2 devices; set batch_size = 6"), (2, 4, "set batch_size = 4")],
)
def test_batches_that_cannot_be_shared_out_are_refused(batch, devices, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        check_job(RandomWorkload([(100, 8)], batch), machine(1, devices), job())


def test_tables_that_fit_nowhere_are_refused():
    workload = RandomWorkload([(1000, 8)], 16)
    small = machine(1, 2, hbm=16_000, uvm=0)
    none = replace(small, topology=replace(small.topology, host_bytes=0))
    check_job(workload, none, job())
    with pytest.raises(BadInput, match=r"the tables need .* with optimizer state, the machine has .* in all"):
        check_job(workload, none, job(optimizer=Optimizer.ROWWISE_ADAGRAD))
    check_job(workload, small, job(optimizer=Optimizer.ROWWISE_ADAGRAD))


def test_devices_are_only_needed_to_measure_on_devices(monkeypatch):
    monkeypatch.setattr("shardbench.runs.jobcheck.cuda_devices", lambda: 1)
    cpu = machine(1, 2)
    cuda = replace(cpu, device="cuda")
    assert lacking_devices(cuda, Backend.MEASURED) == "needs 2 CUDA devices, this machine has 1"
    assert lacking_devices(cuda, Backend.SIMULATED) == lacking_devices(cpu, Backend.MEASURED) == ""
