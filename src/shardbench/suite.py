"""Suites: which workloads, machines, backends and strategies make up a job list."""

import pkgutil
import tomllib
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

import shardbench.datasets
from shardbench.errors import BadInput
from shardbench.serialise import first_error
from shardbench.table import Name, Optimizer, Precision
from shardbench.trial import Backend
from shardbench.workload import WorkloadConfig

EVERY = "*"


class Job(pydantic.BaseModel):
    """One workload on one machine by one backend, for some or all strategies."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    workload: Name
    machine: str
    backend: Backend
    batch_size: PositiveInt | None = None
    """Overrides the workload's; the measured backend of a small machine needs smaller batches."""
    iterations: PositiveInt
    warmup: NonNegativeInt = 0
    repeats: PositiveInt = 1
    strategies: tuple[str, ...] = (EVERY,)
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    plan_s: PositiveFloat = 60.0
    fit_s: PositiveFloat = 600.0
    timeout_s: PositiveFloat = 300.0


class Suite(pydantic.BaseModel):
    """A TOML file of ``benchmarks/suites`` or the user's own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Name
    description: str
    seeds: tuple[NonNegativeInt, ...] = (0,)
    workloads: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    jobs: Annotated[tuple[Job, ...], Field(min_length=1)]

    def workload(self, job: Job) -> WorkloadConfig:
        """The job's workload parameters, its batch size applied."""
        for config in self.workloads:
            if config.get("name") == job.workload:
                size = {"batch_size": job.batch_size} if job.batch_size else {}
                return workload_config({**config, **size}, f"suite {self.name}")
        known = ", ".join(str(config.get("name")) for config in self.workloads)
        raise BadInput(f"suite {self.name}: job asks for workload '{job.workload}'; it has {known}")


@cache
def dataset_kinds() -> dict[str, type[WorkloadConfig]]:
    """Every workload kind by its ``dataset`` name: the modules of shardbench.datasets with a CONFIG."""
    kinds: dict[str, type[WorkloadConfig]] = {}
    for info in pkgutil.iter_modules(shardbench.datasets.__path__):
        if info.name.startswith("fit_"):  # scripts that made the data files
            continue
        config = getattr(import_module(f"shardbench.datasets.{info.name}"), "CONFIG", None)
        if config is not None:
            kinds[config.model_fields["dataset"].default] = config
    return kinds


def workload_config(data: dict[str, Any], what: str) -> WorkloadConfig:
    """Validated parameters of a workload; raises BadInput that names the wrong field."""
    kind = data.get("dataset")
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
        text = path.read_text()
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
