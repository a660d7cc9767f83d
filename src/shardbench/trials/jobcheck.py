"""What can be known of a trial before it runs: that no plan could end well, or that devices are missing."""

import importlib.util
from functools import cache
from pathlib import Path

from shardbench.base.host import missing_driver
from shardbench.base.memory import gib
from shardbench.base.temporary import temporary_folder
from shardbench.engine.processes.launch import call_in_child
from shardbench.model.machine import Machine
from shardbench.records.trial import Backend
from shardbench.trials.suite import Job
from shardbench.workloads.workload import Workload

ENGINE = {"torch": "torch", "fbgemm_gpu": "fbgemm-gpu", "torchrec": "torchrec"}
"""Modules of the measured backend and their distributions."""
_COUNT_S = 120.0


def impossible(workload: Workload, machine: Machine, job: Job) -> str:
    """Why no trial of the job could end well whatever the strategy, and what to do; or an empty string."""
    subject, topology = f"workload {workload.name} on machine {machine.name}", machine.topology
    world, size = topology.world_size, workload.batch_size
    if size < world or size % world:
        valid = max(world, size - size % world)
        return f"{subject}: batch size {size} is not a multiple of the {world} devices; set batch_size = {valid} there"
    odd = next((table for table in workload.tables if table.dim % 4), None)
    if odd is not None:
        return f"{subject}: table {odd.name} has dim {odd.dim}; the kernels need a multiple of 4"
    need_bytes = sum(t.rows * (t.dim * job.precision.bytes + job.optimizer.state_bytes(t.dim)) for t in workload.tables)
    room_bytes = world * (topology.hbm_bytes + topology.uvm_bytes) + topology.nodes * topology.host_bytes
    if need_bytes > room_bytes:
        return (
            f"{subject}: the tables need {gib(need_bytes)} GiB with optimizer state, the machine has "
            f"{gib(room_bytes)} GiB in all; take a larger machine or smaller tables"
        )
    return ""


def lacking_devices(machine: Machine, backend: Backend) -> str:
    """Why this computer cannot run the machine's measured trials, or an empty string.

    Ranks of all nodes run here: one computer stands for several nodes where it has the devices.
    """
    if backend is Backend.SIMULATED:
        return ""
    ranks, missing = machine.topology.world_size, missing_engine()
    if missing:
        return f"needs {', '.join(missing)}, not installed here: requirements/ lists the engine"
    driver = missing_driver()
    if driver or machine.device == "cpu":
        return driver
    devices, nodes = cuda_devices(), machine.topology.nodes
    hint = f"; or start the ranks on {nodes} machines with torchrun or SLURM" if nodes > 1 else ""
    return "" if devices >= ranks else f"needs {ranks} CUDA devices, this machine has {devices}{hint}"


def missing_engine() -> tuple[str, ...]:
    """List the distributions that ranks need and that cannot be imported here."""
    return tuple(name for module, name in ENGINE.items() if importlib.util.find_spec(module) is None)


@cache
def cuda_devices() -> int:
    """CUDA devices that torch can use here, counted without loading torch into this process."""
    if not Path("/dev/nvidiactl").exists():
        return 0
    with temporary_folder() as folder:
        return call_in_child(_count, (), timeout_s=_COUNT_S, phase="start", log=folder / "log")


def _count() -> int:
    import torch  # noqa: PLC0415 - slow, and only the child needs it

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
