"""What a machine's constants were measured on, as their sources say."""

import re

from shardbench.base.host import Environment
from shardbench.model.machine import Machine

_MEASURED = "measured by shardbench doctor --calibrate on "
_CORRECTED = "corrected by a race on "
_CHIP = re.compile(f"(?:{re.escape(_MEASURED)}|{re.escape(_CORRECTED)})" + r"(.+?)(?=: |, plain copy|, \d+ points|$)")


def measured_on(chip: str) -> str:
    """Return how the source of a constant begins that ``doctor --calibrate`` measured; how it did so follows."""
    return f"{_MEASURED}{chip}"


def raced_on(chip: str) -> str:
    """Return how the source of a constant begins that a race corrected; of which plans follows."""
    return f"{_CORRECTED}{chip}"


def calibrated_on(machine: Machine) -> str | None:
    """Return the processors that calibrations or races measured constants of the machine on; None where none did.

    A constant that a machine file took over from another one was not measured for it.
    """
    chips = {match.group(1) for source in machine.sources.values() if (match := _CHIP.match(source))}
    return "; ".join(sorted(chips)) or None


def chip_behind(machine: Machine, constant: str) -> str | None:
    """Return the processors that a constant was measured on or corrected for; None where it was neither."""
    match = _CHIP.match(machine.sources.get(constant, ""))
    return match.group(1) if match else None


def is_calibrated(machine: Machine, constant: str) -> bool:
    """Say whether ``doctor --calibrate`` measured this constant, such as ``intra_bytes_per_s``.

    A race's correction is what steps took on the whole, and no limit to what a link can do.
    """
    return machine.sources.get(constant, "").startswith(_MEASURED)


def chip_of(environment: Environment, device: str) -> str:
    """Return the processors of an environment, as sources name them: of its devices for ``cuda``, else of its CPUs."""
    gpus = environment.gpus.names
    name = gpus[0] if device == "cuda" and gpus else f"{environment.cpu}, {environment.cores} cores"
    return name.encode("ascii", "replace").decode("ascii")
