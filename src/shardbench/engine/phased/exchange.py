"""What the ranks of a phased training exchange, and how many bytes of it leave a rank."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist

ROWS_SPLITS = "rows_splits"
"""How many rows each rank touched."""
SYNCHRONISE = "synchronise"
"""The part of the copies of hot rows that other ranks get."""
HOST_RANK = 0
"""The rank beside the master tables: the first of its node."""


class Wire:
    """Collectives over the default process group, or none where a process trains alone.

    ``sent`` holds bytes that this rank sent to others, by the collectives' names, plus
    ``ROWS_SPLITS`` and ``SYNCHRONISE``. ``copied`` holds all bytes of copies of hot rows at this
    rank: ``to_device`` into its replica, ``to_host`` out of it.
    """

    def __init__(self) -> None:
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.sent: dict[str, float] = defaultdict(float)
        self.copied: dict[str, float] = defaultdict(float)

    @property
    def is_host(self) -> bool:
        """Tell whether this rank is the one beside the master tables."""
        return self.rank == HOST_RANK

    def exchange(self, name: str, sent: torch.Tensor, to: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """All-to-all of rows of ``sent``: ``to[r]`` of them go to rank r, ``received[r]`` come from it."""
        if self.world == 1:
            return sent
        row_bytes = sent.element_size() * (sent[0].numel() if len(sent) else 0)
        self.sent[name] += row_bytes * (sum(to) - to[self.rank])
        into = sent.new_empty((sum(received), *sent.shape[1:]))
        dist.all_to_all_single(into, sent.contiguous(), list(received), list(to))
        return into

    def to_host(self, name: str, sent: torch.Tensor, received: Sequence[int]) -> torch.Tensor:
        """All of ``sent`` to the host's rank, which gets ``received[r]`` rows of rank r; others get none."""
        to = [len(sent) if rank == HOST_RANK else 0 for rank in range(self.world)]
        return self.exchange(name, sent, to, received if self.is_host else [0] * self.world)

    def from_host(self, name: str, sent: torch.Tensor, to: Sequence[int]) -> torch.Tensor:
        """The host's rank sends ``to[r]`` rows to rank r; what others pass as ``sent`` is not looked at."""
        rows = sent if self.is_host else sent[:0]
        came = [to[self.rank] if rank == HOST_RANK else 0 for rank in range(self.world)]
        return self.exchange(name, rows, to if self.is_host else [0] * self.world, came)

    def gather(self, name: str, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The rows of all ranks, ``sizes[r]`` of rank r, in rank order."""
        if self.world == 1:
            return rows
        everyone = rows.repeat((self.world,) + (1,) * (rows.dim() - 1))
        return self.exchange(name, everyone, [len(rows)] * self.world, sizes)

    def sizes(self, name: str, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Some whole numbers of every rank, [world][numbers]."""
        mine = torch.tensor([list(own)], dtype=torch.int64, device=device)
        found: list[list[int]] = self.gather(name, mine, [1] * self.world).tolist()
        return found

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """All-reduce by sum, in place."""
        if self.world > 1:
            self.sent[name] += 2.0 * tensor.numel() * tensor.element_size() * (self.world - 1) / self.world
            dist.all_reduce(tensor)

    def broadcast(self, name: str, tensor: torch.Tensor) -> None:
        """The host's rank's tensor to all, in place."""
        if self.world > 1:
            self.sent[name] += tensor.numel() * tensor.element_size() * (self.world - 1) * self.is_host
            dist.broadcast(tensor, HOST_RANK)
