"""Predicts published measurements, writes the table of errors, and fits constants on its fit half.

``python -m shardbench.cost.published.agreement`` rewrites results/tables/published/points.csv and the tables
of docs/costmodel.md; ``--fit`` prints the fitted constants, which then stand in the machine files.
"""

import argparse
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text
from shardbench.cost.collectives import collective_s, pairwise
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.published.points import (
    FIT,
    HELD_OUT,
    Family,
    FitPlan,
    Point,
    PublishedExchange,
    PublishedKernel,
    kernel_load,
    missed_bytes,
    published,
    with_constants,
)
from shardbench.cost.published.steps import step_s
from shardbench.model.machine import Machine, load_machine

COLUMNS = (
    "point",
    "source",
    "published_ms",
    "predicted_ms",
    "error_pct",
    "split",
    "family",
    "group",
    "device",
    "constants_of",
)
CSV = Path("results/tables/published/points.csv")
DOCUMENT = Path("docs/costmodel.md")
WIDTH = 120
"""Columns of the document."""
ERROR_SCALE = 0.1
"""A point counts as its log error over this: 10 % of error weighs as much as a constant one PRIOR_SCALE off."""
PRIOR_SCALE = np.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One row of the table of published points."""

    point: str
    source: str
    published_ms: float
    predicted_ms: float
    split: str
    family: str
    group: str
    """Points of one group are one measurement repeated."""
    device: str
    constants_of: str

    @property
    def error_pct(self) -> float:
        """Predicted over published, minus one, in per cent."""
        return 100.0 * (self.predicted_ms / self.published_ms - 1.0)

    def row(self) -> tuple[str, ...]:
        """Cells, in the order of COLUMNS."""
        return (
            self.point, self.source, f"{self.published_ms:.5g}", f"{self.predicted_ms:.4g}", f"{self.error_pct:.1f}",
            self.split, self.family, self.group, self.device, self.constants_of,
        )  # fmt: skip


@cache
def committed(name: str) -> Machine:
    """A machine, read once: fits and draws ask for it thousands of times."""
    return load_machine(name)


def predicted_ms(point: Point, family: Family, changed: Mapping[str, float] | None = None) -> float:
    """Milliseconds of a published point; ``changed`` constants go before the committed ones."""
    own = {name: constant.value for name, constant in family.constants.items()} | dict(changed or {})
    machine = committed(family.machine)
    machine = replace(machine, constants=with_constants(machine.constants, own))
    if isinstance(point, PublishedKernel):
        return 1e3 * _kernel_s(point, machine, own.get("uvm_cache_lookup_s", 0.0))
    if isinstance(point, PublishedExchange):
        return 1e3 * _exchange_s(point, machine)
    return 1e3 * step_s(family.models[point.model], point.gpus, family.batch_size or 0, machine)


def _kernel_s(point: PublishedKernel, machine: Machine, cache_lookup_s: float) -> float:
    load = kernel_load(point)
    if point.phase == "backward":
        return float(backward_s(load, machine.constants)[0])
    cache = 0.0
    if point.tier == "uvm_cache":
        # Every lookup is looked up in the cache's directory; rows that it lacks are fetched first.
        cache = point.tables * point.lookups * cache_lookup_s + missed_bytes(point) / machine.constants.uvm_bytes_per_s
    return float(forward_s(load, machine.constants)[0]) + cache


def _exchange_s(point: PublishedExchange, machine: Machine) -> float:
    topology = replace(machine.topology, nodes=point.nodes, devices_per_node=point.devices_per_node)
    constants = with_constants(machine.constants, dict(point.constants))
    world = topology.world_size
    sent = pairwise(np.full((world, world), point.bytes / world), topology)
    return collective_s(sent, replace(machine, topology=topology, constants=constants))


def predict_all(changed: Mapping[str, float] | None = None) -> list[Predicted]:
    """All published points against the model, in the order of the data file."""
    rows = []
    for name, family in published().families.items():
        split = family.split()
        for point in family.points:
            rows.append(
                Predicted(
                    point=f"{name}/{point.point}",
                    source=family.source,
                    published_ms=point.published_ms,
                    predicted_ms=predicted_ms(point, family, changed),
                    split=split[point.point],
                    family=name,
                    group=point.group,
                    device=family.device,
                    constants_of=family.machine,
                )
            )
    return rows


def fit(plan: FitPlan) -> dict[str, float]:
    """Constants that meet the fit half of some families best in the log, drawn weakly to their prior."""
    families = [published().families[name] for name in plan.families]
    chosen: list[tuple[Point, Family, float]] = []
    for family in families:
        split = family.split()
        groups = [p.group for p in family.points]
        # Repeats of one measurement weigh together as one.
        chosen += [(p, family, groups.count(p.group) ** -0.5) for p in family.points if split[p.point] == FIT]
    names, prior = list(plan.prior), np.log(list(plan.prior.values()))
    upper = np.array([0.0 if name == "gather_efficiency_ratio" else np.inf for name in names])

    def residuals(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        values = dict(zip(names, np.exp(logs).tolist()))
        errors = [w * np.log(predicted_ms(p, f, values) / p.published_ms) / ERROR_SCALE for p, f, w in chosen]
        return [*errors, *((logs - prior) / PRIOR_SCALE)]

    found = least_squares(residuals, np.minimum(prior, upper - 1e-6), bounds=(-np.inf, upper))
    return dict(zip(names, np.exp(found.x).tolist()))


def table_csv(rows: Iterable[Predicted]) -> str:
    """The table of published points as CSV."""
    return csv_text(COLUMNS, (row.row() for row in rows))


def markdown(rows: list[Predicted]) -> str:
    """Error statistics by family, then every point, as the two tables of the document."""
    lines = [
        "| family | fitted | median error | worst | held out | median error | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in published().families:
        cells = [_statistics([r for r in rows if r.family == name and r.split == split]) for split in (FIT, HELD_OUT)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, family in published().families.items():
        about = f"**{name}**: {family.title}. Source: {family.source}. Device: {family.device}. "
        assumed = f"Constants of {family.machine}. Assumed: {'; '.join(family.assumptions)}."
        lines += ["", *textwrap.wrap(about + assumed, WIDTH, break_on_hyphens=False), ""]
        lines += [f"- `{key}` = {value.value:g}: {value.source}" for key, value in family.constants.items()]
        lines += ["", "| point | published ms | predicted ms | error % | split |", "|---|---|---|---|---|"]
        lines += [
            "| " + " | ".join((r.point.removeprefix(f"{name}/"), *r.row()[2:6])) + " |"
            for r in rows
            if r.family == name
        ]
    return "\n".join(lines)


def _statistics(rows: list[Predicted]) -> str:
    """Groups, median and worst absolute error; of repeats of one measurement the worst counts, once."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(abs(float(row.row()[4])))
    errors = [max(repeats) for repeats in groups.values()]
    return f"{len(errors)} | {median(errors):.1f} % | {max(errors):.1f} %" if errors else "0 | - | -"


def embed(document: str, table: str, name: str = "agreement") -> str:
    """The document with what is between the two markers of that name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = document.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Command line; run from the repository's root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print fitted constants and write nothing")
    if parser.parse_args().fit:
        for plan in published().fits:
            for name, value in fit(plan).items():
                print(f"{'+'.join(plan.families)}: {name} = {value:.4g} (prior {plan.prior[name]:g})")
        return
    rows = predict_all()

    write_atomically(CSV, table_csv(rows))
    write_atomically(DOCUMENT, embed(DOCUMENT.read_text(), markdown(rows)))


if __name__ == "__main__":
    main()
