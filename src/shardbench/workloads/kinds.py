"""Every workload kind there is: the modules of ``shardbench.datasets`` and installed entry points."""

import pkgutil
from functools import cache, partial
from importlib import import_module
from typing import Any

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.plugins import Brought, brought_here, collect
from shardbench.base.serialise import from_data
from shardbench.workloads.workload import WorkloadConfig

GROUP = "shardbench.datasets"
"""Package whose modules are searched, and the entry-point group of other people's packages."""


def workload_kinds() -> dict[str, type[WorkloadConfig]]:
    """Return every workload kind by its ``dataset`` name.

    They are the modules of shardbench.datasets with a CONFIG, and what installed packages give:
    subclasses of WorkloadConfig, but for ``broken_dataset_packages``.
    """
    return {kind: brought.value for kind, brought in _kinds()[0].items()}


def broken_dataset_packages() -> tuple[str, ...]:
    """Return why packages are left out, one line each: they give no WorkloadConfig, or a name that is taken."""
    return _kinds()[1]


@cache
def _kinds() -> tuple[dict[str, Brought[type[WorkloadConfig]]], tuple[str, ...]]:
    modules = [import_module(f"{GROUP}.{name}") for name in _modules()]
    ours = [(m.__name__, m.__name__, partial(getattr, m, "CONFIG")) for m in modules if hasattr(m, "CONFIG")]
    return collect("dataset", (*ours, *brought_here(GROUP)), _kind_of)


def _modules() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(import_module(GROUP).__path__)]


def _kind(name: str) -> type[WorkloadConfig] | None:
    """Return the kind of a name; where a module of ours is called so, the others are not imported for it."""
    if name in _modules():
        config: object = getattr(import_module(f"{GROUP}.{name}"), "CONFIG", None)
        if config is not None and (own := dict(_kind_of(config, GROUP)).get(name)) is not None:
            return own
    return workload_kinds().get(name)


def _kind_of(config: object, package: str) -> list[tuple[str, type[WorkloadConfig]]]:
    if not (isinstance(config, type) and issubclass(config, WorkloadConfig)):
        raise BadInput(f"package {package} gives {config!r}, which is not a subclass of WorkloadConfig")
    kind = config.model_fields["dataset"].default
    if not isinstance(kind, str):
        raise BadInput(f"package {package}: {config.__name__} must give its field 'dataset' a default, the kind's name")
    return [(kind, config)]


def workload_config(data: dict[str, Any], what: str) -> WorkloadConfig:
    """Return the validated parameters of a workload; raises BadInput that names the wrong field."""
    kind = data.get("dataset")
    if not isinstance(kind, str):
        statement = "no dataset" if kind is None else f"dataset {kind!r}, which is no string"
        listed = ", ".join(sorted(workload_kinds()))
        raise BadInput(f"{what}: workload {data.get('name')} states {statement}; known: {listed}")
    config = _kind(kind)
    if config is None:
        kinds = sorted(workload_kinds())
        raise BadInput(f"{what}: {unknown('dataset', kind, kinds, left_out=broken_dataset_packages())}")
    return from_data(config, data, f"{what}: workload {data.get('name')}")
