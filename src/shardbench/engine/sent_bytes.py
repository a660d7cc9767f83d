"""Algorithmic bytes of every collective a rank takes part in, seen by a dispatch mode.

It sees the backward pass and DDP's all-reduce, and slows a step down, so bytes are recorded
in steps of their own. The conventions are those of ``shardbench.cost.collectives``.
"""

from collections import defaultdict
from enum import StrEnum
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from shardbench.base.errors import Unsupported
from shardbench.cost.accounting import SPLIT_BYTES
from shardbench.cost.collectives import Calls, CollectiveName, group_calls
from shardbench.model.machine import Topology


class StepPart(StrEnum):
    """The parts of a step between which its exchanges are told apart."""

    INPUT = "input"
    OUTPUT = "output"
    BACKWARD = "backward"
    ROWS_SPLITS = "rows_splits"
    """How many hot rows each rank touched."""
    ROWS = "rows"
    """The gradients of these."""
    SYNCHRONISE = "synchronise"
    """Copies of hot rows, which are counted where they are made (``phased.step``)."""


class SentBytes(TorchDispatchMode):
    """``totals[name] = [bytes inside the node, bytes across nodes]`` that this rank sent.

    ``calls[name]`` is how many collectives that was, by who took part. ``part`` is set by the step;
    ``dense_group`` is the name of the process group that all-reduces the dense model.
    """

    def __init__(self, topology: Topology, dense_group: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part = StepPart.INPUT
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.calls: dict[str, Calls] = defaultdict(Calls)
        self._topology = topology
        self._dense_group = dense_group

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a collective, then run it."""
        if func.namespace == "c10d":
            self._record(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))

    def _record(self, name: str, args: Any) -> None:
        if name == "alltoall_base_":
            self._all_to_all(args)
        elif name == "_reduce_scatter_base_":
            self._reduction(self._exchange("reduce_scatter"), args[1], args[2], 1.0)
        elif name == "_allgather_base_":
            self._reduction(self._exchange("all_gather"), args[0], args[2], 1.0)
        elif name == "allreduce_":
            dense = dist.ProcessGroup.unbox(args[1]).group_name == self._dense_group
            for tensor in args[0]:
                called = CollectiveName.DENSE_ALL_REDUCE if dense else CollectiveName.ROWS_ALL_REDUCE
                self._reduction(called, tensor, args[1], 2.0)
        elif name == "broadcast_" and self.part is StepPart.SYNCHRONISE:
            return
        elif name not in ("barrier", "monitored_barrier_"):
            raise Unsupported(f"the executor used collective '{name}', which the counter does not know")

    def _exchange(self, kind: str) -> CollectiveName:
        """Return the name of a kind of exchange in this part of the step."""
        gathered = {StepPart.ROWS_SPLITS: CollectiveName.ROWS_SPLITS, StepPart.ROWS: CollectiveName.ROWS_ALL_REDUCE}
        if kind == "all_to_all" and self.part in gathered:
            return gathered[self.part]
        try:
            return CollectiveName(f"{self.part}_{kind}")
        except ValueError as error:
            raise Unsupported(f"the executor's {self.part} used a {kind}, which the counter does not know") from error

    def _add(self, name: CollectiveName, intra: float, inter: float) -> None:
        self.totals[name][0] += intra
        self.totals[name][1] += inter

    def _called(self, name: CollectiveName, ranks: list[int]) -> None:
        if len(ranks) > 1:
            self.calls[name] = self.calls[name].plus(group_calls(np.array([ranks]), self._topology))

    def _all_to_all(self, args: Any) -> None:
        _, sent, boxed, _, splits = args[:5]
        group = dist.ProcessGroup.unbox(boxed)
        ranks = dist.get_process_group_ranks(group)
        row_bytes = sent.element_size() * (sent.numel() // max(sent.shape[0], 1))
        even = not splits
        shares = [sent.shape[0] // len(ranks)] * len(ranks) if even else list(splits)
        me = dist.get_rank()
        # A pipeline sends those of all shardings of a group at once.
        sizes = sent.numel() * sent.element_size() % (SPLIT_BYTES * len(ranks)) == 0
        control = self.part is StepPart.INPUT and even and sizes
        name = CollectiveName.INPUT_SPLITS if control else self._exchange("all_to_all")
        self._called(name, ranks)
        for rank, share in zip(ranks, shares):
            same = self._topology.node_of(rank) == self._topology.node_of(me)
            size = float(share * row_bytes) if rank != me else 0.0
            self._add(name, size if same else 0.0, 0.0 if same else size)

    def _reduction(self, name: CollectiveName, payload: torch.Tensor, boxed: Any, times: float) -> None:
        ranks = dist.get_process_group_ranks(dist.ProcessGroup.unbox(boxed))
        topology = self._topology
        beside = sum(topology.node_of(rank) == topology.node_of(dist.get_rank()) for rank in ranks)
        size = times * payload.numel() * payload.element_size()
        self._called(name, ranks)
        self._add(name, size * (1.0 - 1.0 / beside), size * (1.0 / beside - 1.0 / len(ranks)))
