"""How well constants and form are known: the factors by which held-out points say that they err.

``python tools/published_held_out.py`` prints the factors, which stand in the machine files and in
``shardbench.cost.uncertainty``, and rewrites their table in docs/costmodel_evidence.md and ``TRUST_CSV``.
What the best constants leave of the points' errors is the form's. All constants that a set of families judges share
one factor: drawn by it, each by itself and the form as well, they spread the predictions of the held-out points as
far as the held-out errors go, root mean squares of logarithms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from published_agreement import DOCUMENT, ERROR_SCALE, PRIOR_SCALE, embed
from scipy.optimize import least_squares

from shardbench.base.arrays import Floats
from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text
from shardbench.cost.published.agreement import DIFFERENT, machine_of, plan_of, predicted_ms, published_trust
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
from shardbench.cost.uncertainty import DRAWS, EXCHANGE_FORM, KERNEL_FORM, deviations, judged_steps, sure
from shardbench.model.machine_file import KEYS, source_name
from shardbench.report.prediction.model_error import JUDGES
from shardbench.report.prediction.trust import COLUMNS, TrustCounts

TRUST_CSV = Path("results/tables/published/trust.csv")
STEP_FORM = 1.20
"""Error factor of the form of whole published steps, for the constants that they judge."""
_STEP = 1.05
"""Factor by which a constant is moved to see how far a prediction follows."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Constants of which held-out points of some families say how well they are known."""

    families: tuple[str, ...]
    constants: tuple[str, ...]
    """Names of fields of ``Constants``."""
    form: float
    """Error factor of the model's form for what these points time."""


_EXCHANGES = (
    "all_to_all_rtx6000d", "all_to_all_others", "all_to_all_h100", "all_to_all_h100_small", "all_to_all_h100_four",
    "all_to_all_h20", "all_reduce_a100", "all_reduce_b200", "collectives_b200_mlperf", "all_reduce_v100",
    "all_reduce_b200_efa",
)  # fmt: skip
_KERNELS = tuple(name for name in published().families if name.startswith(("tbe_", "embedding_bag")))
JUDGED = {
    "kernels": Judged(
        families=_KERNELS,
        constants=(
            "hbm_bytes_per_s", "cache_bytes_per_s", "cache_reach_ratio", "uvm_bytes_per_s", "gather_efficiency_ratio",
            "access_overhead_bytes", "sort_bytes", "dispatch_s", "launch_s", "bag_step_s", "sort_launch_s", "warp_s",
            "gradient_ratio", "uvm_hit_ratio", "uvm_update_ratio",
        ),
        form=KERNEL_FORM,
    ),
    "exchanges": Judged(
        families=_EXCHANGES,
        constants=(
            "intra_bytes_per_s", "inter_bytes_per_s", "intra_latency_s", "inter_latency_s", "peer_latency_s",
            "switch_reduction",
        ),
        form=EXCHANGE_FORM,
    ),
    "steps": Judged(
        families=tuple(name for name in published().families if name.startswith("step_")),
        constants=(
            "dense_flop_per_s", "dense_tf32_rate", "dense_half_rate", "dense_layer_s", "vector_copy_bytes_per_s",
            "reduce_bytes_per_s",
        ),
        form=STEP_FORM,
    ),
}  # fmt: skip
"""The judged constants, as ``Machine.errors`` names them, by the word that machine files use after BEGINS."""
BEGINS = "held out: "
_AS_JUDGED = {
    **{name: of for of, judged in JUDGED.items() for name in judged.constants},
    **dict.fromkeys(("activation_bytes_per_s", "lookup_copy_s", "length_copy_s"), "steps"),
}
"""What tells how far a constant errs; other copies err as those of vectors do."""
ERROR_OF = {
    key: f"{BEGINS}{_AS_JUDGED[name]} (docs/costmodel.md, section 7)"
    for key in KEYS
    if (name := source_name(key)) in _AS_JUDGED
}
"""The words that say where the error of a GPU's constant comes from, by its key in a machine file."""


def weighed(families: tuple[str, ...], *, every: bool = False) -> list[tuple[Point, Family, float]]:
    """Return the held-out points of some families, or ``every`` one, with weights that add up to 1.

    Repeats of one measurement weigh as one.
    """
    points = []
    for name in families:
        family = published().families[name]
        split = family.split()
        groups = [point.group for point in family.points]
        points += [
            (p, family, 1.0 / groups.count(p.group)) for p in family.points if every or split[p.point] == HELD_OUT
        ]
    total = sum(weight for _, _, weight in points)
    return [(point, family, weight / total) for point, family, weight in points]


def rms_log_error(families: tuple[str, ...]) -> float:
    """Return the root mean square of log(predicted / published) of the held-out points."""
    return math.sqrt(
        sum(w * math.log(predicted_ms(p, family) / p.published_ms) ** 2 for p, family, w in weighed(families))
    )


def sensitivities(point: Point, family: Family, constants: tuple[str, ...]) -> Floats:
    """Return d log(predicted) / d log(constant), [constants], by central differences."""
    width = 2.0 * math.log(_STEP)
    return np.array(
        [math.log(_ms_at(point, family, c, _STEP) / _ms_at(point, family, c, 1.0 / _STEP)) / width for c in constants]
    )


def _ms_at(point: Point, family: Family, constant: str, factor_: float) -> float:
    return predicted_ms(point, family, factors={constant: factor_})


@cache
def form_error(name: str) -> float:
    """Return the error that the best constants for *all* points of ``JUDGED[name]`` leave, as a factor."""
    judged = JUDGED[name]
    points = weighed(judged.families, every=True)

    def errors(logs: Floats) -> Floats:
        factors = dict(zip(judged.constants, np.exp(logs).tolist()))
        gaps = [math.sqrt(w) * math.log(predicted_ms(p, f, factors=factors) / p.published_ms) for p, f, w in points]
        return np.array(gaps)

    groups = len({(id(family), point.group) for point, family, _ in points})

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([math.sqrt(groups) * errors(logs) / ERROR_SCALE, logs / PRIOR_SCALE])

    best = least_squares(residuals, np.zeros(len(judged.constants))).x
    return math.exp(float(np.linalg.norm(errors(best))))


@cache
def factor(name: str) -> float:
    """Return the error factor of the constants that ``JUDGED[name]`` lists."""
    judged = JUDGED[name]
    spread = sum(w * float((sensitivities(p, f, judged.constants) ** 2).sum()) for p, f, w in weighed(judged.families))
    rest = rms_log_error(judged.families) ** 2 - math.log(judged.form) ** 2
    return math.exp(math.sqrt(rest / spread))


def stated_factor(error_source: str) -> float | None:
    """Return what a machine file's error must be, to two decimals; None where its words name no held-out points.

    ``held out: a, b (...)`` are constants that were judged by a and then carried over to a device like
    that of b: both errors add up, as squares of logarithms.
    """
    if not error_source.startswith(BEGINS):
        return None
    names = error_source.removeprefix(BEGINS).split(" (")[0].split(", ")
    return round(math.exp(math.sqrt(sum(math.log(factor(name)) ** 2 for name in names))), 2)


def drawn_logs(point: Point, family: Family) -> Floats:
    """Return log(ms) of a point under the draws of its machine's constants and of the form, [DRAWS].

    The form of a step is drawn by what steps on other machines say of it, not those of its own.
    """
    machine = machine_of(point, family)
    factors = {name: error ** deviations(name) for name, error in committed(machine).errors.items()}
    drawn_ms = [predicted_ms(point, family, factors={n: float(f[i]) for n, f in factors.items()}) for i in range(DRAWS)]
    if isinstance(point, PublishedStep):
        return np.log(judged_steps(predicted_ms(point, family), drawn_ms, published_trust(machine), point.point))
    form = {PublishedKernel: KERNEL_FORM, PublishedExchange: EXCHANGE_FORM}.get(type(point), 1.0)
    return np.asarray(np.log(drawn_ms) + math.log(form) * deviations(f"form of {point.point}"))


