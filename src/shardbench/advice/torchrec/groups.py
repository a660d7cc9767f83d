"""TorchRec's 2D parallelism (``DMPCollection``): what one sharding group is planned for, and its plan as all ranks'."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ShardingPlan

from shardbench.base.errors import BadInput, InvalidPlan, Unsupported
from shardbench.engine.torchrec.exported import DENSE
from shardbench.engine.torchrec.sharding import configs_of, shardables
from shardbench.engine.torchrec.tables import Sharders
from shardbench.model.caching import KERNELS
from shardbench.model.plan import Plan, RowWise, ShardingGroups, Tier, copied_by_group

TYPES_NOT_COPIED = ("table_wise", "column_wise", "row_wise")
TYPES = (*TYPES_NOT_COPIED, "data_parallel")
"""Sharding types that are planned within a group; a group's nodes are none of TorchRec's."""
FUSED = KERNELS[Tier.HBM]
"""The kernel of whose weights ``DMPCollection`` averages all: it knows no dense kernel, and of a cached table only what
lies behind the cache."""


def group_topology(topology: TorchRecTopology, groups: ShardingGroups) -> TorchRecTopology:
    """Return the topology of one sharding group, each of its devices with the least memory of those that it stands for.

    Its nodes hold the ranks of a group that share a node. Raises BadInput for groups that are unlike each other.
    """
    world, local, size = topology.world_size, topology.intra_group_size, groups.size
    try:
        everyone = groups.ranks(world)
    except InvalidPlan as error:
        raise BadInput(str(error)) from error
    # Ranks of the same number side by side in interleaved groups, those of one group in contiguous ones.
    beside = world // size if groups.interleaved else size
    if beside % local and local % beside:
        raise BadInput(f"sharding groups of {size} of {world} ranks are unlike each other on nodes of {local}")
    inside = max(1, local // beside) if groups.interleaved else min(local, size)
    one = deepcopy(topology)
    # TorchRec has no way to take some devices of a topology that was made with memory by device, or of a pod.
    one._world_size, one._local_world_size, one._intra_group_size, one._pod_size = size, inside, inside, None
    one._devices = one._devices[:size]
    for number, device in enumerate(one._devices):
        for kind in ("hbm", "ddr"):
            least = min(getattr(topology.devices[rank].storage, kind) for rank in everyone[:, number])
            setattr(device.storage, kind, least)
    return one


def within_groups(
    module: torch.nn.Module,
    sharders: Sharders,
    constraints: Mapping[str, ParameterConstraints],
    types: Sequence[str] = TYPES,
) -> dict[str, ParameterConstraints]:
    """Return the constraints by which all copies of a table are trained alike; raises PlannerError without any.

    Copies of what a module keeps beside its tables, as managed collisions do, would differ.
    """
    kept = dict(constraints)
    try:
        parts = list(shardables(module, {sharder.module_type for sharder in sharders}))
    except Unsupported as error:
        raise PlannerError(str(error)) from error
    for one in parts:
        if one.module is not one.collection:
            raise PlannerError(f"{one.path}, a {type(one.module).__name__}, is not planned within sharding groups")
        for config in configs_of(one.collection):
            own = constraints.get(config.name) or ParameterConstraints()
            kept[config.name] = replace(
                own,
                sharding_types=_allowed(config.name, own.sharding_types, types),
                compute_kernels=_allowed(config.name, own.compute_kernels, (FUSED, DENSE)),
            )
    return kept


def _allowed(name: str, constrained: list[str] | None, possible: Sequence[str]) -> list[str]:
    allowed = [kind for kind in possible if not constrained or kind in constrained]
    if not allowed:
        raise PlannerError(
            f"table '{name}': {constrained} is not planned within sharding groups, allow some of {', '.join(possible)}"
        )
    return allowed


def in_all_groups(plan: ShardingPlan, ours: Plan, world_size: int, groups: ShardingGroups) -> Plan:
    """Return a group's plan, ``ours`` being what TorchRec's comes to, copied to all groups of ``world_size`` ranks.

    Raises PlannerError where the copies would not be trained alike.
    """
    for module in plan.plan.values():
        for name, how in module.items():
            kernel = DENSE if how.sharding_type == "data_parallel" else FUSED
            if how.compute_kernel != kernel:
                raise PlannerError(f"table '{name}': copies by kernel {how.compute_kernel} are not averaged")
    for segment in ours.segments:
        if isinstance(segment.placement, RowWise) and len(segment.placement.ranks) < groups.size:
            raise PlannerError(f"table '{segment.table}': its rows are on some ranks of a sharding group alone")
    return copied_by_group(ours, world_size, groups)
