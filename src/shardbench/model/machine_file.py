"""Machine files: TOML that states a machine's constants with unit, source and error, and what overrides change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from functools import cache, lru_cache, partial
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import pydantic
from pydantic import Field

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.plugins import Brought, brought_here, collect
from shardbench.base.reading import file_text, toml_data
from shardbench.base.serialise import STRICT, first_error, from_data
from shardbench.model.machine import (
    Constants,
    Devices,
    ErrorFactor,
    HostConstants,
    Machine,
    MatrixConstants,
    NcclConstants,
    Positive,
    Topology,
    Trust,
)
from shardbench.model.table import Name

GROUP = "shardbench.machines"
"""Package of our machine files, and the entry-point group of other people's packages."""
MAX_VALUE = 1e18
"""No constant is larger, in whatever unit it is stated."""
UNITS: dict[str, tuple[str, float]] = {
    "B": ("bytes", 1.0), "KiB": ("bytes", 2.0**10), "MiB": ("bytes", 2.0**20), "GiB": ("bytes", 2.0**30),
    "TiB": ("bytes", 2.0**40), "MB": ("bytes", 1e6), "GB": ("bytes", 1e9), "TB": ("bytes", 1e12),
    "MB/s": ("bytes_per_s", 1e6), "GB/s": ("bytes_per_s", 1e9), "GiB/s": ("bytes_per_s", 2.0**30),
    "TB/s": ("bytes_per_s", 1e12), "ns": ("s", 1e-9), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0),
    "GFLOP/s": ("flop_per_s", 1e9), "TFLOP/s": ("flop_per_s", 1e12), "ratio": ("ratio", 1.0),
    "rows": ("rows", 1.0),
}  # fmt: skip


class _Constant(pydantic.BaseModel):
    model_config = STRICT
    value: Annotated[float, Field(ge=0, le=MAX_VALUE, allow_inf_nan=False)]
    unit: str
    source: Annotated[str, Field(min_length=8)]
    error: ErrorFactor | None = None
    error_source: Annotated[str, Field(min_length=8)] | None = None


class _DenseStep(pydantic.BaseModel):
    model_config = STRICT
    ms: Positive
    source: Annotated[str, Field(min_length=8)]


class _MachineFile(pydantic.BaseModel):
    model_config = STRICT
    name: Name
    description: str
    device: Literal["cuda", "cpu"]
    nodes: Devices
    devices_per_node: Devices
    constants: dict[str, _Constant]
    dense_steps: dict[Name, _DenseStep] = Field(default_factory=dict)
    trust: Trust | None = None


SHARES = {"gather_efficiency_ratio", "gradient_ratio", "uvm_hit_ratio"}
"""Fields that are at most 1."""


class Key(NamedTuple):
    """A constant of a machine file."""

    holder: str
    """The field of ``Machine`` whose own field it is; a part is on machines that state it, all of it or nothing."""
    field: str
    dimension: str
    optional: bool
    """Whether a file may leave it out, since it is of GPUs."""


_HOLDERS: dict[str, type[Any]] = {
    "topology": Topology, "constants": Constants, "host": HostConstants, "matrix": MatrixConstants,
    "nccl": NcclConstants,
}  # fmt: skip


def _keys(holder: str) -> Iterator[tuple[str, Key]]:
    """Yield the constants of a holder with their keys, which stand beside the types of its fields."""
    hints = get_type_hints(_HOLDERS[holder], include_extras=True)
    for field in fields(_HOLDERS[holder]):
        optional = field.default is not MISSING
        dimension = max((of for of, _ in UNITS.values() if field.name.endswith(of)), key=len, default="")
        for key in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(key, str):
                yield key, Key(holder, field.name, dimension, optional)


KEYS: dict[str, Key] = {key: of for holder in _HOLDERS for key, of in _keys(holder)}
"""All constants by their keys in machine files, in the order in which these are written."""
_CAPACITIES = ("hbm_capacity", "uvm_capacity", "host_capacity", "cache_capacity")
"""What is known as it is; whatever else a file states, it states with an error."""
GPU_FIELDS = tuple(of.field for of in KEYS.values() if of.optional)
"""The fields of constants that are of GPUs."""


def source_name(key: str) -> str:
    """Return the name of a constant in ``Machine.sources`` and ``errors``: its field's, or of a part its key."""
    # A host's rates keep their keys: a device has a field of the same name.
    return KEYS[key].field if KEYS[key].holder in ("topology", "constants") else key


KEY_OF = {source_name(key): key for key in KEYS}
"""The key of each constant by its name in ``Machine.sources``."""


def known_keys(machine: Machine) -> list[str]:
    """Return the keys of all constants that the machine states."""
    return [
        key
        for key, of in KEYS.items()
        if getattr(machine, of.holder) is not None and (not of.optional or of.field in machine.sources)
    ]


