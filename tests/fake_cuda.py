"""A rank of a CUDA job without a GPU: fake tensors on fake devices, and a process group that moves nothing.

What is built is TorchRec's own, down to FBGEMM's modules; no kernel runs. Use it in a process of its own: it changes
torch for good.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torchrec.distributed.batched_embedding_kernel as kernels
import torchrec.distributed.embedding
import torchrec.distributed.embeddingbag
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharded_tensor.utils import build_metadata_from_local_shards
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg
from torchrec.distributed.types import ShardingEnv

from shardbench.engine import modules, step
from shardbench.engine.dlrm import DenseModel

DDP: list["Replicas"] = []
"""Every one that was made."""


class Replicas(torch.nn.Module):
    """Stands for DistributedDataParallel, whose reducer wants real memory: keeps what it is given."""

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, process_group: Any = None, **_: Any) -> None:
        super().__init__()
        self.module, self.process_group = module, process_group
        # The engine gives numbers, TorchRec devices.
        self.device_ids = [torch.device("cuda", one) if isinstance(one, int) else one for one in device_ids]
        DDP.append(self)

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


class OnDevice(DenseModel):
    """Fake parameters cannot be moved: made where they are to be moved to."""

    def __init__(self, *args: Any) -> None:
        with torch.cuda.current_device():
            super().__init__(*args)

    def to(self, device: torch.device) -> "OnDevice":
        assert {p.device for p in self.parameters()} == {device}
        return self


class LocalShards:
    """Stands for a ShardedTensor that asks all ranks for their shards: torch's check of this rank's, and no more."""

    def __init__(self, shards: list[Any], *size: Any, process_group: Any = None) -> None:
        if shards:
            build_metadata_from_local_shards(shards, tuple(size[0]), dist.get_rank(), process_group)
        self._shards = shards

    def local_shards(self) -> list[Any]:
        return self._shards


def _slice(
    data: torch.Tensor, start_offset: int, end_offset: int, num_embeddings: int, embedding_dim: int
) -> torch.nn.Parameter:
    """Stands for TorchRec's slice, which is a subclass of tensors, as a fake one is already."""
    return torch.nn.Parameter(data.detach()[start_offset:end_offset].view(num_embeddings, embedding_dim))


def _let_slices_pass() -> None:
    """A CPU build of torch has no guard of CUDA devices, which plain slicing asks for: the CPU's does nothing."""
    if torch.backends.cuda.is_built():
        return  # FakeTensorMode sees to it
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[0]  # in the order of c10::DeviceType: CPU, CUDA


@contextmanager
def fake_devices(count: int, rank: int, world: int, backends: list[str]) -> Iterator[FakeTensorMode]:
    """``count`` fake CUDA devices here, and a group that any backend's name gets; names go to ``backends``."""
    _let_slices_pass()
    current = [torch.device("cuda", 0)]
    FakeTensorMode.avoid_device_init = property(lambda _: True)
    fake_tensor.init_gpu_context = lambda _: None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: count
    torch.cuda.get_device_capability = lambda _: (9, 0)
    torch.cuda.set_device = lambda device: current.__setitem__(0, device)
    torch.cuda.current_device = lambda: current[0]
    # FBGEMM makes a cache no larger than what is free; flushing it is a kernel.
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(total_memory=1 << 40, warp_size=32)
    torch.cuda.memory_reserved = lambda _: 0
    SplitTableBatchedEmbeddingBagsCodegen.flush = lambda self: None
    # Named otherwise than torch's own fake, for which TorchRec leaves the weights' names out.
    dist.Backend.register_backend("standin", _create_fake_pg, extended_api=True, devices=["cpu", "cuda"])
    initialise = dist.init_process_group

    def init_process_group(backend: str, method: str, *, timeout: Any, rank: int, world_size: int) -> None:
        backends.append(backend)
        initialise("standin", store=FakeStore(), timeout=timeout, rank=rank, world_size=world_size)

    modules.dist.init_process_group = init_process_group
    new_group = dist.new_group

    def any_group(ranks: list[int] | None = None, *, backend: str | None = None) -> Any:
        # Groups of CPUs beside those of devices (gloo beside nccl) get the same stand-in.
        return new_group(ranks)

    modules.dist.new_group = any_group
    for module in (modules, torchrec.distributed.embeddingbag, torchrec.distributed.embedding):
        module.DistributedDataParallel = Replicas
    step.DenseModel = OnDevice
    kernels.TableBatchedEmbeddingSlice = _slice
    ShardedTensor._init_from_local_shards = LocalShards
    FakeTensor.__bool__ = lambda self: True  # FBGEMM asserts offsets whose values a fake one has not
    make_environment = ShardingEnv.__init__

    def really(self: ShardingEnv, *args: Any, **settings: Any) -> None:
        with unset_fake_temporarily():
            make_environment(self, *args, **settings)

    ShardingEnv.__init__ = really
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode
