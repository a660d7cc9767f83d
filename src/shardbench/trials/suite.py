"""Suites: grids of workloads, machines, backends and strategies, and the jobs that they stand for."""

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field, model_validator

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.reading import file_text, toml_data
from shardbench.base.serialise import StrictModel, first_error, from_data
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, overridden
from shardbench.model.table import BatchSize, Name, Optimizer, Precision, Seed, StepSchedule
from shardbench.records.trial import TRAINING, Backend
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.workload import WorkloadConfig

EVERY = "*"

MOST = 100_000
"""The most steps of a trial, repeats of it, seeds and jobs of a suite."""
Count = Annotated[int, Field(ge=1, le=MOST)]
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]
"""A budget: at most a week."""


class TrialSettings(StrictModel):
    """How trials are run; each may be stated for a suite, a grid or some of its cells, and the closest one counts."""

    batch_size: BatchSize | None = None
    """Overrides the workload's; the measured backend of a small machine needs smaller batches."""
    iterations: Count | None = None
    warmup: Annotated[int, Field(ge=0, le=MOST)] = 3
    """Untimed steps of a measured trial: the first ones set things up and rebuild buckets."""
    repeats: Count = 1
    race_s: Seconds | None = None
    """States that measured trials are a race: after every group who is slower than the best drops out, and after so
    many seconds no trial of a later group begins; the first one runs whole."""
    strategies: tuple[str, ...] = (EVERY,)
    """Names, and paths of plans (.json), each of which is run as if a strategy of its file's name had made it."""
    without: tuple[str, ...] = ()
    """Strategies to leave out here, such as those that learn for minutes; ``--strategy`` still runs them."""
    quick: bool = False
    """Whether the trials are part of a quick run, where one is asked for."""
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    exchange: Precision = Precision.FP32
    schedule: StepSchedule = StepSchedule.SEQUENTIAL
    plan_s: Seconds = 60.0
    fit_s: Seconds = 600.0
    timeout_s: Seconds = 300.0

    @property
    def training(self) -> dict[str, Any]:
        """Return how the model is trained, as problems, trials and ranks' jobs name it."""
        return {name: getattr(self, name) for name in TRAINING}

    def stated_settings(self) -> dict[str, Any]:
        """Return those settings that somebody stated."""
        return self.model_dump(include=set(TrialSettings.model_fields), exclude_unset=True)


class Job(TrialSettings):
    """A cell of a grid: one workload on one machine by one backend, for some or all strategies."""

    workload: Name
    machine: str
    backend: Backend
    iterations: Count
    override: dict[str, str] = Field(default_factory=dict)
    """Constants of the machine to replace, such as ``uvm_bandwidth = "16 GB/s"``; its name then says so."""

    @model_validator(mode="after")
    def _runnable(self) -> "Job":
        if self.backend is Backend.MEASURED and self.warmup == 0:
            raise ValueError("a measured job needs warmup of at least 1: its first step sets things up")
        duplicate = _duplicate(self.strategies)
        if duplicate is not None:
            raise ValueError(f"strategy '{duplicate}' is listed twice")
        strangers = sorted(set(self.without) - set(self.strategies))
        if strangers and EVERY not in self.strategies:
            raise ValueError(f"without leaves out '{strangers[0]}', which is not among the strategies")
        return self

    def load_machine(self) -> Machine:
        """Load the job's machine, its overrides applied; raises BadInput."""
        return overridden(load_machine(self.machine), self.override)


class Exceptional(TrialSettings):
    """What the cells of a grid that are chosen by one or more axes have otherwise."""

    workload: Name | None = None
    machine: str | None = None
    override: dict[str, str] | None = None
    """``{}`` chooses the machine as it is."""
    backend: Backend | None = None


_AXES = {"workload": "workloads", "machine": "machines", "override": "overrides", "backend": "backends"}


class Defaults(TrialSettings):
    """What every grid has that states nothing else."""

    workloads: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    """All of the suite's where none are stated."""
    machines: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    overrides: Annotated[tuple[dict[str, str], ...], Field(min_length=1)] = ({},)
    """Each machine is run with each of them; ``{}`` is the machine as it is."""
    backends: Annotated[tuple[Backend, ...], Field(min_length=1)] | None = None


class Grid(Defaults):
    """Every workload on every machine with every override by every backend."""

    exceptions: tuple[Exceptional, ...] = ()
    """Later ones count where several choose a cell."""

    def jobs(self, what: str) -> Iterator[Job]:
        """Yield its cells, workload by workload; raises BadInput, which begins with ``what``."""
        axes = {one: getattr(self, many) for one, many in _AXES.items()}
        for one, values in axes.items():
            if values is None:
                raise BadInput(f"{what}: states no {_AXES[one]}; state them here or in [defaults]")
        cells = prod(map(len, axes.values()))
        if cells > MOST:
            raise BadInput(f"{what}: has {cells} cells; {MOST} is the most")
        for number, exception in enumerate(self.exceptions):
            _check_exception(exception, axes, f"{what}.exceptions.{number}")
        for cell in (dict(zip(axes, values, strict=True)) for values in product(*axes.values())):
            settings = self.stated_settings()
            for exception in self.exceptions:
                if all(getattr(exception, one) in (None, value) for one, value in cell.items()):
                    settings |= exception.stated_settings()
            cell_name = f"{cell['workload']} on {cell['machine']}, {cell['backend'].value}"
            yield from_data(Job, {**cell, **settings}, f"{what} ({cell_name})")


