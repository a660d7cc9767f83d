"""One training step on one rank: sharded tables, the dense model, and stamps between them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torchrec.optim import RowWiseAdagrad
from torchrec.streamable import Pipelineable

from shardbench.base.errors import Unsupported
from shardbench.cost.phases import MEASURED_PHASES, StepPhase
from shardbench.engine.blocks import Assembler
from shardbench.engine.clock import Clock
from shardbench.engine.dlrm import DenseModel, History
from shardbench.engine.lower import LocalLookups, Lowered, Reach, Slot
from shardbench.engine.modules import Groups, Shards, TableModule, data_parallel_over, make_modules
from shardbench.engine.sent_bytes import SentBytes, StepPart
from shardbench.model.table import DenseShape, Optimizer, Pooling, Table

_OPTIMIZERS: dict[Optimizer, Any] = {
    Optimizer.SGD: torch.optim.SGD,
    Optimizer.ROWWISE_ADAGRAD: RowWiseAdagrad,
    Optimizer.ADAM: torch.optim.Adam,
}


@dataclass(frozen=True, kw_only=True)
class LocalBatch(Pipelineable):  # type: ignore[misc]
    """A rank's share of a batch: dense features [b, features], lookups, labels [b]."""

    dense: torch.Tensor
    sparse: LocalLookups
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "LocalBatch":
        """Return the batch on another device, but for what hosts look up; itself where it is there already."""
        if self.dense.device == device:
            return self
        dense, labels = (one.to(device, non_blocking=non_blocking) for one in (self.dense, self.labels))
        return LocalBatch(dense=dense, sparse=self.sparse.to(device), labels=labels)

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that work on a stream uses the batch."""
        for one in (self.dense, self.labels, *self.sparse.on_device()):
            one.record_stream(stream)


_LAPS = (
    StepPhase.INPUT, StepPhase.LOOKUP, StepPhase.OUTPUT, StepPhase.DENSE, StepPhase.OUTPUT_BACKWARD, StepPhase.UPDATE,
)  # fmt: skip


@dataclass(kw_only=True)
class Stamps:
    """Stamps of one step, read after the clock settled: ``laps[i]`` is what went on between marks i and i + 1."""

    marks: list[Any] = field(default_factory=list)
    laps: list[StepPhase] = field(default_factory=lambda: list(_LAPS))
    vectors_ready: list[Any] = field(default_factory=list)
    """When gradients of the assembled vectors arrived; at the first one the dense backward pass is over."""
    lookups: list[tuple[Any, Any]] = field(default_factory=list)
    """Start and end of each embedding backward kernel."""
    own_clock: Clock | None = None
    """The clock of CPUs, whose kernels run in several threads, whatever the other ranks' is; None for theirs."""

    def read(self, clock: Clock) -> tuple[dict[str, float], dict[str, float]]:
        """Milliseconds by phase, and of the whole ``step``, and the same in CPU time; that is empty on devices.

        DDP all-reduces gradients while the backward pass goes on: what of it is not hidden is in
        ``output_backward``, with the exchange of the vectors' gradients.
        Kernels run in the thread that calls them (ranks have one OpenMP thread, and autograd works in
        the thread that called ``backward``), so their CPU time is that thread's: what gloo's threads
        all-reduce meanwhile is not theirs. All other phases have the time of all threads.
        """
        clock = self.own_clock or clock
        wall_ms = self.phases(clock.ms, clock.ms)
        if clock.process_ms(self.marks[0], self.marks[-1]) is None:
            return wall_ms, {}
        return wall_ms, self.phases(clock.process_ms, clock.process_ms if self.own_clock else clock.thread_ms)

    def phases(self, ms: Callable[[Any, Any], Any], kernel_ms: Callable[[Any, Any], Any]) -> dict[str, float]:
        """Milliseconds by phase: kernels' by ``kernel_ms(start, stop)``, all others' by ``ms``."""
        times_ms: dict[str, float] = dict.fromkeys(MEASURED_PHASES, 0.0)
        for phase, (start, stop) in zip(self.laps, pairwise(self.marks), strict=True):
            if phase is StepPhase.OUTPUT_BACKWARD:
                lookups = sum(kernel_ms(a, b) for a, b in self.lookups)
                dense_done = self.vectors_ready[0] if self.vectors_ready else start
                times_ms[StepPhase.DENSE] += ms(start, dense_done)
                times_ms[StepPhase.LOOKUP_BACKWARD] += lookups
                lap_ms = max(0.0, ms(dense_done, stop) - lookups)
            else:
                lap_ms = (kernel_ms if phase is StepPhase.LOOKUP else ms)(start, stop)
            times_ms[phase] = times_ms.get(phase, 0.0) + lap_ms
        return {**times_ms, "step": ms(self.marks[0], self.marks[-1])}


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The model around the tables and how it learns."""

    dense: DenseShape
    optimizer: Optimizer
    """The optimiser of the tables; the dense model uses SGD."""
    learning_rate: float
    dense_seed: int


class DenseSide:
    """The dense model, data-parallel over ``group``, and its optimiser."""

    def __init__(
        self, tables: tuple[Table, ...], settings: StepSettings, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        torch.manual_seed(settings.dense_seed)
        model = DenseModel(settings.dense, tables).to(device)
        self.group = group
        self.model = data_parallel_over(group, model, device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)


class TrainingStep:
    """Sharded tables and dense model on this rank; call it with a local batch.

    Phases are TorchRec's own: ``input_dist``, ``compute``, ``output_dist``, then the dense
    model, backward (with the fused optimiser), and what is left to step: the dense model,
    replicated rows, and the copies that sharding groups average. ``groups`` and ``dense`` are made where
    they are not shared with another step.
    """

    def __init__(
        self,
        lowered: Lowered,
        settings: StepSettings,
        device: torch.device,
        clock: Clock,
        *,
        groups: Groups | None = None,
        dense: DenseSide | None = None,
    ) -> None:
        self.lowered, self.settings, self.device = lowered, settings, device
        self.clock = clock
        self.groups = groups or Groups(lowered.topology, lowered.groups)
        kind = _OPTIMIZERS[settings.optimizer]
        self.modules = self._make_modules((kind, {"lr": settings.learning_rate}))
        side = dense or DenseSide(lowered.tables, settings, device, self.groups.dense)
        self.dense, self.dense_group = side.model, side.group
        self.loss = torch.nn.BCEWithLogitsLoss()
        self.optimizers: list[torch.optim.Optimizer] = [side.optimizer]
        replicated = [p for module in self.modules for p in module.replicated_parameters()]
        if replicated:
            self.optimizers.append(kind(replicated, lr=settings.learning_rate))
        copies = [m for m in self.modules if m.key.scope is Reach.GROUP]
        self._copies = [tensor for m in copies for shards in m.shards().values() for _, tensor in shards]
        layouts = [layout for module in self.modules for layout in module.layouts]
        placed = {t.table for t in lowered.logical}
        pooled = [slot for slot in lowered.slots if lowered.tables[slot.table].pooling is Pooling.SUM]
        self._pooled = [slot for slot in pooled if slot.table in placed]
        # Those that a hot mini-batch asks nothing of.
        self._silent = [slot for slot in pooled if slot.table not in placed]
        self._assemble = Assembler(self._pooled, layouts)
        self.bytes: SentBytes | None = None
        self._steps = 0

    def __call__(self, batch: LocalBatch) -> tuple[torch.Tensor, Stamps]:
        """Train on one batch; returns the logits [b] (detached) and the stamps."""
        now, stamps = self.clock.now, Stamps()
        stamps.marks.append(now())
        self.enter(StepPart.INPUT)
        received = [module.input(batch.sparse.jagged[module.key]) for module in self.modules]
        stamps.marks.append(now())
        looked_up = [module.compute(lookups) for module, lookups in zip(self.modules, received)]
        stamps.marks.append(now())
        self.enter(StepPart.OUTPUT)
        time_kernels([vector for vectors in looked_up for vector in vectors], self.clock, stamps)
        # Each is let go when it was sent, as in TorchRec's own forward pass.
        outputs = [m.output(lookups, looked_up.pop(0)) for m, lookups in zip(self.modules, received)]
        stamps.marks.append(now())
        assembled = self._assembled(outputs, batch)
        self._watch_vectors(assembled, stamps)
        logits = self.dense(batch.dense, assembled)
        loss = self.loss(logits, batch.labels)
        # What of them the backward pass needs, it has.
        del outputs, assembled
        stamps.marks.append(now())
        self.enter(StepPart.BACKWARD)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._return_gradients()
        stamps.marks.append(now())
        for optimizer in self.optimizers:
            optimizer.step()
        self._update_rows()
        stamps.marks.append(now())
        return logits.detach(), stamps

    def prepare(self, batch: LocalBatch) -> None:
        """Do what comes before a step on a batch and is no part of it: nothing here."""

    def _make_modules(self, optimizer: Any) -> list[TableModule]:
        return make_modules(self.lowered, self.groups, optimizer, self.device)

    def _return_gradients(self) -> None:
        """Exchange what the backward pass itself did not."""

    def enter(self, part: StepPart) -> None:
        """Tell the byte counter, if one is on, which part of the step begins."""
        if self.bytes is not None:
            self.bytes.part = part

    def _assembled(self, outputs: list[Any], batch: LocalBatch) -> list[torch.Tensor | History]:
        """Return what each slot gives the dense model: [b, dim], or its history where unpooled."""
        pooled = [tensor for module, out in zip(self.modules, outputs) if module.key.pooled for tensor in out]
        whole: dict[Slot, torch.Tensor | History] = dict(zip(self._pooled, self._assemble(pooled)))
        for slot in self._silent:
            whole[slot] = batch.dense.new_zeros(len(batch.labels), self.lowered.tables[slot.table].dim)
        rows = {name: t for m, out in zip(self.modules, outputs) if not m.key.pooled for name, t in out.items()}
        lookups = batch.sparse
        for slot, lengths in lookups.lengths.items():
            whole[slot] = History(self._sequence(slot, rows, lookups), lengths)
        return [whole[slot] for slot in self.lowered.slots]

    def _sequence(self, slot: Slot, rows: dict[str, torch.Tensor], lookups: LocalLookups) -> torch.Tensor:
        """Vectors [lookups, dim] of a feature of an unpooled table, its segments' rows back in place."""
        table, feature = slot
        parts = [t for t in self.lowered.logical if t.table == table]
        if not parts:
            return lookups.lengths[slot].new_zeros((0, self.lowered.tables[table].dim), dtype=torch.float32)
        edges = sorted({(t.segment.column_start, t.segment.column_stop) for t in parts})
        if any(a[1] != b[0] for a, b in zip(edges, edges[1:])):
            raise Unsupported(f"table '{self.lowered.tables[table].name}': unpooled column ranges must tile evenly")
        columns = []
        for low, high in edges:
            pieces = [t for t in parts if (t.segment.column_start, t.segment.column_stop) == (low, high)]
            keys = [t.keys[feature] for t in pieces]
            if lookups.positions[keys[0]] is None:
                columns.append(rows[keys[0]])
                continue
            placed = torch.cat([rows[key] for key in keys])
            at = torch.cat([position for key in keys if (position := lookups.positions[key]) is not None])
            columns.append(torch.empty_like(placed).index_copy(0, at, placed))
        return torch.cat(columns, dim=1)

    def _update_rows(self) -> None:
        """Step the rows that no optimiser steps.

        Sharding groups' copies after their own SGD step, at the end of a period: that of one step is the step of the
        mean gradient.
        """
        self._steps += 1
        if not self._copies or self._steps % self.lowered.sync_every:
            return
        # One collective for all: each would wait for its own latency.
        together = torch.cat([copy.view(-1) for copy in self._copies])
        dist.all_reduce(together, group=self.groups.replicas)
        together.div_(self.groups.replicas.size())
        for copy, mean in zip(self._copies, together.split([copy.numel() for copy in self._copies])):
            copy.copy_(mean.view_as(copy))

    def _watch_vectors(self, assembled: list[torch.Tensor | History], stamps: Stamps) -> None:
        stamp = self.clock.now
        histories = [one.vectors for one in assembled if isinstance(one, History)]
        pooled = [one for one in assembled if not isinstance(one, History)]
        # The first pooled table's gradient stands for all of them: they leave one stack or cat together.
        for vectors in (*pooled[:1], *histories):
            vectors.register_hook(lambda _: stamps.vectors_ready.append(stamp()))


