"""TorchRec's 2D parallelism with a node a group: a plan for one node's devices, copied to every node."""

from dataclasses import replace

from shardbench.model.plan import NodeSharded, OnLocalRank, OnRank, Placement, Plan, Replicated, RowWise
from shardbench.model.problem import Problem


def one_node(problem: Problem) -> Problem:
    """Return the problem as a group sees it: one node's devices, and the share of the batch that its ranks have.

    Nothing in it tells the planner what the copies cost to average (deviation 12).
    """
    topology = replace(problem.topology, nodes=1)
    machine = replace(problem.machine, topology=topology)
    batch_size = problem.batch_size // problem.topology.nodes
    return replace(problem, machine=machine, topology=topology, batch_size=batch_size)


def copied(plan: Plan, problem: Problem) -> Plan:
    """Turn a plan for one node's devices into one for all: every node has a copy of what it places.

    On a machine of one node, which has one group, the plan stays as it is.
    """
    if problem.topology.nodes == 1:
        return plan
    segments = tuple(replace(s, placement=_copied(s.placement, problem)) for s in plan.segments)
    return replace(plan, world_size=problem.world_size, segments=segments)


def _copied(place: Placement, problem: Problem) -> Placement:
    # Weights alone are averaged, after every step (deviation 10), in one collective (deviation 11).
    if isinstance(place, OnRank):
        return OnLocalRank(local_rank=place.rank, tier=place.tier)
    if isinstance(place, RowWise):  # over all ranks of the group
        return NodeSharded(tier=place.tier)
    # Data-parallel tables are all-reduced over all ranks, in 2D as without it.
    return Replicated(ranks=tuple(range(problem.world_size)))
