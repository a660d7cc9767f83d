"""Suites: which workloads, machines, backends and strategies make up a job list."""

import pkgutil
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata, resources
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from shardbench.base.errors import BadInput
from shardbench.base.serialise import first_error
from shardbench.model.machine import Machine, load_machine, overridden
from shardbench.model.table import Name, Optimizer, Precision
from shardbench.records.trial import Backend
from shardbench.workloads.workload import WorkloadConfig

DATASETS = "shardbench.datasets"
"""Package whose modules are searched, and the entry-point group of other people's packages."""
EVERY = "*"

Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]
"""A budget: at most a week."""


class Job(pydantic.BaseModel):
    """One workload on one machine by one backend, for some or all strategies."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    workload: Name
    machine: str
    backend: Backend
    batch_size: PositiveInt | None = None
    """Overrides the workload's; the measured backend of a small machine needs smaller batches."""
    iterations: PositiveInt
    warmup: NonNegativeInt = 3
    """Untimed steps of a measured trial: the first ones set things up and rebuild buckets."""
    repeats: PositiveInt = 1
    strategies: tuple[str, ...] = (EVERY,)
    without: tuple[str, ...] = ()
    """What ``*`` leaves out here, such as strategies that learn for minutes; ``--strategy`` still runs them."""
    override: dict[str, str] = Field(default_factory=dict)
    """Constants of the machine to replace, such as ``uvm_bandwidth = "16 GB/s"``; its name then says so."""
    quick: bool = False
    """Whether the job is part of a quick run, where one is asked for."""
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    plan_s: Seconds = 60.0
    fit_s: Seconds = 600.0
    timeout_s: Seconds = 300.0

    @model_validator(mode="after")
    def _runnable(self) -> "Job":
        if self.backend is Backend.MEASURED and self.warmup == 0:
            raise ValueError("a measured job needs warmup of at least 1: its first step sets things up")
        twice = _twice(self.strategies)
        if twice is not None:
            raise ValueError(f"strategy '{twice}' is listed twice")
        return self

    def load_machine(self) -> Machine:
        """The job's machine, its overrides applied; raises BadInput."""
        return overridden(load_machine(self.machine), self.override)


class Suite(pydantic.BaseModel):
    """A TOML file of ``benchmarks/suites`` or the user's own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Name
    description: str
    seeds: tuple[NonNegativeInt, ...] = (0,)
    workloads: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    jobs: Annotated[tuple[Job, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> "Suite":
        twice = _twice([str(config.get("name")) for config in self.workloads])
        if twice is not None:
            raise ValueError(f"two workloads have the name '{twice}'")
        sizes = {str(config.get("name")): config.get("batch_size") for config in self.workloads}
        jobs = [
            (job.workload, job.machine, job.backend.value, job.batch_size or sizes.get(job.workload),
             job.precision.value, job.optimizer.value, *(f"{k}={v}" for k, v in sorted(job.override.items())))
            for job in self.jobs
        ]  # fmt: skip
        job = _twice([" ".join(map(str, facts)) for facts in jobs])
        if job is not None:
            raise ValueError(f"two jobs are alike: {job}; list all their strategies in one")
        return self

    def workload(self, job: Job) -> WorkloadConfig:
        """The job's workload parameters, its batch size applied."""
        for config in self.workloads:
            if config.get("name") == job.workload:
                size = {"batch_size": job.batch_size} if job.batch_size else {}
                return workload_config({**config, **size}, f"suite {self.name}")
        known = ", ".join(str(config.get("name")) for config in self.workloads)
        raise BadInput(f"suite {self.name}: job asks for workload '{job.workload}'; it has {known}")


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


@cache
def dataset_kinds() -> dict[str, type[WorkloadConfig]]:
    """Every workload kind by its ``dataset`` name.

    They are the modules of shardbench.datasets with a CONFIG, and what installed packages give
    under the entry-point group ``shardbench.datasets``: subclasses of WorkloadConfig.
    """
    kinds: dict[str, type[WorkloadConfig]] = {}
    for info in pkgutil.iter_modules(import_module(DATASETS).__path__):
        if info.name.startswith("fit_"):  # scripts that made the data files
            continue
        config = getattr(import_module(f"{DATASETS}.{info.name}"), "CONFIG", None)
        if config is not None:
            kinds[config.model_fields["dataset"].default] = config
    for point in sorted(metadata.entry_points(group=DATASETS), key=lambda p: (p.name, p.value)):
        what = f"dataset entry point {point.name} = {point.value}"
        try:
            config = point.load()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadInput(f"{what} cannot be imported: {reason}") from error
        if not (isinstance(config, type) and issubclass(config, WorkloadConfig)):
            raise BadInput(f"{what} gives {config!r}, which is not a subclass of WorkloadConfig")
        kind = config.model_fields["dataset"].default
        if not isinstance(kind, str):
            raise BadInput(f"{what}: {config.__name__} must give its field 'dataset' a default, the kind's name")
        if kind in kinds:
            raise BadInput(f"{what}: there is a dataset '{kind}' already ({kinds[kind].__module__}): rename it")
        kinds[kind] = config
    return kinds


def workload_config(data: dict[str, Any], what: str) -> WorkloadConfig:
    """Validated parameters of a workload; raises BadInput that names the wrong field."""
    kind = data.get("dataset")
    if not isinstance(kind, str):
        stated = "no dataset" if kind is None else f"dataset {kind!r}, which is no string"
        raise BadInput(
            f"{what}: workload {data.get('name')} states {stated}; known: {', '.join(sorted(dataset_kinds()))}"
        )
    if kind not in dataset_kinds():
        raise BadInput(f"{what}: unknown dataset '{kind}'; known: {', '.join(sorted(dataset_kinds()))}")
    try:
        return dataset_kinds()[kind].model_validate(data)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: workload {data.get('name')}: {first_error(error)}") from error


def suite_names() -> list[str]:
    """Names of the suites that come with the project."""
    folder = resources.files("shardbench.suites")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def load_suite(name: str) -> Suite:
    """Suite by its name, or by the path of a TOML file (anything that ends in ``.toml``)."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise BadInput(f"suite file {name} does not exist")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"suite file {name} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    elif name in suite_names():
        text = (resources.files("shardbench.suites") / f"{name}.toml").read_text()
    else:
        raise BadInput(f"unknown suite '{name}'; known: {', '.join(suite_names())}, or a path to a .toml file")
    try:
        suite = Suite.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"suite {name}: not TOML: {error}") from error
    except pydantic.ValidationError as error:
        raise BadInput(f"suite {name}: {first_error(error)}") from error
    for job in suite.jobs:
        suite.workload(job)
    return suite
