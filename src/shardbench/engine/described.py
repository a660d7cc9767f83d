"""A problem's machine in TorchRec's words, for its planner and its estimates."""

from typing import Any

from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, Storage, TopologyFactory, TrainerConfig

from shardbench.model.problem import Problem

UVM_DIVISOR = 10.0
"""The divisor that TorchRec applies to the host link's bandwidth for rows read from host memory."""


def describe(problem: Problem) -> Any:
    """Return the machine as a TorchRec Topology: capacities for embeddings, bandwidths in bytes per millisecond."""
    shape, constants = problem.topology, problem.machine.constants
    hardware = HardwareConfig(
        intra_host_bw=constants.intra_bytes_per_s / 1e3,
        inter_host_bw=constants.inter_bytes_per_s / 1e3,
        hbm_mem_bw=constants.hbm_bytes_per_s / 1e3,
        ddr_mem_bw=constants.host_bytes_per_s / 1e3,
        hbm_to_ddr_mem_bw=UVM_DIVISOR * constants.uvm_bytes_per_s / 1e3,
    )
    trainer = TrainerConfig(world_size=shape.world_size, local_world_size=shape.devices_per_node)
    # A CPU machine is described as a CUDA one: for "cpu" the planner refuses row-wise.
    kernel = KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True)
    topology = TopologyFactory.create_topology(trainer, hardware, kernel)
    for device in topology.devices:
        # Of a hardware config older releases take a capacity of 0 for one that is not stated.
        device.storage = Storage(hbm=shape.hbm_bytes, ddr=shape.uvm_bytes, ssd=0)
    return topology