def time_kernels(vectors: list[torch.Tensor], clock: Clock, stamps: Stamps) -> None:
    """Stamp the embedding kernels of the backward pass, when it comes to these vectors."""
    for node in _kernel_nodes(vectors):
        _time_node(node, clock, stamps)


def _time_node(node: Any, clock: Clock, stamps: Stamps) -> None:
    started: list[Any] = []
    node.register_prehook(lambda _: started.append(clock.now()))
    node.register_hook(lambda *_: stamps.lookups.append((started[-1], clock.now())))


def _kernel_nodes(pooled: list[torch.Tensor]) -> list[Any]:
    """Autograd nodes between the pooled vectors and the weights: the embedding kernels."""
    nodes: dict[Any, None] = {}
    pending = [tensor.grad_fn for tensor in pooled if tensor.grad_fn is not None]
    while pending:
        node = pending.pop()
        if node in nodes or type(node).__name__ == "AccumulateGrad":
            continue
        nodes[node] = None
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
    return list(nodes)


def local_shards(modules: list[TableModule]) -> Shards:
    """Return this rank's weights: logical table name -> [(first row, tensor [rows, columns])]."""
    return {name: shards for module in modules for name, shards in module.shards().items()}


def set_weights(step: TrainingStep, full: Callable[[int], torch.Tensor]) -> None:
    """Write whole-table weights (``full(i)`` [rows, dim]) into this rank's shards."""
    logical = {t.name: t for t in step.lowered.logical}
    with torch.no_grad():
        for name, shards in local_shards(step.modules).items():
            for first, tensor in shards:
                table = logical[name]
                tensor.copy_(table.weights(full(table.table))[first : first + tensor.shape[0]])
