"""Machines: nodes x devices, memory tiers, links and kernel constants, each with its source."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.plugins import Brought, brought, collected
from shardbench.base.reading import file_text, toml_data
from shardbench.base.serialise import STRICT, first_error, from_data
from shardbench.model.table import DenseShape, Name, Table

GROUP = "shardbench.machines"
"""Package of our machine files, and the entry-point group of other people's packages."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Devices = Annotated[int, Field(ge=1, le=1 << 16)]
"""Number of devices, in all or on a node; no world is larger."""

UNITS: dict[str, tuple[str, float]] = {
    "B": ("bytes", 1.0), "KiB": ("bytes", 2.0**10), "MiB": ("bytes", 2.0**20), "GiB": ("bytes", 2.0**30),
    "TiB": ("bytes", 2.0**40), "MB": ("bytes", 1e6), "GB": ("bytes", 1e9), "TB": ("bytes", 1e12),
    "MB/s": ("bytes_per_s", 1e6), "GB/s": ("bytes_per_s", 1e9), "GiB/s": ("bytes_per_s", 2.0**30),
    "TB/s": ("bytes_per_s", 1e12), "ns": ("s", 1e-9), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0),
    "GFLOP/s": ("flop_per_s", 1e9), "TFLOP/s": ("flop_per_s", 1e12), "ratio": ("ratio", 1.0),
    "rows": ("rows", 1.0),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Topology:
    """Shape and capacities; every strategy sees these. Capacities in bytes for embeddings."""

    nodes: Devices
    devices_per_node: Devices
    hbm_bytes: PositiveInt
    """Device memory of one device."""
    uvm_bytes: Annotated[int, Field(ge=0)]
    """Host memory that one device may read directly (managed memory)."""
    host_bytes: Annotated[int, Field(ge=0)]
    """Host memory of one node for tables that its CPU looks up."""

    @property
    def world_size(self) -> int:
        """Return the number of devices in all."""
        return self.nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        """Return the node that holds a rank; ranks are numbered node by node."""
        return rank // self.devices_per_node

    def node_ranks(self, node: int) -> tuple[int, ...]:
        """Return the ranks of one node."""
        return tuple(range(node * self.devices_per_node, (node + 1) * self.devices_per_node))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constants:
    """Rates of one device, its tiers and links, in bytes, seconds and operations."""

    hbm_bytes_per_s: Positive
    cache_bytes_per_s: Positive
    cache_bytes: Positive
    cache_reach_ratio: Positive
    """Multiple of the cache's capacity that a table's working set must have for half of its repeats to miss."""
    uvm_bytes_per_s: Positive
    host_bytes_per_s: Positive
    gather_efficiency_ratio: Annotated[float, Field(gt=0, le=1)]
    """Share of the HBM bandwidth that random row reads reach when rows are wide."""
    access_overhead_bytes: NonNegativeFloat
    """Bytes that one row access wastes: makes narrow rows inefficient."""
    sort_bytes: NonNegativeFloat
    """Bytes the backward pass moves per lookup to sort and de-duplicate indices."""
    launch_s: NonNegativeFloat
    """Fixed time of one fused forward or backward on the device."""
    dispatch_s: NonNegativeFloat
    """Host time of one fused forward, exposed where the device has less to do; large batches hide it."""
    bag_step_s: NonNegativeFloat
    """Time of one lookup of a bag, which one warp (or thread) reads row by row: the long-bag tail."""
    table_s: NonNegativeFloat
    """Time that every table of a fused forward or backward adds: a CPU goes through them one by one."""
    bag_s: NonNegativeFloat
    """Time that every bag of a fused forward or backward adds, whatever its lookups: a CPU's loop over bags."""
    page_s: NonNegativeFloat
    """Time to find a memory page of rows, once a batch and page to read them and twice to update them."""
    sequence_row_s: NonNegativeFloat
    """Time that the backward pass of unpooled tables adds for every distinct row: a CPU collects them in a map."""
    sequence_half_rows: NonNegativeFloat
    """Rows in that map at which half of that time is reached: a small map stays in the cache."""
    host_launch_s: NonNegativeFloat
    """Fixed time of one forward or backward of the lookups of a node's CPUs."""
    host_table_s: NonNegativeFloat
    """Time that every table adds to that forward or backward."""
    intra_bytes_per_s: Positive
    inter_bytes_per_s: Positive
    intra_latency_s: NonNegativeFloat
    inter_latency_s: NonNegativeFloat
    peer_latency_s: NonNegativeFloat
    """Time that every further rank adds to the latency of a collective."""
    dense_flop_per_s: Positive
    """Rate that the MLPs reach, not the device's peak."""
    dense_step_s: NonNegativeFloat
    """Fixed time of a dense model's step: its loss, its optimiser and the bookkeeping of its parallel copies."""
    dense_layer_s: NonNegativeFloat
    """Fixed time of one layer of the dense model, forward and backward."""
    module_s: NonNegativeFloat
    """Host time of the forward call of one sharding type of one module, on every rank, whatever it holds there."""
    vector_copy_bytes_per_s: Positive
    """Bytes of vectors that are put in place a second; one pass reads and writes each byte."""
    activation_bytes_per_s: Positive
    """Bytes a second of what lies between the dense model's products: vectors joined and split, attention, pairs."""
    lookup_copy_s: NonNegativeFloat
    """Time to put one lookup in place for an exchange, and again to put it in place after it."""
    length_copy_s: NonNegativeFloat
    """Time to put the length of one bag in place for an exchange, and again to put it in place after it."""
    bucketise_s: NonNegativeFloat
    """Time to find the owner of one lookup of rows that are dealt over ranks, beside putting it in place."""
    reduce_bytes_per_s: Positive
    """Bytes that arrive in a reduce-scatter and are added up a second, beside what the link takes for them."""
    step_floor_s: NonNegativeFloat
    """Host time of a step, below which it cannot fall whatever the devices do."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HostConstants:
    """What a node's CPUs can do besides looking rows up; stated by machines on which models train with them."""

    link_bytes_per_s: Positive
    """One device's copies of whole blocks from and to host memory."""
    dense_flop_per_s: Positive
    """Rate that the MLPs reach on all CPUs of a node, not their peak."""
    dense_step_s: NonNegativeFloat
    """The same time as a device's, on the CPUs of a node."""
    dense_layer_s: NonNegativeFloat
    """The same time as a device's, on the CPUs of a node."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MatrixConstants:
    """Rates that large products of narrower number formats reach; stated by GPUs, whose matrix units have them."""

    dense_tf32_flop_per_s: Positive
    dense_half_flop_per_s: Positive
    """Products of fp16 or bf16 numbers."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Trust:
    """How far whole steps of plans that no constant was fitted to are from what a machine file predicts of them."""

    step_error: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    """The factor whose logarithm is the root mean square of log(predicted / measured) of these steps."""
    pair_error: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """The same of the ratios of two plans' steps on the same tables, in which what all plans share is left out;
    None where no two of them are on the same tables."""
    plans: PositiveInt
    """The number of these steps."""
    pairs: Annotated[int, Field(ge=0)] = 0
    """Pairs of plans of the same tables whose measured steps differ by more than the noise."""
    pairs_right: Annotated[int, Field(ge=0)] = 0
    """Pairs of these that are predicted in the order in which they are measured."""
    source: Annotated[str, Field(min_length=8)]
    """What was measured, where and when."""

    def __post_init__(self) -> None:
        if self.pairs_right > self.pairs:
            raise ValueError(f"trust: {self.pairs_right} pairs are right of {self.pairs}")
        if self.pairs and self.pair_error is None:
            raise ValueError("trust: pairs were compared, so pair_error says how far their ratios are off")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Machine:
    """A cluster as the cost model and the planners see it."""

    name: Name
    description: str
    device: Literal["cuda", "cpu"]
    topology: Topology
    constants: Constants
    sources: dict[str, str]
    """Source of every number, by field name."""
    # What a machine does not state is not in its JSON, nor in its hash.
    host: HostConstants | None = Field(default=None, exclude_if=lambda host: host is None)
    matrix: MatrixConstants | None = Field(default=None, exclude_if=lambda matrix: matrix is None)
    errors: dict[str, Annotated[float, Field(ge=1, allow_inf_nan=False)]] = Field(
        default_factory=dict, exclude_if=lambda errors: not errors
    )
    """How well each rate, latency and share is known, by name as in ``sources``: the factor that is one
    standard deviation of its logarithm. Every file states them; empty on machines that are built in code."""
    dense_steps: dict[Name, Positive] = Field(default_factory=dict, exclude_if=lambda measured: not measured)
    """Seconds of the dense model, forward and backward, that were measured on this machine, by ``dense_key``: they go
    before the formula. No plan changes them, so that nothing is lost in foresight by taking them as measured."""
    trust: Trust | None = Field(default=None, exclude_if=lambda trust: trust is None)
    """What held-out whole steps say of this machine's predictions; None where none was held against it."""


