"""TorchRec's Topology as a machine: what its devices have for tables, and the constants of the cost model."""

from dataclasses import replace

from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardbench.engine.described import UVM_DIVISOR
from shardbench.model.machine import Machine, Topology
from shardbench.model.machine_file import load_machine

DEFAULT_MACHINE = "a100-40gb-2x8"
"""Machine whose constants count where neither the caller nor TorchRec's Topology states them."""


def capacities(topology: TorchRecTopology) -> tuple[int, ...]:
    """Return the bytes for tables of each device: its memory, or on CPUs the ranks' share of the host's."""
    hbm = topology.compute_device != "cpu"
    room = tuple(int(d.storage.hbm if hbm else d.storage.ddr) for d in topology.devices)
    if min(room) <= 0:
        raise PlannerError(f"device {room.index(min(room))} has no memory left for tables after the reservation")
    return room


def machine_of(machine: Machine | None, topology: TorchRecTopology, hbm_bytes: int) -> Machine:
    """Return the machine that a topology stands for; raises PlannerError where its ranks are not on whole nodes."""
    # A pod's nodes are as one: its ranks are what TorchRec's types in a node are of, and what fast links join.
    world, local = topology.world_size, topology.intra_group_size
    if world % local:
        raise PlannerError(f"{world} ranks are not on whole nodes of {local}")
    uvm = 0 if topology.compute_device == "cpu" else min(int(d.storage.ddr) for d in topology.devices)
    shape = Topology(nodes=world // local, devices_per_node=local, hbm_bytes=hbm_bytes, uvm_bytes=uvm, host_bytes=0)
    if machine is not None:
        return replace(machine, topology=shape)
    base = load_machine(DEFAULT_MACHINE)
    constants = replace(
        base.constants,
        hbm_bytes_per_s=1e3 * topology.hbm_mem_bw,
        host_bytes_per_s=1e3 * topology.ddr_mem_bw,
        uvm_bytes_per_s=1e3 * topology.hbm_to_ddr_mem_bw / UVM_DIVISOR,
        intra_bytes_per_s=1e3 * topology.intra_host_bw,
        inter_bytes_per_s=1e3 * topology.inter_host_bw,
    )
    return replace(base, name="torchrec", topology=shape, constants=constants, errors={})