def parse_machine(text: str, what: str) -> Machine:
    """Parse a machine out of TOML text; raises BadInput that names a constant missing, negative or of a wrong unit.

    A text that states a ``base``, another machine's name, has the constants that it does not state as that machine
    has them, which may have a base itself. What was measured of the base, its dense steps and its trust, is not of the
    other machine.
    """
    file = from_data(_MachineFile, _on_its_base(_read(text, what), what), what)
    holders = {"topology", "constants", *(KEYS[key].holder for key in file.constants if key in KEYS)}
    stated = {key for key, of in KEYS.items() if of.holder in holders and (not of.optional or key in file.constants)}
    missing, strange = sorted(stated - file.constants.keys()), sorted(file.constants.keys() - stated)
    if missing:
        raise BadInput(
            f"{what}: constant '{missing[0]}' is missing; add [constants.{missing[0]}] with value, unit, source"
        )
    if strange:
        raise BadInput(f"{what}: unknown constant '{strange[0]}'; known: {', '.join(KEYS)}")
    values: dict[str, dict[str, float]] = {holder: {} for holder in holders}
    for key, constant in file.constants.items():
        holder, field, dimension, _ = KEYS[key]
        if UNITS.get(constant.unit, ("",))[0] != dimension:
            fitting = ", ".join(unit for unit, (kind, _) in UNITS.items() if kind == dimension)
            raise BadInput(f"{what}: constant '{key}' has unit '{constant.unit}'; use one of {fitting}")
        _refuse_without_error(key, constant, what)
        value = float(constant.value) * UNITS[constant.unit][1]
        values[holder][field] = round(value) if holder == "topology" else value
    values["topology"] |= {"nodes": file.nodes, "devices_per_node": file.devices_per_node}
    return _made(
        what,
        lambda: Machine(
            name=file.name,
            description=file.description,
            device=file.device,
            sources={source_name(key): constant.source for key, constant in file.constants.items()},
            errors={source_name(key): c.error for key, c in file.constants.items() if c.error is not None},
            dense_steps={key: 1e-3 * step.ms for key, step in file.dense_steps.items()},
            trust=file.trust,
            **{holder: _HOLDERS[holder](**own) for holder, own in values.items()},
        ),
    )


def _made(what: str, make: Callable[..., Machine], *given: Any, **fields: Any) -> Machine:
    """Return what is made; raises BadInput that begins with ``what`` where a field cannot have its value."""
    try:
        return make(*given, **fields)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error


