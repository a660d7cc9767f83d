"""Suites, machine files and jobs that cannot be used are refused at load, in one line."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pydantic
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.model.machine_file import load_machine
from shardbench.model.table import DenseShape, Optimizer, Table
from shardbench.records.trial import Backend
from shardbench.trials.jobcheck import impossible
from shardbench.trials.suite import Job, load_suite, read_suite

WORKLOAD = """
[[workloads]]
name = "drawn"
dataset = "synthetic"
batch_size = 16
"""
GRID = """
[[grids]]
workloads = ["drawn"]
machines = ["cpu-1x2"]
backends = ["simulated"]
iterations = 1
"""
HEAD = 'name = "tiny"\ndescription = "for tests"\n'


def load(tmp_path, text):
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return load_suite(str(path))


def test_a_suite_loads(tmp_path):
    other = GRID.replace("simulated", "measured")
    larger = GRID + "batch_size = 32\n"
    suite = load(tmp_path, HEAD + WORKLOAD + GRID + other + larger)
    assert [job.warmup for job in suite.jobs] == [3, 3, 3]


ALL = """
[defaults]
iterations = 4
strategies = ["shuffle", "greedy-size"]
[[grids]]
machines = ["a100-40gb-2x8", "cpu-1x2"]
overrides = [{}, { uvm_bandwidth = "16 GB/s" }]
backends = ["simulated", "measured"]
without = ["shuffle"]
exceptions = [
  { workload = "drawn", plan_s = 1, iterations = 2 },
  { machine = "cpu-1x2", override = {}, backend = "measured", quick = true, without = [], plan_s = 2 },
  { override = { uvm_bandwidth = "16 GB/s" }, repeats = 2 },
]
[[grids]]
workloads = ["other"]
machines = ["h100-1x8"]
backends = ["simulated"]
iterations = 1
"""


def test_a_grid_is_every_combination_and_the_closest_statement_counts(tmp_path):
    jobs = load(tmp_path, HEAD + WORKLOAD + WORKLOAD.replace("drawn", "other") + ALL).jobs
    axes = [(job.workload, job.machine, len(job.override), job.backend.value) for job in jobs]
    backends = ("simulated", "measured")
    machines = ("a100-40gb-2x8", "cpu-1x2")
    combinations = product(("drawn", "other"), machines, (0, 1), backends)
    assert axes == [*combinations, ("other", "h100-1x8", 0, "simulated")]
    assert [job.iterations for job in jobs] == [2] * 8 + [4] * 8 + [1]
    chosen = [job.machine == "cpu-1x2" and not job.override and job.backend is Backend.MEASURED for job in jobs]
    assert sum(chosen) == 2
    assert [job.quick for job in jobs] == chosen
    assert [job.without == ("shuffle",) for job in jobs] == [not one for one in chosen[:-1]] + [False]
    assert [job.plan_s for job in jobs[:8]] == [2 if one else 1 for one in chosen[:8]]
    assert [job.plan_s for job in jobs[8:]] == [2 if one else 60 for one in chosen[8:]]
    assert [job.repeats for job in jobs] == [1 + len(job.override) for job in jobs]
    assert {job.strategies for job in jobs} == {("shuffle", "greedy-size")}


def test_a_suite_on_another_machine_has_each_job_once(tmp_path):
    suite = load(tmp_path, HEAD + WORKLOAD + WORKLOAD.replace("drawn", "other") + ALL)
    moved = suite.on("cpu-2x2")
    assert {job.machine for job in moved.jobs} == {"cpu-2x2"}
    axes = [(job.workload, len(job.override), job.backend.value) for job in moved.jobs]
    assert axes == list(product(("drawn", "other"), (0, 1), ("simulated", "measured")))
    assert [job.plan_s for job in moved.jobs] == [1, 1, 1, 1, 60, 60, 60, 60]  # the first of those alike counts
    assert load_suite("measured").on("cpu-1x2").on("cpu-1x2") == load_suite("measured").on("cpu-1x2")


@pytest.mark.parametrize("world", [*range(1, 11), 12, 16])
def test_the_suite_for_gpus_can_be_run_on_as_many_as_there_are(world):
    suite = load_suite("gpu")
    for job in suite.jobs:
        with_memory = machine(1, world, hbm=10 * 10**9)
        assert impossible(suite.workload(job).build(None), with_memory, job) == ""


def test_the_example_of_the_guide_loads(tmp_path):
    guide = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(
        "```toml\n(.*?)```", guide.partition("## Write a suite")[2].partition("\n## ")[0], re.DOTALL
    )
    jobs = load(tmp_path, HEAD + WORKLOAD.replace("drawn", "mine") + example).jobs
    assert [(job.machine, job.batch_size, job.plan_s, job.quick) for job in jobs] == [
        ("a100-40gb-2x8", None, 60, True),
        ("a100-40gb-2x8", None, 60, False),
        ("h100-1x8", 4096, 180, True),
        ("h100-1x8", 4096, 180, False),
    ]


def test_suites_are_counted_without_making_their_workloads(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text(HEAD + WORKLOAD.replace("synthetic", "of-no-kind") + GRID)
    assert len(read_suite(str(path)).jobs) == 1
    with pytest.raises(BadInput, match="unknown dataset 'of-no-kind'"):
        load_suite(str(path))


def changed(text):
    """A grid with one exception, or with one more line."""
    return WORKLOAD + GRID + text + "\n"


REFUSED = [
    (
        changed("exceptions = [{ machine = 'cpu-1x4', quick = true }]"),
        "grids.0.exceptions.0: the grid has no machine c",
    ),
    (
        changed("exceptions = [{ backend = 'measured', quick = true }]"),
        "the grid has no backend measured; it has ",
    ),
    (
        changed("exceptions = [{ override = { launch = '1 us' }, quick = true }]"),
        "the grid has no override {",
    ),
    (changed("exceptions = [{ quick = true }]"), "grids.0.exceptions.0: choose cells by workload, machine, override"),
    (changed("exceptions = [{ workload = 'drawn' }]"), "and state what is different there"),
    (changed("exceptions = [{ workload = 'drawn', speed = 1 }]"), "grids.0.exceptions.0.speed: Extra inputs"),
    (changed("exceptions = [{ workload = 'drawn', warmup = -1 }]"), "grids.0.exceptions.0.warmup: "),
    (changed("machine = 'cpu-1x2'"), "grids.0.machine: Extra inputs are not permitted"),
    (changed("[defaults]\nplan_s = -1"), "defaults.plan_s: "),
    (changed("[defaults]\nexceptions = []"), "defaults.exceptions: Extra inputs are not permitted"),
    (changed("[[grids]]\nbackends = ['simulated']"), "grids.1: states no machines; state them here or in [defaults]"),
    (changed("overrides = []"), "grids.0.overrides: "),
    (changed("").replace('"drawn"]', '"drown"]'), "a grid asks for workload 'drown'; it has drawn"),
    (changed("").replace("iterations = 1", ""), "grids.0 (drawn on cpu-1x2, simulated): iterations: Field required"),
    (
        changed("strategies = ['shuffle']\nwithout = ['search']"),
        "leaves out 'search', which is not among the str",
    ),
    (WORKLOAD + WORKLOAD + GRID, "two workloads have the name 'drawn'"),
    (WORKLOAD + GRID + GRID, "two jobs are alike: drawn cpu-1x2 simulated 16 fp32 sgd"),
    (WORKLOAD + GRID + GRID + "batch_size = 16\n", "two jobs are alike"),
    (WORKLOAD + GRID + 'strategies = ["shuffle", "shuffle"]', "strategy 'shuffle' is listed twice"),
    (WORKLOAD.replace('"synthetic"', '["synthetic"]') + GRID, "workload drawn states dataset ['synthetic'], which is"),
    (WORKLOAD.replace('dataset = "synthetic"', "") + GRID, "workload drawn states no dataset; known: "),
    (WORKLOAD + GRID + "plan_s = inf", "grids.0.plan_s: "),
    (WORKLOAD + GRID + "fit_s = nan", "grids.0.fit_s: "),
    (WORKLOAD + GRID + "timeout_s = 604801", "grids.0.timeout_s: "),
    (WORKLOAD + GRID.replace("simulated", "measured") + "warmup = 0", "a measured job needs warmup of at least 1"),
    (WORKLOAD + "dense = { top = [8, 2] }" + GRID, "must end in 1, the logit"),
    (WORKLOAD.replace("batch_size = 16", "batch_size = 10_000_000") + GRID, "batch_size: Input should be less than or"),
    (WORKLOAD + "dim = 4_000_000_000" + GRID, "dim: Input should be less than or equal to 65536"),
    (WORKLOAD + "dim = 6" + GRID, "dim: Input should be a multiple of 4"),
    (
        WORKLOAD + GRID.replace("iterations = 1", f"iterations = {10**30}"),
        "grids.0.iterations: Input should be less than or equal to 100000",
    ),
    (WORKLOAD + GRID + "repeats = 1_000_000", "grids.0.repeats: Input should be less than or equal to 100000"),
    (WORKLOAD + GRID + f"overrides = [{'{},' * 100_001}]", "grids.0: has 100001 cells; 100000 is the most"),
    ("workloads = 5" + GRID, "workloads: Input should be a valid tuple"),
    (WORKLOAD + "dense = { bottom = [] }" + GRID, "dense.bottom: Tuple should have at least 1 item"),
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
def test_batches_that_cannot_be_shared_out_are_impossible(batch, devices, says):
    assert says in impossible(RandomWorkload([(100, 8)], batch), machine(1, devices), job())


def test_tables_that_fit_nowhere_are_impossible():
    workload = RandomWorkload([(1000, 8)], 16)
    small = machine(1, 2, hbm=16_000, uvm=0)
    none = replace(small, topology=replace(small.topology, host_bytes=0))
    assert impossible(workload, none, job()) == ""
    cause = impossible(workload, none, job(optimizer=Optimizer.ROWWISE_ADAGRAD))
    assert re.search("the tables need .* with optimizer state, the machine has .* in all", cause)
    assert impossible(workload, small, job(optimizer=Optimizer.ROWWISE_ADAGRAD)) == ""
