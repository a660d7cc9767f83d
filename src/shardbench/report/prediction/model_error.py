"""The model's own error beside a simulated number: of the machine and quantity at hand, or that nothing judged it."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from statistics import median
from typing import Literal

from shardbench.base.errors import BadInput
from shardbench.cost.published.agreement import machine_of, predicted_ms
from shardbench.cost.published.gpus import committed
from shardbench.cost.published.points import (
    HELD_OUT,
    Family,
    Point,
    PublishedExchange,
    PublishedKernel,
    PublishedStep,
    published,
)
from shardbench.model.machine import Constants, Machine
from shardbench.model.machine_file import load_machine

Quantity = Literal["step", "embedding", "exchanges"]
JUDGES: dict[Quantity, tuple[str, type]] = {
    "step": ("step", PublishedStep),
    "embedding": ("kernel", PublishedKernel),
    "exchanges": ("exchange", PublishedExchange),
}
"""What judges a quantity: its name, and the kind of published points."""
_LINKS = ("intra_", "inter_", "peer_")
"""Beginnings of the names of constants that exchanges depend on, and kernels do not."""


@cache
def model_error(machine: str, quantity: Quantity) -> str:
    """Say how far held-out measurements on a machine of this name were from what its file predicts of a quantity.

    They are published points that no constant was fitted to and that were predicted with the very constants of the
    machine that the quantity depends on. Where there are none, steps are judged by what the machine file itself says of
    whole steps (``Trust``). A machine that nobody ships is judged by none.
    """
    subject, _ = JUDGES[quantity]
    shipped = _machine(machine)
    errors: list[float] = []
    notices: dict[str | None, None] = {}
    for point, family in _points(shipped, quantity) if shipped is not None else ():
        errors.append(100.0 * abs(predicted_ms(point, family) / point.published_ms - 1.0))
        notices[getattr(family, "notice", None)] = None
    if not errors and shipped is not None and shipped.trust is not None and quantity == "step":
        error, plans = 100.0 * (shipped.trust.step_error - 1.0), shipped.trust.plans
        return f"model error {error:.0f} %, root mean square of {plans} held-out steps: {shipped.trust.source}"
    if not errors:
        return f"not judged by any published {subject}"
    notice_text = "".join(f", {notice}" for notice in notices if notice)
    return f"model error {median(errors):.0f} %, median of {len(errors)} held-out {subject}s{notice_text}"


def _machine(name: str) -> Machine | None:
    """Return the shipped machine of this name; None where there is none, or where an override changes its constants."""
    plain, *overrides = name.split("+")
    if any("_capacity-" not in override for override in overrides):
        return None
    try:
        return load_machine(plain)
    except BadInput:
        return None


def _points(machine: Machine, quantity: Quantity) -> Iterator[tuple[Point, Family]]:
    """Return the held-out points of a quantity that are predicted with the machine's constants and no others."""
    for family in published().families.values():
        refitted = {
            name
            for name, constant in family.constants.items()
            if hasattr(machine.constants, name) and constant.source.startswith("fitted")
        }
        if refitted or not family.fitted:  # what ran on a GPU that is a guess judges nothing
            continue
        split = family.split()
        for point in family.points:
            if split[point.point] != HELD_OUT or not isinstance(point, JUDGES[quantity][1]):
                continue
            own = getattr(point, "constants", None)
            if not own and _alike(committed(machine_of(point, family)), machine, quantity):
                yield point, family


def _alike(a: Machine, b: Machine, quantity: Quantity) -> bool:
    if a.name == b.name:
        return True
    names = [field.name for field in fields(Constants)]
    if quantity != "step":
        names = [name for name in names if name.startswith(_LINKS) == (quantity == "exchanges")]
    return all(getattr(a.constants, name) == getattr(b.constants, name) for name in names)
