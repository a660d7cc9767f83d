"""A machine in TorchRec's words, for its planner and its estimates."""

from typing import Any

from shardbench.cost.accounting import INDEX_BYTES
from shardbench.cost.costmodel import gather_rate, gradient_rate
from shardbench.cost.memory.fullest import device_bytes
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem

UVM_DIVISOR = 10.0
"""The divisor that TorchRec applies to the host link's bandwidth for rows read from host memory."""


def bandwidths(machine: Machine) -> dict[str, float]:
    """Return the bandwidths that a machine states or was calibrated to, as TorchRec names them, bytes a millisecond."""
    constants = machine.constants
    return {
        "intra_host_bw": constants.intra_bytes_per_s / 1e3,
        "inter_host_bw": constants.inter_bytes_per_s / 1e3,
        "hbm_mem_bw": constants.hbm_bytes_per_s / 1e3,
        "ddr_mem_bw": constants.host_bytes_per_s / 1e3,
        "hbm_to_ddr_mem_bw": UVM_DIVISOR * constants.uvm_bytes_per_s / 1e3,
    }


def topology_fields(machine: Machine) -> dict[str, Any]:
    """Return the arguments of TorchRec's ``Topology`` for a machine; capacities in bytes, before any reservation."""
    shape = machine.topology
    return {
        "world_size": shape.world_size,
        "local_world_size": shape.devices_per_node,
        "compute_device": machine.device,
        "hbm_cap": int(device_bytes(machine) or shape.hbm_bytes),
        "ddr_cap": shape.uvm_bytes,
        **bandwidths(machine),
    }


def coefficients(machine: Machine) -> dict[str, dict[str, float]]:
    """Return a machine's lookups as TorchRec's estimator has them: fields of ``PerfCoefficient``, ``fwd`` and ``bwd``.

    Each multiplies bytes that go at HBM's rate. What TorchRec does not count is left out: equal rows of a batch, so
    that every lookup reads and updates a row of its own, caches, the optimizer's state, and times of kernels.
    """
    constants = machine.constants
    hbm, rate = constants.hbm_bytes_per_s, gather_rate(constants)
    reached = hbm / rate
    overhead = reached * constants.access_overhead_bytes
    return {
        "fwd": {
            "input_read_size_multiplier": 1.0 + overhead / INDEX_BYTES,
            "lookup_size_multiplier": reached,
            "embedding_output_multiplier": 1.0,
        },
        "bwd": {
            "input_read_size_multiplier": (constants.sort_bytes + 2.0 * overhead) / INDEX_BYTES,
            "lookup_size_multiplier": 2.0 * reached,
            "embedding_output_multiplier": hbm / gradient_rate(constants),
        },
    }


def hardware(machine: Machine) -> Any:
    """Return a machine's coefficients as the ``config`` of TorchRec's estimator; its bandwidths are the Topology's."""
    from torchrec.distributed.planner.estimator.types import (  # noqa: PLC0415
        EstimatorPerfCoefficients,
        HardwarePerfConfig,
        PerfCoefficient,
        PerfCoefficientConfig,
    )

    ways = {way: PerfCoefficient(**fields) for way, fields in coefficients(machine).items()}
    config = HardwarePerfConfig()
    config._coefficients = PerfCoefficientConfig(default=EstimatorPerfCoefficients(**ways))
    # Narrow rows cost by their lookups' coefficient.
    config._use_block_usage_penalty = config._use_min_dim_for_lookup = False
    return config


def describe(problem: Problem) -> Any:
    """Return the machine as a TorchRec Topology: capacities for embeddings, bandwidths in bytes per millisecond."""
    # Imported late: what is written down for TorchRec needs none.
    from torchrec.distributed.planner.types import (  # noqa: PLC0415
        HardwareConfig,
        KernelConfig,
        Storage,
        TopologyFactory,
        TrainerConfig,
    )

    shape = problem.topology
    hardware = HardwareConfig(**bandwidths(problem.machine))
    trainer = TrainerConfig(world_size=shape.world_size, local_world_size=shape.devices_per_node)
    # A CPU machine is described as a CUDA one: for "cpu" the planner refuses row-wise.
    kernel = KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True)
    topology = TopologyFactory.create_topology(trainer, hardware, kernel)
    for device in topology.devices:
        # Of a hardware config older releases take a capacity of 0 for one that is not stated.
        device.storage = Storage(hbm=shape.hbm_bytes, ddr=shape.uvm_bytes, ssd=0)
    return topology
