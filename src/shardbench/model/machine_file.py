"""Machine files: TOML that states a machine's constants with unit, source and error, and what overrides change."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache, partial
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

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


_TOPOLOGY_BYTES = ("hbm_bytes", "uvm_bytes", "host_bytes")
_CAPACITIES = ("hbm_capacity", "uvm_capacity", "host_capacity", "cache_capacity")
"""What is known as it is; whatever else a file states, it states with an error."""
# Keys of a file carry no unit (the file states it); the fields they fill do.
_FIELDS: dict[str, tuple[str, str]] = {
    "hbm_capacity": ("hbm_bytes", "bytes"),
    "uvm_capacity": ("uvm_bytes", "bytes"),
    "host_capacity": ("host_bytes", "bytes"),
    "hbm_bandwidth": ("hbm_bytes_per_s", "bytes_per_s"),
    "cache_bandwidth": ("cache_bytes_per_s", "bytes_per_s"),
    "cache_capacity": ("cache_bytes", "bytes"),
    "cache_reach": ("cache_reach_ratio", "ratio"),
    "uvm_bandwidth": ("uvm_bytes_per_s", "bytes_per_s"),
    "host_bandwidth": ("host_bytes_per_s", "bytes_per_s"),
    "gather_efficiency": ("gather_efficiency_ratio", "ratio"),
    "access_overhead": ("access_overhead_bytes", "bytes"),
    "sort_traffic": ("sort_bytes", "bytes"),
    "launch": ("launch_s", "s"),
    "dispatch": ("dispatch_s", "s"),
    "bag_step": ("bag_step_s", "s"),
    "table_call": ("table_s", "s"),
    "bag_call": ("bag_s", "s"),
    "page_walk": ("page_s", "s"),
    "sequence_row": ("sequence_row_s", "s"),
    "sequence_half": ("sequence_half_rows", "rows"),
    "host_launch": ("host_launch_s", "s"),
    "host_table_call": ("host_table_s", "s"),
    "intra_bandwidth": ("intra_bytes_per_s", "bytes_per_s"),
    "inter_bandwidth": ("inter_bytes_per_s", "bytes_per_s"),
    "intra_latency": ("intra_latency_s", "s"),
    "inter_latency": ("inter_latency_s", "s"),
    "peer_latency": ("peer_latency_s", "s"),
    "dense_rate": ("dense_flop_per_s", "flop_per_s"),
    "dense_step": ("dense_step_s", "s"),
    "dense_layer": ("dense_layer_s", "s"),
    "module_call": ("module_s", "s"),
    "vector_copy": ("vector_copy_bytes_per_s", "bytes_per_s"),
    "activation_copy": ("activation_bytes_per_s", "bytes_per_s"),
    "lookup_copy": ("lookup_copy_s", "s"),
    "length_copy": ("length_copy_s", "s"),
    "bucketise": ("bucketise_s", "s"),
    "reduce": ("reduce_bytes_per_s", "bytes_per_s"),
    "step_floor": ("step_floor_s", "s"),
    "sort_launch": ("sort_launch_s", "s"),
    "warp": ("warp_s", "s"),
    "gradient_gather": ("gradient_ratio", "ratio"),
    "uvm_hits": ("uvm_hit_ratio", "ratio"),
    "uvm_update": ("uvm_update_ratio", "ratio"),
}
_UNSTATED = ("sort_launch", "warp", "gradient_gather", "uvm_hits", "uvm_update")
"""What a file may leave out, since it is of GPUs."""
GPU_FIELDS = tuple(_FIELDS[key][0] for key in _UNSTATED)
"""The fields of these constants."""
SHARES = {"gather_efficiency_ratio", "gradient_ratio", "uvm_hit_ratio"}
"""Fields that are at most 1."""
# Only on machines that state them, all of a part or none; by the name of the part.
_PARTS: dict[str, tuple[type, dict[str, tuple[str, str]]]] = {
    "host": (
        HostConstants,
        {
            "host_link": ("link_bytes_per_s", "bytes_per_s"),
            "host_dense_rate": ("dense_flop_per_s", "flop_per_s"),
            "host_dense_step": ("dense_step_s", "s"),
            "host_dense_layer": ("dense_layer_s", "s"),
        },
    ),
    "matrix": (
        MatrixConstants,
        {
            "dense_tf32_rate": ("dense_tf32_flop_per_s", "flop_per_s"),
            "dense_half_rate": ("dense_half_flop_per_s", "flop_per_s"),
        },
    ),
    "nccl": (
        NcclConstants,
        {"collective_call": ("call_s", "s"), "switch_reduction": ("switch_ratio", "ratio")},
    ),
}
_PART_OF = {key: name for name, (_, own) in _PARTS.items() for key in own}


def _with_parts(parts: Iterable[str]) -> dict[str, tuple[str, str]]:
    return _FIELDS | {key: field for name in parts for key, field in _PARTS[name][1].items()}


def _parts_of(machine: Machine) -> dict[str, Any]:
    """Return the parts that the machine states, by name."""
    return {name: part for name in _PARTS if (part := getattr(machine, name)) is not None}


def known_fields(machine: Machine) -> dict[str, tuple[str, str]]:
    """Return (field, dimension) by key of a machine file, of all constants that the machine states."""
    known = _with_parts(_parts_of(machine))
    return {key: field for key, field in known.items() if key not in _UNSTATED or field[0] in machine.sources}


def parse_machine(text: str, what: str) -> Machine:
    """Parse a machine out of TOML text; raises BadInput that names a constant missing, negative or of a wrong unit.

    A text that states a ``base``, another machine's name, has the constants that it does not state as that machine
    has them, which may have a base itself. What was measured of the base, its dense steps and its trust, is not of the
    other machine.
    """
    file = from_data(_MachineFile, _on_its_base(_read(text, what), what), what)
    parts = dict.fromkeys(_PART_OF[key] for key in file.constants if key in _PART_OF)
    dimensions = _with_parts(parts)
    dimensions = {key: of for key, of in dimensions.items() if key not in _UNSTATED or key in file.constants}
    missing = sorted(dimensions.keys() - file.constants.keys())
    unknown = sorted(file.constants.keys() - dimensions.keys())
    if missing:
        raise BadInput(
            f"{what}: constant '{missing[0]}' is missing; add [constants.{missing[0]}] with value, unit, source"
        )
    if unknown:
        raise BadInput(f"{what}: unknown constant '{unknown[0]}'; known: {', '.join(_FIELDS | _PART_OF)}")
    values: dict[str, float] = {}
    for key, (_, dimension) in dimensions.items():
        constant = file.constants[key]
        if UNITS.get(constant.unit, ("",))[0] != dimension:
            fitting = ", ".join(unit for unit, (kind, _) in UNITS.items() if kind == dimension)
            raise BadInput(f"{what}: constant '{key}' has unit '{constant.unit}'; use one of {fitting}")
        _refuse_without_error(key, constant, what)
        values[key] = float(constant.value) * UNITS[constant.unit][1]
    field_values = {field: values[key] for key, (field, _) in _FIELDS.items() if key in values}
    topology = {field: round(field_values[field]) for field in _TOPOLOGY_BYTES}
    constants = {field.name: field_values[field.name] for field in fields(Constants) if field.name in field_values}
    part_values = {name: {field: values[key] for key, (field, _) in _PARTS[name][1].items()} for name in parts}
    try:
        return Machine(
            name=file.name,
            description=file.description,
            device=file.device,
            topology=Topology(nodes=file.nodes, devices_per_node=file.devices_per_node, **topology),
            constants=Constants(**constants),
            sources={_source_name(key): constant.source for key, constant in file.constants.items()},
            **{name: _PARTS[name][0](**own) for name, own in part_values.items()},
            errors={_source_name(key): c.error for key, c in file.constants.items() if c.error is not None},
            dense_steps={key: 1e-3 * step.ms for key, step in file.dense_steps.items()},
            trust=file.trust,
        )
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


def _source_name(key: str) -> str:
    # A host's rates keep their keys: a device has a field of the same name.
    return _FIELDS[key][0] if key in _FIELDS else key


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
    topology, constants, parts, sources = machine.topology, machine.constants, _parts_of(machine), dict(machine.sources)
    errors, trust = dict(machine.errors), machine.trust
    by_key = known_fields(machine)
    names = [machine.name]
    for key, text in sorted(override.items()):
        if key not in by_key:
            raise BadInput(f"machine {machine.name}: unknown constant '{key}' to override; known: {', '.join(by_key)}")
        field, dimension = by_key[key]
        what = f"machine {machine.name}: override of '{key}'"
        value = _quantity(text, dimension, what)
        if field in _TOPOLOGY_BYTES:
            topology = _replace(topology, what, **{field: round(value)})
        elif key in _PART_OF:
            parts[_PART_OF[key]] = _replace(parts[_PART_OF[key]], what, **{field: value})
        else:
            constants = _replace(constants, what, **{field: value})
        sources[_source_name(key)] = "override of the job"
        if _source_name(key) in errors:
            errors[_source_name(key)] = 1.0
        if key not in _CAPACITIES:
            trust = None  # Its steps were not of such a machine.
        names.append(f"{key}-{''.join(text.split()).replace('/', 'p')}")
    replaced: Machine = _replace(
        machine, f"machine {machine.name} overridden", name="+".join(names), topology=topology, constants=constants,
        sources=sources, errors=errors, trust=trust, **parts,
    )  # fmt: skip
    return replaced


def resized(machine: Machine, nodes: int, devices_per_node: int) -> Machine:
    """Return the machine with so many nodes and devices, as a file has it that states them and this ``base``.

    Its name says so where these are not its own.
    """
    topology = replace(machine.topology, nodes=nodes, devices_per_node=devices_per_node)
    name = f"{machine.name}+{nodes}x{devices_per_node}"
    if topology == machine.topology:
        return machine
    return replace(machine, name=name, topology=topology, dense_steps={}, trust=None)


def _replace(holder: Any, what: str, **changes: Any) -> Any:
    """Return the dataclass with some fields replaced; raises BadInput where they cannot have these values."""
    try:
        return replace(holder, **changes)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error


def uncertain(machine: Machine) -> tuple[str, ...]:
    """Return the names of the constants that have an error, as in ``Machine.errors``: all but capacities."""
    return tuple(_source_name(key) for key in known_fields(machine) if key not in _CAPACITIES)


def with_values(machine: Machine, values: Mapping[str, float]) -> Machine:
    """Return the machine with other constants, by their keys in its file, in bytes, seconds, operations and shares."""
    parts = _parts_of(machine)
    for name, part in parts.items():
        own = {field: values[key] for key, (field, _) in _PARTS[name][1].items() if key in values}
        parts[name] = replace(part, **own)
    constants = {_FIELDS[key][0]: value for key, value in values.items() if key in _FIELDS}
    return replace(machine, constants=replace(machine.constants, **constants), **parts)


def scaled(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """Return the machine with constants multiplied, by name as in ``Machine.errors``; a share stays at most 1."""
    constants = {
        name: getattr(machine.constants, name) * factor for name, factor in factors.items() if name not in _PART_OF
    }
    for share in SHARES & constants.keys():
        constants[share] = min(1.0, constants[share])
    parts = _parts_of(machine)
    for name, part in parts.items():
        own = {field: key for key, (field, _) in _PARTS[name][1].items() if key in factors}
        parts[name] = replace(part, **{field: getattr(part, field) * factors[key] for field, key in own.items()})
    return replace(machine, constants=replace(machine.constants, **constants), **parts)


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
