"""Machine files out of a calibration, and what they are based on."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.reading import file_text, toml_data
from shardbench.base.serialise import to_toml
from shardbench.model.calibrated import chip_of, measured_on
from shardbench.model.machine import Machine, Trust
from shardbench.model.machine_file import (
    KEYS,
    UNITS,
    _on_its_base,
    load_machine,
    machine_files,
    parse_machine,
    source_name,
)

TEMPLATES = {"cpu": "cpu-1x2", "cuda": "h100-1x8"}
"""Machines that lend constants which one machine alone cannot show, such as the links between nodes."""

GUESSED_ERROR = 2.0
"""Error factor of constants that nothing judges."""
NOT_MEASURED = "not measured"
"""How the source of a guess begins."""
CALIBRATED_BY = "shardbench doctor --calibrate; run it again with --force rather than edit it"
CORRECTED_BY = "shardbench run --update; race again rather than edit it"
JUDGED = "calibrated: RMS error of the times that took no part in the fit (of all where none was left)"
_GUESS = "assumption: a factor 2, nothing judges it"


@dataclass(frozen=True, kw_only=True)
class Base:
    """A machine file to start from: its capacities and whatever is not measured stay."""

    machine: Machine
    constants: dict[str, dict[str, Any]]
    """``value``, ``unit`` and ``source`` by key of the file."""
    own: bool
    """Whether it describes this very machine and is no template."""
    dense_sources: dict[str, str] = field(default_factory=dict)
    """Sources of measured dense models, by ``dense_key``."""


def base_of(device: str, ranks: int, out: Path, *, alone: bool = True) -> Base:
    """Return the file that is written again, else the shipped machine of that name, else a template.

    It is a template in any case where this computer is not ``alone``, but one of several that the file is to describe.
    """
    name = out.name.removesuffix(".toml")
    own = alone and (out.is_file() or name in machine_files())
    base = base_of_file(TEMPLATES[device] if not own else str(out) if out.is_file() else name)
    machine = base.machine
    nodes = machine.topology.nodes if own else 1
    # CPU nodes may be emulated on one machine; those of GPUs would need several.
    if own and ((machine.device, machine.topology.world_size) != (device, ranks) or (device == "cuda" and nodes > 1)):
        shape = f"{nodes}x{machine.topology.devices_per_node} {machine.device}"
        raise BadInput(f"machine {machine.name} is {shape}, this calibration is 1x{ranks} {device}: use another --out")
    topology = replace(machine.topology, nodes=nodes, devices_per_node=ranks // nodes)
    ranks_word = (
        "local ranks on one CPU machine, gloo over loopback" if device == "cpu" else "GPUs of one machine, nccl"
    )
    description = machine.description if own else f"{ranks} {ranks_word}"
    # Another machine's constants are a guess about this one.
    errors = machine.errors if own else dict.fromkeys(machine.errors, GUESSED_ERROR)
    # Whole steps judge the constants that they were predicted with, and those are about to change.
    machine = replace(machine, name=name, description=description, topology=topology, errors=errors, trust=None)
    return replace(base, machine=machine, own=own, dense_sources={})


def base_of_file(machine: str) -> Base:
    """Return a machine's own file, by its name or path, with what it has of another one, to be written changed."""
    own_machine = load_machine(machine)
    if machine.endswith(".toml"):
        text = file_text(Path(machine), "machine file")
    else:
        text = machine_files()[machine].value.read_text(encoding="utf-8")
    data = _on_its_base(toml_data(text, machine), machine)
    dense = {key: step["source"] for key, step in data.get("dense_steps", {}).items()}
    return Base(machine=own_machine, constants=data["constants"], own=True, dense_sources=dense)


def refuse_overwriting(out: Path, *, force: bool) -> None:
    """Raise BadInput where ``out`` exists, unless ``force``, or is no .toml file."""
    if out.suffix != ".toml":
        raise BadInput(f"machine file {out} must end in .toml")
    if out.exists() and not force:
        raise BadInput(f"{out} exists; give --force to write it again")


def write_machine(out: Path, base: Base, machine: Machine, sources: dict[str, str], *, raced: bool = False) -> None:
    """Write the machine file whole or not at all, after reading it back.

    ``sources`` says, by field name, where a new number comes from; all else keeps the base's, and so do the errors of
    new numbers where the machine was ``raced``.
    """
    lines = [
        f"# Written by {CORRECTED_BY if raced else CALIBRATED_BY}.",
        "# 'hbm' is a rank's fast memory; on a CPU 'uvm' and 'host' are the same memory, counted apart.",
        "",
        f'name = "{machine.name}"',
        f'description = "{machine.description}"',
        f'device = "{machine.device}"',
        f"nodes = {machine.topology.nodes}",
        f"devices_per_node = {machine.topology.devices_per_node}",
    ]
    for key in KEYS:
        if key in base.constants or source_name(key) in sources:
            lines += ["", f"[constants.{key}]", *_constant(key, base, machine, sources, raced=raced)]
    measured = f"{measured_on(chip_of(Environment.here(), machine.device))}, the control plan's step"
    for key, seconds in sorted(machine.dense_steps.items()):
        source = base.dense_sources.get(key, measured)
        lines += ["", f'[dense_steps."{key}"]', f"ms = {1e3 * seconds:.4g}", f"source = {to_toml(source)}"]
    if machine.trust is not None:
        lines += ["", *trust_lines(machine.trust)]
    text = "\n".join(lines) + "\n"
    parse_machine(text, str(out))
    write_atomically(out, text)


def _constant(key: str, base: Base, machine: Machine, sources: dict[str, str], *, raced: bool) -> list[str]:
    name, entry = source_name(key), base.constants.get(key, {})
    error_source = entry.get("error_source", "")
    if name in sources:
        holder, field, dimension, _ = KEYS[key]
        value, unit = in_unit(getattr(getattr(machine, holder), field), dimension)
        error_source = _GUESS if sources[name].startswith(NOT_MEASURED) else error_source if raced else JUDGED
        return [*_stated(value, unit, sources[name]), *_error(name, machine, error_source)]
    source = entry["source"] if base.own else f"{NOT_MEASURED}, from {TEMPLATES[machine.device]}: {entry['source']}"
    return _stated(entry["value"], entry["unit"], source) + _error(name, machine, error_source if base.own else _GUESS)


def _stated(value: object, unit: str, source: str) -> list[str]:
    return [f"value = {value}", f'unit = "{unit}"', f"source = {to_toml(source)}"]


def _error(name: str, machine: Machine, judged: str) -> list[str]:
    """Write the error's two lines, or none where the constant is a capacity."""
    if name not in machine.errors:
        return []
    return [f"error = {machine.errors[name]:g}", f"error_source = {to_toml(judged)}"]


def trust_lines(trust: Trust) -> list[str]:
    """Return the lines of a machine file that say how far to trust it."""
    stated = [(one.name, getattr(trust, one.name)) for one in fields(trust)]
    return ["[trust]", *(f"{name} = {to_toml(value)}" for name, value in stated if value is not None)]


def in_unit(value: float, dimension: str) -> tuple[str, str]:
    """Write a value in bytes, seconds or operations as (four digits, unit), in the largest unit that it fills."""
    units = sorted((scale, unit) for unit, (kind, scale) in UNITS.items() if kind == dimension and "iB" not in unit)
    scale, unit = max([(s, u) for s, u in units if s <= abs(value)], default=units[0])
    number = float(f"{value / scale:.4g}")
    return f"{number:.10g}", unit
