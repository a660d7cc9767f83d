"""How well constants are known: the factors by which held-out points say that they err.

``python -m shardbench.cost.published.held_out`` prints them; they stand in the machine files.
All constants that a set of families judges share one factor: drawn by it, each by itself, they spread
the predictions of the held-out points as far as the held-out errors go, root mean squares of logarithms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.published.agreement import predicted_ms
from shardbench.cost.published.points import HELD_OUT, ExchangePoint, Family, Point, published
from shardbench.model.machine import load_machine

_STEP = 1.05
"""Factor by which a constant is moved to see how far a prediction follows."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Constants of which held-out points of some families say how well they are known."""

    families: tuple[str, ...]
    constants: tuple[str, ...]
    """Fields of Constants."""


_KERNELS = (
    "hbm_bytes_per_s", "cache_bytes_per_s", "cache_reach_ratio", "uvm_bytes_per_s", "gather_efficiency_ratio",
    "access_overhead_bytes", "sort_bytes", "dispatch_s",
)  # fmt: skip
JUDGED = {
    "+".join(judged.families): judged
    for judged in (
        Judged(families=("tbe_h100", "tbe_width"), constants=_KERNELS),
        Judged(families=("embedding_bag",), constants=_KERNELS),
        Judged(
            families=("all_to_all_rtx6000d", "all_to_all_others"),
            constants=("intra_bytes_per_s", "inter_bytes_per_s", "inter_latency_s", "peer_latency_s"),
        ),
    )
}
"""By the word that machine files use after BEGINS."""
BEGINS = "held out: "


def scaled_ms(point: Point, family: Family, factors: Mapping[str, float]) -> float:
    """Milliseconds of a published point, predicted with constants multiplied by ``factors``."""
    stated = load_machine(family.machine).constants
    values = {name: getattr(stated, name) for name in factors}
    values |= {name: constant.value for name, constant in family.constants.items() if name in factors}
    if isinstance(point, ExchangePoint):
        own = {name: value * factors.get(name, 1.0) for name, value in point.constants.items()}
        point = replace(point, constants=own)
    changed = {name: value * factors[name] for name, value in values.items()}
    if "gather_efficiency_ratio" in changed:
        changed["gather_efficiency_ratio"] = min(1.0, changed["gather_efficiency_ratio"])
    return predicted_ms(point, family, changed)


def held_out(families: tuple[str, ...]) -> list[tuple[Point, Family, float]]:
    """Held-out points of some families with weights that add up to 1: repeats of one measurement weigh as one."""
    points = []
    for name in families:
        family = published().families[name]
        split = family.split()
        groups = [point.group for point in family.points]
        points += [(p, family, 1.0 / groups.count(p.group)) for p in family.points if split[p.point] == HELD_OUT]
    total = sum(weight for _, _, weight in points)
    return [(point, family, weight / total) for point, family, weight in points]


def rms_log_error(families: tuple[str, ...]) -> float:
    """Root mean square of log(predicted / published) of the held-out points."""
    return math.sqrt(
        sum(w * math.log(predicted_ms(p, family) / p.published_ms) ** 2 for p, family, w in held_out(families))
    )


def sensitivities(point: Point, family: Family, constants: tuple[str, ...]) -> Floats:
    """d log(predicted) / d log(constant), [constants], by central differences."""
    width = 2.0 * math.log(_STEP)
    return np.array(
        [
            math.log(scaled_ms(point, family, {c: _STEP}) / scaled_ms(point, family, {c: 1.0 / _STEP})) / width
            for c in constants
        ]
    )


@cache
def factor(name: str) -> float:
    """Error factor of the constants that ``JUDGED[name]`` lists."""
    judged = JUDGED[name]
    spread = sum(w * float((sensitivities(p, f, judged.constants) ** 2).sum()) for p, f, w in held_out(judged.families))
    return math.exp(rms_log_error(judged.families) / math.sqrt(spread))


def stated_factor(error_source: str) -> float | None:
    """What a machine file's error must be, to two decimals; None where its words name no held-out points.

    ``held out: a, b (...)`` are constants that were judged by a and then carried over to a device like
    that of b: both errors add up, as squares of logarithms.
    """
    if not error_source.startswith(BEGINS):
        return None
    names = error_source.removeprefix(BEGINS).split(" (")[0].split(", ")
    return round(math.exp(math.sqrt(sum(math.log(factor(name)) ** 2 for name in names))), 2)


def main() -> None:
    """Print every factor with the held-out error that it comes from."""
    for name, judged in JUDGED.items():
        error = math.expm1(rms_log_error(judged.families))
        print(f"{name}: {factor(name):.3f} (held-out error {100 * error:.1f} %) of {', '.join(judged.constants)}")


if __name__ == "__main__":
    main()
