"""Predictions of published measurements by the cost model, beside what was published."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardbench.cost.collectives import collective_s, pairwise
from shardbench.cost.costmodel import backward_s, forward_s
from shardbench.cost.published.points import (
    Family,
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


@cache
def committed(name: str) -> Machine:
    """Return a machine, which is read once: fits and draws ask for it thousands of times."""
    return load_machine(name)


def predicted_ms(point: Point, family: Family, changed: Mapping[str, float] | None = None) -> float:
    """Return the milliseconds of a published point; ``changed`` constants go before the committed ones."""
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


def predict_all() -> list[Predicted]:
    """Predict all published points, in the order of the data file."""
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
            constants_of=family.machine,
        )
        for name, family in published().families.items()
        for point in family.points
    ]
