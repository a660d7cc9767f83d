"""Sharding groups, each with a problem of its own, and plans whose steps are no sums over pieces."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardbench.cost.collectives import bytes_s, group_reduction
from shardbench.cost.costmodel import estimate
from shardbench.model.plan import Plan, Segment, ShardingGroups, copied_by_group, sharding_groups
from shardbench.model.problem import Problem

from .robust import SeenPlan


@dataclass(frozen=True)
class Grouping:
    """Sharding groups of a problem's devices."""

    whole: Problem
    groups: ShardingGroups

    @cached_property
    def one(self) -> Problem:
        """The problem of one group: its devices, and its ranks' share of the batch.

        In a node they are as they are. Those of an interleaved group are taken to have a node each, although some may
        share one: inside a group no table is dealt over a node.
        """
        whole, size = self.whole, self.groups.size
        nodes, devices = (size, 1) if self.groups.interleaved else (1, size)
        topology = replace(whole.topology, nodes=nodes, devices_per_node=devices)
        machine = replace(whole.machine, topology=topology)
        batch_size = whole.batch_size // whole.world_size * size
        return replace(whole, machine=machine, topology=topology, batch_size=batch_size)

    @cached_property
    def averaging_s(self) -> float:
        """Seconds in which a device averages its copy of a weight with other groups', without the call's latency."""
        topology = self.whole.topology
        payload = np.full(topology.world_size, float(self.whole.precision.bytes))
        averaged = group_reduction(payload, 2.0, sharding_groups(self.groups, topology).T, topology)
        return float(bytes_s(averaged.sent_intra, averaged.sent_inter, self.whole.machine.constants).max())

    @property
    def averaging_ms(self) -> float:
        """Milliseconds in which devices average copies of all weights, if these are spread evenly over a group's."""
        return 1e3 * self.averaging_s * sum(table.rows * table.dim for table in self.whole.tables) / self.groups.size


@dataclass(frozen=True)
class WholePlan:
    """A plan whose step the cost model estimates: with caches that tables share, or copied to sharding groups."""

    problem: Problem
    one: SeenPlan
    grouping: Grouping | None = None
    """The groups to which it is copied."""

    @cached_property
    def made(self) -> Plan:
        """The plan of all devices."""
        if self.grouping is None:
            return Plan(world_size=self.problem.world_size, segments=self.one.segments)
        groups = self.grouping.groups
        one = Plan(world_size=groups.size, segments=self.one.segments)
        return copied_by_group(one, self.problem.world_size, groups)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all tables."""
        return self.made.segments

    @cached_property
    def whole_ms(self) -> float:
        """Milliseconds of the whole step as the cost model estimates it, the copies' averaging included."""
        return estimate(self.made, self.problem).step_ms


def groupings(problem: Problem) -> Iterator[Grouping]:
    """Yield the ways to group devices, small groups first.

    Those of several nodes are as far apart as can be: the copies of a row lie side by side, so that averaging them
    stays in a node, or goes over few.
    """
    world, topology = problem.world_size, problem.topology
    for size in (size for size in range(2, world) if world % size == 0):
        copies, local = world // size, topology.devices_per_node
        if local % copies == 0 or copies % local == 0:
            yield Grouping(problem, ShardingGroups(size=size, interleaved=topology.nodes > 1))