class _Constant(pydantic.BaseModel):
    model_config = STRICT
    value: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
    unit: str
    source: Annotated[str, Field(min_length=8)]
    error: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
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
}
# Only on machines that state them, all or none.
_HOST_FIELDS: dict[str, tuple[str, str]] = {
    "host_link": ("link_bytes_per_s", "bytes_per_s"),
    "host_dense_rate": ("dense_flop_per_s", "flop_per_s"),
    "host_dense_step": ("dense_step_s", "s"),
    "host_dense_layer": ("dense_layer_s", "s"),
}
# As those of the host: all or none.
_MATRIX_FIELDS: dict[str, tuple[str, str]] = {
    "dense_tf32_rate": ("dense_tf32_flop_per_s", "flop_per_s"),
    "dense_half_rate": ("dense_half_flop_per_s", "flop_per_s"),
}
_OPTIONAL = {**_HOST_FIELDS, **_MATRIX_FIELDS}


def _optional_fields(host: bool, matrix: bool) -> dict[str, tuple[str, str]]:
    return (_HOST_FIELDS if host else {}) | (_MATRIX_FIELDS if matrix else {})


def known_fields(machine: "Machine") -> dict[str, tuple[str, str]]:
    """Return (field, dimension) by key of a machine file, of all constants that the machine states."""
    return _FIELDS | _optional_fields(machine.host is not None, machine.matrix is not None)