Drawn = tuple[Point, Family, Floats]
"""A held-out point of a family, with the log(ms) of its draws, [DRAWS]."""


def one_group(point: Point, family: Family) -> str:
    """Let every two points be a pair."""
    del point, family
    return ""


def alike(point: Point, family: Family) -> str:
    """Return the tables and GPUs of a step, or the family of a kernel or an exchange: what a pair has in common."""
    return plan_of(point)[0] if isinstance(point, PublishedStep) else family.title


def coverage(
    points: Sequence[Drawn], common: Callable[[Point, Family], str] = one_group, machine: str = "", quantity: str = ""
) -> tuple[TrustCounts, int]:
    """Hold the draws against points of one measurement each; pairs have something in common and differ by DIFFERENT.

    Return the counts, and of how many pairs the published ratio lies within the 95 % band of the ratio.
    """
    times = [(common(p, family), drawn, math.log(p.published_ms)) for p, family, drawn in points]
    every = [(a - b, x - y) for (i, a, x), (j, b, y) in combinations(times, 2) if i == j]
    pairs = [(drawn, real) for drawn, real in every if abs(real) > math.log(DIFFERENT)]
    slower = [(float(np.mean(drawn > 0)), real > 0) for drawn, real in pairs]
    orders = [(sure(p), (p > 0.5) == real) for p, real in slower]
    inside = [_holds(drawn, real) for _, drawn, real in times]
    counts = TrustCounts.of("published", machine, quantity, inside, orders)
    return counts, sum(_holds(drawn, real) for drawn, real in pairs)


def firsts(family: str) -> list[tuple[Point, Family]]:
    """Return the held-out points of a family, the first of each measurement."""
    return list({point.group: (point, own) for point, own, _ in reversed(weighed((family,)))}.values())


@cache
def drawn_firsts(family: str) -> list[Drawn]:
    """Return the held-out points that ``firsts`` gives, each with its draws; made once, as that takes seconds."""
    return [(point, own, drawn_logs(point, own)) for point, own in firsts(family)]


def trust_csv() -> str:
    """Return how far the draws hold for held-out points, a line a machine file and quantity."""
    lines = []
    for quantity, (_, kind) in JUDGES.items():
        of_machines: dict[str, list[Drawn]] = {}
        for point, family, drawn in (first for name in published().families for first in drawn_firsts(name)):
            # What ran on a GPU that is a guess judges nothing.
            if isinstance(point, kind) and family.fitted:
                of_machines.setdefault(machine_of(point, family), []).append((point, family, drawn))
        for machine, points in sorted(of_machines.items()):
            counts, _ = coverage(points, alike, machine, quantity)
            lines.append(counts.cells())
    return csv_text(COLUMNS, lines)


def _holds(drawn: Floats, value: float) -> bool:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return bool(low <= value <= high)


def markdown() -> str:
    """Write the document's table: factors, and how the draws do on held-out points."""
    lines = [
        "| held out | points | error | of the form | factor | in band | pairs | ratio in band | order known | right |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, judged in JUDGED.items():
        of_families = [coverage(drawn_firsts(family)) for family in judged.families]
        points, *told = np.sum([(c.points, c.inside, c.pairs, own, c.sure, c.right) for c, own in of_families], axis=0)
        cells = [
            str(points), f"{100.0 * math.expm1(rms_log_error(judged.families)):.1f} %",
            f"{100.0 * (judged.form - 1.0):.0f} %", f"{factor(name):.2f}", *map(str, told),
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line, from the repository's root."""
    for name in JUDGED:
        print(f"{name}: factor {factor(name):.3f}, form {form_error(name):.3f}")
    write_atomically(DOCUMENT, embed(DOCUMENT.read_text(), markdown(), "held out"))
    write_atomically(TRUST_CSV, trust_csv())


if __name__ == "__main__":
    main()
