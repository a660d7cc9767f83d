"""How a rank joins its process group, and on which device it is."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from shardbench.base.errors import BadInput, Unsupported
from shardbench.model.machine import Topology

_NO_INTERFACE = "ifa != nullptr"
"""What gloo says where it finds no interface, or none with an address."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Which collectives run between devices of a kind."""


def device_of(kind: str, rank: int, topology: Topology) -> torch.device:
    """Return the rank's device of a kind, ``cpu`` or ``cuda``; raises Unsupported where there are fewer than a node's.

    Ranks of a node follow each other, so that they never share a device; several nodes on one
    machine (emulated ones) get devices of their own where there are enough.
    """
    if kind == "cpu":
        return torch.device("cpu")
    needed, available = topology.devices_per_node, torch.cuda.device_count()
    if available < needed:
        raise Unsupported(f"the job needs {needed} CUDA devices, this machine has {available}")
    return torch.device("cuda", rank % available)


def join_group(kind: str, rank: int, topology: Topology, method: str, timeout_s: float) -> torch.device:
    """Join the ranks that meet by ``method`` (``file://`` or ``env://``); gives this rank's device, made current.

    ``timeout_s`` is how long it waits for its peers, then and in every collective. Raises BadInput where ranks of CPUs
    find no network interface.
    """
    device = device_of(kind, rank, topology)
    torch.set_num_threads(1)
    # TorchRec asks these which ranks are of a node.
    os.environ["LOCAL_WORLD_SIZE"] = str(topology.devices_per_node)
    os.environ["LOCAL_RANK"] = str(rank % topology.devices_per_node)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(BACKENDS[kind], method, timeout=timeout, rank=rank, world_size=topology.world_size)
    except RuntimeError as error:
        if _NO_INTERFACE not in str(error):
            raise
        name = os.environ.get("GLOO_SOCKET_IFNAME", "loopback")
        raise BadInput(
            f"no network interface {name} is up, over which ranks exchange: bring it up (ip link set lo up), or name "
            "another one by GLOO_SOCKET_IFNAME"
        ) from error
    return device