def _check_exception(exception: Exceptional, axes: dict[str, Any], what: str) -> None:
    choice = {one: getattr(exception, one) for one in axes if getattr(exception, one) is not None}
    if not choice or not exception.stated_settings():
        raise BadInput(f"{what}: choose cells by {', '.join(axes)}, and state what is different there")
    for one, value in choice.items():
        if value not in axes[one]:
            raise BadInput(f"{what}: the grid has no {one} {value}; it has {', '.join(map(str, axes[one]))}")


class _SuiteHead(StrictModel):
    """What a suite states of itself, and its workloads."""

    name: Name
    description: str
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MOST)] = (0,)
    workloads: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    calibrate: bool = False
    """Whether a run calibrates the machines that it measures on, before and after, and refuses busy ones."""


class Suite(_SuiteHead):
    """Workloads, and the jobs of all grids in the order in which they run."""

    jobs: Annotated[tuple[Job, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> "Suite":
        duplicate = _duplicate([str(config.get("name")) for config in self.workloads])
        if duplicate is not None:
            raise ValueError(f"two workloads have the name '{duplicate}'")
        job = _duplicate([self._facts(job) for job in self.jobs])
        if job is not None:
            raise ValueError(f"two jobs are alike: {job}; list all their strategies in one grid")
        return self

    def _facts(self, job: Job) -> str:
        """Say what a job is of; its strategies and settings are not part of that."""
        sizes = {str(config.get("name")): config.get("batch_size") for config in self.workloads}
        size = job.batch_size or sizes.get(job.workload)
        facts = (job.workload, job.machine, job.backend.value, size, *(kind.value for kind in job.training.values()))
        return " ".join(map(str, (*facts, *(f"{k}={v}" for k, v in sorted(job.override.items())))))

    def on(self, machine: str) -> "Suite":
        """Return the suite with all jobs on this machine, by name or path; of jobs that are then alike the first."""
        by_facts: dict[str, Job] = {}
        for job in self.jobs:
            job_there = job.model_copy(update={"machine": machine})
            by_facts.setdefault(self._facts(job_there), job_there)
        return self.model_copy(update={"jobs": tuple(by_facts.values())})

    def workload(self, job: Job) -> WorkloadConfig:
        """Return the job's workload parameters, its batch size applied."""
        for config in self.workloads:
            if config.get("name") == job.workload:
                size = {"batch_size": job.batch_size} if job.batch_size else {}
                return workload_config({**config, **size}, f"suite {self.name}")
        names = ", ".join(str(config.get("name")) for config in self.workloads)
        raise BadInput(f"suite {self.name}: a grid asks for workload '{job.workload}'; it has {names}")


class _SuiteFile(_SuiteHead):
    """A TOML file of ``benchmarks/suites`` or the user's own."""

    defaults: Defaults = Defaults()
    grids: Annotated[tuple[Grid, ...], Field(min_length=1)]

    def jobs(self, what: str) -> Iterator[Job]:
        names = {"workloads": [str(config.get("name")) for config in self.workloads]}
        for number, grid in enumerate(self.grids):
            whole = {**names, **self.defaults.model_dump(exclude_unset=True), **grid.model_dump(exclude_unset=True)}
            yield from Grid.model_validate(whole).jobs(f"{what}: grids.{number}")


def _duplicate(names: Sequence[str]) -> str | None:
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def suite_names() -> list[str]:
    """List the names of the suites that come with the project."""
    folder = resources.files("shardbench.suites")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load_suite(name: str) -> Suite:
    """Suite by its name, or by the path of a TOML file (anything that ends in ``.toml``); raises BadInput."""
    suite = read_suite(name)
    for job in suite.jobs:
        suite.workload(job)
    return suite


def read_suite(name: str) -> Suite:
    """Read a suite with workloads as they are written, which takes no import of data sets; raises BadInput."""
    what = f"suite {name}"
    try:
        file = _SuiteFile.model_validate(toml_data(_text(name), what))
        facts = {field: getattr(file, field) for field in _SuiteHead.model_fields}
        return Suite(**facts, jobs=tuple(file.jobs(what)))
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error


def _text(name: str) -> str:
    if not name.endswith(".toml"):
        if name not in suite_names():
            raise BadInput(unknown("suite", name, suite_names(), "shardbench list suites, or give a .toml file"))
        return (resources.files("shardbench.suites") / f"{name}.toml").read_text()
    return file_text(Path(name), "suite file")