def dense_key(dense: DenseShape, tables: tuple[Table, ...], batch_size: int, world: int) -> str:
    """Return the name of a measured dense model: a digest of its layers, of what tables give it, batch and ranks."""
    given = [[table.dim, table.pooling.value, table.features] for table in tables]
    shape = [dense.features, dense.bottom, dense.top, given, batch_size, world]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def parse_machine(text: str, what: str) -> Machine:
    """Parse a machine out of TOML text; raises BadInput that names a constant missing, negative or of a wrong unit.

    A text that states a ``base``, another machine's name, has the constants that it does not state as that machine
    has them. What was measured of the base, its dense steps and its trust, is not of the other machine.
    """
    file = from_data(_MachineFile, _on_its_base(toml_data(text, what), what), what)
    keys = file.constants.keys()
    stated = _FIELDS | _optional_fields(bool(_HOST_FIELDS.keys() & keys), bool(_MATRIX_FIELDS.keys() & keys))
    missing = sorted(stated.keys() - file.constants.keys())
    unknown = sorted(file.constants.keys() - stated.keys())
    if missing:
        raise BadInput(
            f"{what}: constant '{missing[0]}' is missing; add [constants.{missing[0]}] with value, unit, source"
        )
    if unknown:
        raise BadInput(f"{what}: unknown constant '{unknown[0]}'; known: {', '.join(_FIELDS | _OPTIONAL)}")
    values: dict[str, float] = {}
    for key, (_, dimension) in stated.items():
        constant = file.constants[key]
        if UNITS.get(constant.unit, ("",))[0] != dimension:
            fitting = ", ".join(unit for unit, (kind, _) in UNITS.items() if kind == dimension)
            raise BadInput(f"{what}: constant '{key}' has unit '{constant.unit}'; use one of {fitting}")
        _refuse_without_error(key, constant, what)
        values[key] = float(constant.value) * UNITS[constant.unit][1]
    named = {field: values[key] for key, (field, _) in _FIELDS.items()}
    topology = {field: round(named[field]) for field in _TOPOLOGY_BYTES}
    constants = {field.name: named[field.name] for field in fields(Constants)}
    host = {field: values[key] for key, (field, _) in _HOST_FIELDS.items() if key in stated}
    matrix = {field: values[key] for key, (field, _) in _MATRIX_FIELDS.items() if key in stated}
    try:
        return Machine(
            name=file.name,
            description=file.description,
            device=file.device,
            topology=Topology(nodes=file.nodes, devices_per_node=file.devices_per_node, **topology),
            constants=Constants(**constants),
            sources={_source_name(key): constant.source for key, constant in file.constants.items()},
            host=HostConstants(**host) if host else None,
            matrix=MatrixConstants(**matrix) if matrix else None,
            errors={_source_name(key): c.error for key, c in file.constants.items() if c.error is not None},
            dense_steps={key: 1e-3 * step.ms for key, step in file.dense_steps.items()},
            trust=file.trust,
        )
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error


