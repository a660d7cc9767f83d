"""Every workload kind there is: the modules of ``shardbench.datasets`` and installed entry points."""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

import pydantic

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.plugins import brought
from shardbench.base.serialise import first_error
from shardbench.workloads.workload import WorkloadConfig

GROUP = "shardbench.datasets"
"""Package whose modules are searched, and the entry-point group of other people's packages."""


def workload_kinds() -> dict[str, type[WorkloadConfig]]:
    """Return every workload kind by its ``dataset`` name.

    They are the modules of shardbench.datasets with a CONFIG, and what installed packages give:
    subclasses of WorkloadConfig, but for ``broken_dataset_packages``.
    """
    return _kinds()[0]


def broken_dataset_packages() -> tuple[str, ...]:
    """Return why packages are left out, one line each: they give no WorkloadConfig, or a name that is taken."""
    return _kinds()[1]


@cache
def _kinds() -> tuple[dict[str, type[WorkloadConfig]], tuple[str, ...]]:
    kinds: dict[str, type[WorkloadConfig]] = {}
    for info in pkgutil.iter_modules(import_module(GROUP).__path__):
        config = getattr(import_module(f"{GROUP}.{info.name}"), "CONFIG", None)
        if config is not None:
            kinds[config.model_fields["dataset"].default] = config
    broken: list[str] = []
    for package, _, load in brought(GROUP):
        try:
            kind, config = _kind_of(package, load())
            if kind in kinds:
                raise BadInput(f"dataset '{kind}' of {package} is already taken by {kinds[kind].__module__}: rename it")
            kinds[kind] = config
        except BadInput as error:
            broken.append(str(error))
    return kinds, tuple(broken)


def _kind_of(package: str, config: object) -> tuple[str, type[WorkloadConfig]]:
    if not (isinstance(config, type) and issubclass(config, WorkloadConfig)):
        raise BadInput(f"package {package} gives {config!r}, which is not a subclass of WorkloadConfig")
    kind = config.model_fields["dataset"].default
    if not isinstance(kind, str):
        raise BadInput(f"package {package}: {config.__name__} must give its field 'dataset' a default, the kind's name")
    return kind, config


def workload_config(data: dict[str, Any], what: str) -> WorkloadConfig:
    """Return the validated parameters of a workload; raises BadInput that names the wrong field."""
    kind, known = data.get("dataset"), sorted(workload_kinds())
    if not isinstance(kind, str):
        stated = "no dataset" if kind is None else f"dataset {kind!r}, which is no string"
        raise BadInput(f"{what}: workload {data.get('name')} states {stated}; known: {', '.join(known)}")
    if kind not in workload_kinds():
        text = f"{what}: {unknown('dataset', kind, known)}"
        raise BadInput("; ".join([text, *(f"left out: {cause}" for cause in broken_dataset_packages())]))
    try:
        return workload_kinds()[kind].model_validate(data)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: workload {data.get('name')}: {first_error(error)}") from error
