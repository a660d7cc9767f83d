"""On what a machine's constants were measured, as their sources say."""

import re

from shardbench.model.machine import Machine

_MEASURED = "measured by shardbench doctor --calibrate on "
_CHIP = re.compile(re.escape(_MEASURED) + r"(.+?)(?=: |, plain copy|, \d+ points|$)")


def measured_on(chip: str) -> str:
    """How the source of a constant begins that ``doctor --calibrate`` measured; how it did follows."""
    return f"{_MEASURED}{chip}"


def calibrated_on(machine: Machine) -> str | None:
    """The processors that the machine's constants were measured on; None where none was by ``doctor --calibrate``.

    A constant that a machine file took over from another one was not measured for it.
    """
    chips = {found.group(1) for source in machine.sources.values() if (found := _CHIP.match(source))}
    return "; ".join(sorted(chips)) or None
