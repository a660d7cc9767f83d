"""Predictions of published measurements by the cost model, beside what was published."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np

from shardbench.cost.collectives import all_reduce_s, collective_s, pairwise
from shardbench.cost.costmodel import backward_s, caching_s, forward_s
from shardbench.cost.dense import Format, Product, products_s
from shardbench.cost.published.cached import cached_runs, run_ms
from shardbench.cost.published.gpus import committed, shared, with_shares
from shardbench.cost.published.points import (
    HELD_OUT,
    Family,
    Point,
    PublishedBucketise,
    PublishedCopy,
    PublishedExchange,
    PublishedKernel,
    PublishedProduct,
    PublishedStep,
    cache_work,
    kernel_load,
    published,
)
from shardbench.cost.published.steps import step_parts
from shardbench.cost.uncertainty import HeldOutStep, trust
from shardbench.model.machine import Machine, Trust
from shardbench.model.machine_file import scaled


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


def machine_of(point: Point, family: Family) -> str:
    """Return the machine file whose constants predict a point."""
    return point.machine if isinstance(point, PublishedStep) else family.machine


def predicted_ms(
    point: Point,
    family: Family,
    shares: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> float:
    """Return the milliseconds of a published point.

    A fit gives ``shares``, of which its machine is made, in place of the committed file; ``factors`` multiply
    constants, whether they are the machine's, the family's or the point's own.
    """
    name = machine_of(point, family)
    machine = committed(name) if shares is None else with_shares(name, shares)
    shares = shared() if shares is None else shares
    own = {name: constant.value for name, constant in family.constants.items()}
    own |= dict(point.constants) if isinstance(point, PublishedExchange) else {}
    machine = replace(machine, constants=replace(machine.constants, **own))
    if factors:
        machine = scaled(machine, factors)
    constants = machine.constants
    if isinstance(point, PublishedKernel):
        return 1e3 * _kernel_s(point, machine, shares["cache_directory_s"])
    if isinstance(point, PublishedExchange):
        return 1e3 * _exchange_s(point, machine)
    if isinstance(point, PublishedCopy):
        return 1e3 * point.moved_bytes / 2.0 / constants.vector_copy_bytes_per_s
    if isinstance(point, PublishedBucketise):
        return 1e3 * point.lookups * constants.bucketise_s
    if isinstance(point, PublishedProduct):
        product = Product(m=point.m, k=point.k, n=point.n)
        return 1e3 * products_s([product] * point.count, machine, Format(point.precision))
    return 1e3 * step_parts(point, machine, shares).total


def _kernel_s(point: PublishedKernel, machine: Machine, directory_s: float) -> float:
    load, constants = kernel_load(point), machine.constants
    cache_s = caching_s(cache_work(point), constants, directory_s)
    if point.phase == "backward":
        return float((backward_s(load, constants) + cache_s)[0])
    update_s = backward_s(load, constants) if point.phase == "train" else 0.0
    return float((forward_s(load, constants, cache_s) + update_s)[0])


def _exchange_s(point: PublishedExchange, machine: Machine) -> float:
    topology = replace(machine.topology, nodes=point.nodes, devices_per_node=point.devices_per_node)
    machine, world = replace(machine, topology=topology), topology.world_size
    if point.kind == "all_reduce":
        return all_reduce_s(float(point.bytes), machine)
    return collective_s(pairwise(np.full((world, world), point.bytes / world), topology), machine)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs of the same tables on as many GPUs that differ in where tables lie, what moves or when, as ratios."""

    family: str
    what: str
    """What both have in common."""
    first: str
    second: str
    published_ratio: float
    """The first one's time over the second one's; medians of repeats."""
    predicted_ratio: float

    @property
    def differs(self) -> bool:
        """Return whether the published times differ by more than DIFFERENT."""
        return max(self.published_ratio, 1.0 / self.published_ratio) > DIFFERENT

    @property
    def sign_right(self) -> bool:
        """Return whether the model says which is faster; it means little of a pair that is not told apart."""
        return (self.published_ratio > 1.0) == (self.predicted_ratio > 1.0)

    @property
    def error_pct(self) -> float:
        """Return the larger of predicted over published ratio and its inverse, minus one, in per cent."""
        return 100.0 * math.expm1(abs(math.log(self.predicted_ratio / self.published_ratio)))


TRUST_SOURCE = (
    "published whole steps of GPUs, held out (docs/costmodel.md, section 7); those of MLPerf are derived from public "
    "result logs, not verified by MLCommons"
)
DIFFERENT = 1.05
"""Ratio from which on two runs are told apart."""


