"""The problems of a version of the leaderboard, as its file states them."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from shardbench.base.serialise import StrictModel, content_hash
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import Name, Precision, StepSchedule
from shardbench.trials.simulate import CountedQuestion, Simulation
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

VERSION = 3


class Posed(StrictModel):
    """A workload and the machines that it is placed on."""

    name: Name
    machines: Annotated[tuple[str, ...], Field(min_length=1)]
    parameters: dict[str, Any]
    family: str = ""
    """Families weigh alike in scores, however many problems they have."""
    fills: PositiveFloat | None = None
    """Share of the devices' HBM that the tables take, which says how much HBM there is; None: the machine's own."""
    schedule: StepSchedule = StepSchedule.SEQUENTIAL
    precision: Precision = Precision.FP32
    """The number format of weights."""
    exchange: Precision | None = None
    """The number format of what ranks exchange; None: that of the weights."""
    samples_a_device: PositiveInt | None = None
    """The batch grows with the machine, up to ``most_samples``; None: it is stated with the parameters."""
    most_samples: PositiveInt | None = None
    published: tuple[str, ...] = ()
    """Machines on which those that learn do so for as long as they were published to."""


class Version(StrictModel):
    """A frozen list of problems and efforts."""

    version: PositiveInt
    efforts: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """Seconds for learning and planning together."""
    published_s: PositiveFloat
    shortens: tuple[Name, ...] = ()
    """Strategies that make short the formula that judges."""
    learns_from: tuple[Name, ...] = ()
    """Strategies that learn from what it gives."""
    workloads: Annotated[tuple[Posed, ...], Field(min_length=1)]

    def problems(self) -> Iterator[tuple[Posed, str]]:
        """Yield workloads with their machines, one workload after the other."""
        for posed in self.workloads:
            yield from ((posed, machine) for machine in posed.machines)

    def posed(self, workload: str) -> Posed:
        """Return the workload of that name."""
        return next(posed for posed in self.workloads if posed.name == workload)


def text(version: int = VERSION) -> str:
    """Return the text of a version's file."""
    return (resources.files(__package__ or "") / f"v{version}.toml").read_text(encoding="ascii")


@cache
def load(version: int = VERSION) -> Version:
    """Read a version from its file."""
    return Version.model_validate(tomllib.loads(text(version)))


@lru_cache(maxsize=1)
def _workload(version: int, name: str, batch_size: int | None) -> tuple[Workload, DrawnBatches]:
    """Return a workload with its test batches, none of them drawn yet, which all its machines have in common.

    The last one is kept for the next strategy.
    """
    size = {} if batch_size is None else {"batch_size": batch_size}
    data: dict[str, Any] = {**load(version).posed(name).parameters, "name": name, **size}
    workload = workload_config(data, f"leaderboard {version}").build(Path())
    return workload, DrawnBatches(workload, int(data.get("test_batches", 1)))


class JudgedOnce(CountedQuestion):
    """A question that keeps what plans came to: strategies give one plan for several efforts, and each other's."""

    def __init__(self, problem: Problem, workload: Workload, batches: DrawnBatches) -> None:
        super().__init__(problem, batches, workload.dense, len(batches.numbers))
        self._simulations: dict[str, Simulation] = {}

    def judge(self, plan: Plan) -> Simulation:
        """Count a plan that was not seen yet."""
        key = content_hash(replace(plan, notes={}))
        if key not in self._simulations:
            self._simulations[key] = super().judge(plan)
        return self._simulations[key]


def workload_and_batches(version: int, posed: Posed, machine: Machine) -> tuple[Workload, DrawnBatches]:
    """Return what is posed on a machine: the workload, and its test batches."""
    size = None
    if posed.samples_a_device is not None:
        size = posed.samples_a_device * machine.topology.world_size
        size = min(size, posed.most_samples or size)
    return _workload(version, posed.name, size)


def filled(problem: Problem, share: float) -> Problem:
    """Return the problem on devices with as much HBM that its tables take ``share`` of all of it."""
    total = sum(map(problem.weight_bytes, problem.tables))
    topology = replace(problem.topology, hbm_bytes=round(total / share / problem.world_size))
    return replace(problem, machine=replace(problem.machine, topology=topology), topology=topology)


@lru_cache(maxsize=2)
def question(version: int, name: str, machine_name: str, *, inputs: bool) -> CountedQuestion:
    """Return a problem with the test batches that plans are judged on, and a sample of train inputs if ``inputs``."""
    machine = load_machine(machine_name)
    posed = load(version).posed(name)
    workload, batches = workload_and_batches(version, posed, machine)
    problem = workload.problem(
        machine, precision=posed.precision, exchange=posed.exchange or posed.precision, schedule=posed.schedule,
        inputs=workload.input_sample if inputs else None,
    )  # fmt: skip
    if posed.fills is not None:
        problem = filled(problem, posed.fills)
    return JudgedOnce(problem, workload, batches)