def _on_its_base(data: dict[str, Any], what: str) -> dict[str, Any]:
    """Fill what a file does not state from its base, which must state all of itself."""
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str) or base not in machine_files():
        raise BadInput(f"{what}: unknown base '{base}'; known: {', '.join(machine_files())}")
    stated = data.get("constants", {})
    if not isinstance(stated, dict):
        raise BadInput(f"{what}: constants: Input should be a valid dictionary")
    inherited = toml_data(machine_files()[base].value.read_text(encoding="utf-8"), f"machine {base}")
    if "base" in inherited:
        raise BadInput(f"{what}: base '{base}' has a base itself: name that, {inherited['base']}")
    shape = {key: inherited[key] for key in ("device", "nodes", "devices_per_node")}
    return {**shape, **data, "constants": {**inherited["constants"], **stated}}


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
    return collected("machine", (ours, *brought(GROUP)), _files_of)


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
    found = machine_files()[name]
    what = f"machine {name} of {found.package}"
    machine = parse_machine(found.value.read_text(encoding="utf-8"), what)
    if machine.name != name:
        raise BadInput(f"{what}: the file states the name '{machine.name}'; they must be the same")
    return machine


def overridden(machine: Machine, override: Mapping[str, str]) -> Machine:
    """Return the machine with some constants replaced, such as ``{"uvm_bandwidth": "16 GB/s"}``.

    Its name says which, so that its numbers are never taken for the machine's. Raises BadInput
    for an unknown constant, or a value that is not a number with a fitting unit.
    """
    topology, constants, host, sources = machine.topology, machine.constants, machine.host, dict(machine.sources)
    matrix, errors, trust = machine.matrix, dict(machine.errors), machine.trust
    known = known_fields(machine)
    names = [machine.name]
    for key, text in sorted(override.items()):
        if key not in known:
            raise BadInput(f"machine {machine.name}: unknown constant '{key}' to override; known: {', '.join(known)}")
        field, dimension = known[key]
        value = _quantity(text, dimension, f"machine {machine.name}: override of '{key}'")
        if field in _TOPOLOGY_BYTES:
            topology = replace(topology, **{field: round(value)})
        elif host is not None and key in _HOST_FIELDS:
            host = replace(host, **{field: value})
        elif matrix is not None and key in _MATRIX_FIELDS:
            matrix = replace(matrix, **{field: value})
        else:
            constants = replace(constants, **{field: value})
        sources[_source_name(key)] = "override of the job"
        if _source_name(key) in errors:
            errors[_source_name(key)] = 1.0
        if key not in _CAPACITIES:
            trust = None  # Its steps were not of such a machine.
        names.append(f"{key}-{''.join(text.split()).replace('/', 'p')}")
    return replace(
        machine, name="+".join(names), topology=topology, constants=constants, sources=sources, host=host,
        matrix=matrix, errors=errors, trust=trust,
    )  # fmt: skip


def uncertain(machine: Machine) -> tuple[str, ...]:
    """Return the names of the constants that have an error, as in ``Machine.errors``: all but capacities."""
    return tuple(_source_name(key) for key in known_fields(machine) if key not in _CAPACITIES)


def scaled(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """Return the machine with constants multiplied, by name as in ``Machine.errors``; a share stays at most 1."""
    constants = {
        name: getattr(machine.constants, name) * factor for name, factor in factors.items() if name not in _OPTIONAL
    }
    if "gather_efficiency_ratio" in constants:
        constants["gather_efficiency_ratio"] = min(1.0, constants["gather_efficiency_ratio"])
    host = machine.host
    if host is not None:
        own = {field: name for name, (field, _) in _HOST_FIELDS.items() if name in factors}
        host = replace(host, **{field: getattr(host, field) * factors[name] for field, name in own.items()})
    matrix = machine.matrix
    if matrix is not None:
        own = {field: name for name, (field, _) in _MATRIX_FIELDS.items() if name in factors}
        matrix = replace(matrix, **{field: getattr(matrix, field) * factors[name] for field, name in own.items()})
    return replace(machine, constants=replace(machine.constants, **constants), host=host, matrix=matrix)


def _quantity(text: str, dimension: str, what: str) -> float:
    number, _, unit = text.strip().partition(" ")
    fitting = [known for known, (kind, _) in UNITS.items() if kind == dimension]
    if unit.strip() not in fitting:
        raise BadInput(f"{what} is '{text}': write a number, a space and one of {', '.join(fitting)}")
    try:
        value = float(number)
    except ValueError as error:
        raise BadInput(f"{what} is '{text}': '{number}' is no number") from error
    if not 0.0 < value < math.inf:
        raise BadInput(f"{what} is '{text}': it must be positive")
    return value * UNITS[unit.strip()][1]