def pairs() -> list[Pair]:
    """Return all pairs of published plans and schedules, and of one kernel's tiers, those of alike times as well.

    Those of caches in HBM come last (``cached.json``): nothing is fitted to them.
    """
    all_pairs: list[Pair] = []
    for name, family in published().families.items():
        runs: Runs = {}
        for point in family.points:
            names = _paired(point, family)
            if names is not None:
                both = point.published_ms, predicted_ms(point, family)
                runs.setdefault(names[0], {}).setdefault(names[1], []).append(both)
        all_pairs += _pairs_of(name, runs)
    for name, cached in cached_runs().families.items():
        runs = {}
        for run in cached.points:
            what = f"{run.optimizer}, {run.tables} x {run.rows} rows, {run.lookups} lookups"
            runs.setdefault(what, {}).setdefault(run.placed, []).append((run.published_ms, run_ms(run, cached)))
        all_pairs += _pairs_of(name, runs)
    return all_pairs


Runs = dict[str, dict[str, list[tuple[float, float]]]]
"""Published and predicted milliseconds of repeats, by what the runs have in common and by plan."""


def _pairs_of(family: str, runs: Runs) -> list[Pair]:
    family_pairs: list[Pair] = []
    for what, plans in runs.items():
        for first, second in combinations(sorted(plans), 2):
            (a, predicted_a), (b, predicted_b) = (np.median(plans[plan], axis=0) for plan in (first, second))
            family_pairs.append(
                Pair(
                    family=family,
                    what=what,
                    first=first,
                    second=second,
                    published_ratio=float(a / b),
                    predicted_ratio=float(predicted_a / predicted_b),
                )
            )
    return family_pairs


def _paired(point: Point, family: Family) -> tuple[str, str] | None:
    """Return what a run must share with another to be compared with it, and its own plan; None for other points."""
    if isinstance(point, PublishedStep) and family.compared:
        same = f"{point.model}, {point.gpus} GPUs, batch {point.batch_size}, {point.dense}"
        return same, f"{plan_of(point)[1]}{'' if point.executor.startswith('torchrec') else f', {point.executor}'}"
    if isinstance(point, PublishedStep):
        return plan_of(point)
    if isinstance(point, PublishedKernel) and point.tier != "hbm":
        same = f"{point.phase}, {point.optimizer}, {point.tables} x {point.rows} rows, {point.lookups} lookups"
        cached = "" if point.cached_ratio is None else f" {point.cached_ratio:g}"
        return same, f"{point.tier}{cached}"
    return None


def plan_of(point: PublishedStep) -> tuple[str, str]:
    """Return what a step shares with other plans of its tables and GPUs, and its own plan."""
    same = f"{point.model}, {point.gpus} GPUs of {point.machine}, batch {point.batch_size}, {point.dense}"
    # A pipeline or none is a choice within one software; other software is no other plan.
    software = "torchrec" if point.executor.startswith("torchrec") else point.executor
    gradient = "" if point.weight_gradient else ", without gradients of weights"
    pipeline = f", {point.executor}" if software == "torchrec" else ""
    plan = f"{point.plan} on {point.nodes} node{'s' * (point.nodes > 1)}{gradient}{pipeline}"
    return f"{same}, {software}", plan + ", tables in host memory" * bool(point.in_uvm)


def held_out_steps(without: str = "") -> list[HeldOutStep]:
    """Return the held-out whole steps, but for those on the machine ``without``, each plan once: medians of its runs.

    Steps on a GPU that is a guess are none of them.
    """
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for family in published().families.values():
        split = family.split()
        for point in family.points if family.fitted else ():
            if isinstance(point, PublishedStep) and split[point.point] == HELD_OUT and point.machine != without:
                runs.setdefault(plan_of(point), []).append((predicted_ms(point, family), point.published_ms))
    medians = [(tables, np.median(times, axis=0)) for (tables, _), times in runs.items()]
    return [HeldOutStep(tables=tables, predicted_ms=float(p), measured_ms=float(m)) for tables, (p, m) in medians]


@cache
def published_trust(without: str = "") -> Trust:
    """Return how far held-out whole steps, but for those on the machine ``without``, are from what is predicted."""
    return trust(held_out_steps(without), math.log(DIFFERENT), TRUST_SOURCE)


def predict_all() -> list[Predicted]:
    """Predict all published points, in the order of the data files."""
    return [
        Predicted(
            point=f"{name}/{point.point}",
            source=family.source,
            published_ms=point.published_ms,
            predicted_ms=predicted_ms(point, family),
            split=family.split()[point.point],
            family=name,
            group=point.group,
            device=family.device,
            constants_of=machine_of(point, family),
        )
        for name, family in published().families.items()
        for point in family.points
    ]