def _on_its_base(data: dict[str, Any], what: str, heirs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fill what a file does not state from its base; ``heirs`` are the machines that it is a base of."""
    base = data.get("base")
    if base is None:
        return data
    if not isinstance(base, str) or base not in machine_files():
        raise BadInput(f"{what}: unknown base '{base}'; known: {', '.join(machine_files())}")
    if base in heirs:
        raise BadInput(f"{what}: base '{base}' is based on this machine itself")
    own_constants = data.get("constants", {})
    if not isinstance(own_constants, dict):
        raise BadInput(f"{what}: constants: Input should be a valid dictionary")
    text = machine_files()[base].value.read_text(encoding="utf-8")
    inherited = _on_its_base(_read(text, f"machine {base}"), f"machine {base}", (*heirs, base))
    shape = {key: inherited[key] for key in ("device", "nodes", "devices_per_node")}
    own = {key: value for key, value in data.items() if key != "base"}
    return {**shape, **own, "constants": {**inherited["constants"], **own_constants}}


@lru_cache(maxsize=256)
def _read(text: str, what: str) -> dict[str, Any]:
    """Parse a machine's TOML, which must not be changed: a page names the same few machines hundreds of times."""
    return toml_data(text, what)


def _refuse_without_error(key: str, constant: _Constant, what: str) -> None:
    capacity = key in _CAPACITIES
    if capacity and (constant.error is not None or constant.error_source is not None):
        raise BadInput(f"{what}: constant '{key}' is a capacity and has no error: remove error and error_source")
    if not capacity and (constant.error is None or constant.error_source is None):
        raise BadInput(
            f"{what}: constant '{key}' does not say how well it is known: add error (the factor that is one standard "
            f"deviation of its logarithm, 1 or more) and error_source"
        )


def machine_files() -> dict[str, Brought[Traversable]]:
    """Return the file of each machine, and who brings it, by the machine's name, sorted.

    They are the TOML files of shardbench.machines, and of every package that an entry point of
    the group ``shardbench.machines`` names, but for ``broken_machine_packages``.
    """
    return _machine_files()[0]


def broken_machine_packages() -> tuple[str, ...]:
    """Return why packages are left out, one line each: they hold no machine files, or one of a name that is taken."""
    return _machine_files()[1]


@cache
def _machine_files() -> tuple[dict[str, Brought[Traversable]], tuple[str, ...]]:
    ours = (GROUP, GROUP, partial(import_module, GROUP))
    return collect("machine", (ours, *brought_here(GROUP)), _files_of)


def _files_of(folder: object, package: str) -> Iterable[tuple[str, Traversable]]:
    if not (isinstance(folder, ModuleType) and hasattr(folder, "__path__")):
        raise BadInput(f"package {package} gives {folder!r}, not a package that holds machine files")
    files = {f.name.removesuffix(".toml"): f for f in resources.files(folder).iterdir() if f.name.endswith(".toml")}
    if not files:
        raise BadInput(f"package {package} holds no machine file (*.toml)")
    return files.items()


def load_machine(name: str) -> Machine:
    """Load a machine by its name, or by the path of a TOML file (anything that ends in ``.toml``)."""
    if name.endswith(".toml"):
        return parse_machine(file_text(Path(name), "machine file"), name)
    if name not in machine_files():
        see = "shardbench list machines, or give a .toml file"
        raise BadInput(unknown("machine", name, machine_files(), see, broken_machine_packages()))
    file = machine_files()[name]
    what = f"machine {name} of {file.package}"
    machine = parse_machine(file.value.read_text(encoding="utf-8"), what)
    if machine.name != name:
        raise BadInput(f"{what}: the file states the name '{machine.name}'; they must be the same")
    return machine


def overridden(machine: Machine, override: Mapping[str, str]) -> Machine:
    """Return the machine with some constants replaced, such as ``{"uvm_bandwidth": "16 GB/s"}``.

    Its name says which, so that its numbers are never taken for the machine's. Raises BadInput
    for an unknown constant, or a value that is not a number with a fitting unit.
    """
    sources, errors, trust = dict(machine.sources), dict(machine.errors), machine.trust
    known, names, changed = known_keys(machine), [machine.name], machine
    for key, text in sorted(override.items()):
        if key not in known:
            raise BadInput(f"machine {machine.name}: unknown constant '{key}' to override; known: {', '.join(known)}")
        what = f"machine {machine.name}: override of '{key}'"
        value = _quantity(text, KEYS[key].dimension, what)
        value = round(value) if KEYS[key].holder == "topology" else value
        changed = _made(what, with_values, changed, {key: value})
        sources[source_name(key)] = "override of the job"
        if source_name(key) in errors:
            errors[source_name(key)] = 1.0
        if key not in _CAPACITIES:
            trust = None  # Its steps were not of such a machine.
        names.append(f"{key}-{''.join(text.split()).replace('/', 'p')}")
    what, name = f"machine {machine.name} overridden", "+".join(names)
    return _made(what, replace, changed, name=name, sources=sources, errors=errors, trust=trust)


def resized(machine: Machine, nodes: int, devices_per_node: int) -> Machine:
    """Return the machine with so many nodes and devices, as a file has it that states them and this ``base``.

    Its name says so where these are not its own.
    """
    topology = replace(machine.topology, nodes=nodes, devices_per_node=devices_per_node)
    name = f"{machine.name}+{nodes}x{devices_per_node}"
    if topology == machine.topology:
        return machine
    return replace(machine, name=name, topology=topology, dense_steps={}, trust=None)


def uncertain(machine: Machine) -> tuple[str, ...]:
    """Return the names of the constants that have an error, as in ``Machine.errors``: all but capacities."""
    return tuple(source_name(key) for key in known_keys(machine) if key not in _CAPACITIES)


def with_values(machine: Machine, values: Mapping[str, float]) -> Machine:
    """Return the machine with other constants, by their keys in its file, in bytes, seconds, operations and shares.

    Those of parts that it does not state are left out.
    """
    changes: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        changes.setdefault(KEYS[key].holder, {})[KEYS[key].field] = value
    parts = {holder: part for holder in changes if (part := getattr(machine, holder)) is not None}
    return replace(machine, **{holder: replace(part, **changes[holder]) for holder, part in parts.items()})


def scaled(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """Return the machine with constants multiplied, by name as in ``Machine.errors``; a share stays at most 1."""
    values = {}
    for name, factor in factors.items():
        holder, field, *_ = KEYS[KEY_OF[name]]
        if (part := getattr(machine, holder)) is not None:
            product = getattr(part, field) * factor
            values[KEY_OF[name]] = min(1.0, product) if field in SHARES else product
    return with_values(machine, values)


def _quantity(text: str, dimension: str, what: str) -> float:
    number, _, unit = text.strip().partition(" ")
    fitting = [symbol for symbol, (kind, _) in UNITS.items() if kind == dimension]
    if unit.strip() not in fitting:
        raise BadInput(f"{what} is '{text}': write a number, a space and one of {', '.join(fitting)}")
    try:
        value = float(number)
    except ValueError as error:
        raise BadInput(f"{what} is '{text}': '{number}' is no number") from error
    if not 0.0 < value <= MAX_VALUE:
        raise BadInput(f"{what} is '{text}': it must be positive, and {MAX_VALUE:g} at most")
    return value * UNITS[unit.strip()][1]
