"""Plans whose steps are no sums over pieces: those that sharding groups copy, and those with caches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardbench.cost.collectives import bytes_s, group_reduction
from shardbench.cost.costmodel import estimate
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    sharding_groups,
)
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape

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


class WholePlan(ABC):
    """A plan whose step the cost model estimates."""

    @cached_property
    @abstractmethod
    def made(self) -> tuple[Plan, Problem]:
        """The plan, and the problem that it is for."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all tables."""
        return self.made[0].segments

    @cached_property
    def whole_ms(self) -> float:
        """Milliseconds of the whole step with the dense model that ``estimate`` takes where none is stated."""
        return self.step_ms(DenseShape())

    def step_ms(self, dense: DenseShape) -> float:
        """Return the milliseconds of the whole step as the cost model estimates it, the copies' averaging included."""
        return estimate(*self.made, dense).step_ms


@dataclass(frozen=True)
class CachedPlan(WholePlan):
    """A plan with caches in HBM, each of which several tables may share."""

    problem: Problem
    one: SeenPlan

    @cached_property
    def made(self) -> tuple[Plan, Problem]:
        """The plan, and the problem that it is for."""
        return Plan(world_size=self.problem.world_size, segments=self.one.segments), self.problem


@dataclass(frozen=True)
class CopiedPlan(WholePlan):
    """A plan for one sharding group, copied to all."""

    grouping: Grouping
    one: SeenPlan

    @cached_property
    def made(self) -> tuple[Plan, Problem]:
        """The plan, and the problem that it is for."""
        problem = self.grouping.whole
        world = tuple(range(problem.world_size))
        segments = tuple(_copied(segment, world) for segment in self.one.segments)
        return Plan(world_size=problem.world_size, segments=segments, groups=self.grouping.groups), problem


def _copied(segment: Segment, world: Sequence[int]) -> Segment:
    place = segment.placement
    if isinstance(place, OnRank):
        return replace(segment, placement=OnLocalRank(local_rank=place.rank, tier=place.tier))
    if isinstance(place, RowWise):  # over all ranks of the group
        return replace(segment, placement=GroupSharded(tier=place.tier))
    return replace(segment, placement=Replicated(ranks=tuple(world)))


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
