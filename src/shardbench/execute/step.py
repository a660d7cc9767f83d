"""One training step on one rank: TorchRec's sharded tables, the dense model, and stamps between them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shardbench.errors import Unsupported
from shardbench.execute.clock import Clock
from shardbench.execute.lower import Lowered
from shardbench.execute.model import DenseModel, assembler
from shardbench.execute.sent import SentBytes
from shardbench.table import DenseShape, Optimizer

_OPTIMIZERS: dict[Optimizer, Any] = {
    Optimizer.SGD: torch.optim.SGD,
    Optimizer.ROWWISE_ADAGRAD: RowWiseAdagrad,
    Optimizer.ADAM: torch.optim.Adam,
}


@dataclass(frozen=True, kw_only=True)
class LocalBatch:
    """A rank's share of a batch: dense features [b, features], lookups, labels [b]."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    labels: torch.Tensor


@dataclass(kw_only=True)
class Stamps:
    """Stamps of one step, read after the clock settled."""

    marks: list[Any] = field(default_factory=list)
    vectors_ready: list[Any] = field(default_factory=list)
    """When the gradient of the assembled vectors arrived: the dense backward pass is over."""
    lookups: list[tuple[Any, Any]] = field(default_factory=list)
    """Start and end of each embedding backward kernel."""

    def read(self, clock: Clock) -> dict[str, float]:
        """Milliseconds by phase, plus ``step``, ``forward`` and ``backward`` (embedding kernels)."""
        start, after_input, after_lookup, after_output, after_loss, after_backward, end = self.marks
        lookups = sum(clock.ms(a, b) for a, b in self.lookups)
        dense_done = self.vectors_ready[-1] if self.vectors_ready else after_loss
        return {
            "input": clock.ms(start, after_input),
            "lookup": clock.ms(after_input, after_lookup),
            "output": clock.ms(after_lookup, after_output),
            "dense": clock.ms(after_output, dense_done),
            "output_backward": max(0.0, clock.ms(dense_done, after_backward) - lookups),
            "lookup_backward": lookups,
            "update": clock.ms(after_backward, end),
            "step": clock.ms(start, end),
        }


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The model around the tables and how it learns."""

    dense: DenseShape
    optimizer: Optimizer
    """Of the tables; the dense model uses SGD."""
    learning_rate: float
    dense_seed: int


class TrainingStep:
    """Sharded tables and dense model on this rank; call it with a local batch.

    Phases are TorchRec's own: ``input_dist``, ``compute``, ``output_dist``, then the dense
    model, backward (with the fused optimiser) and the optimisers of dense and replicated weights.
    """

    def __init__(self, lowered: Lowered, settings: StepSettings, device: torch.device, clock: Clock) -> None:
        self.lowered = lowered
        self.clock = clock
        self.tables = _shard(lowered, settings, device)
        torch.manual_seed(settings.dense_seed)
        model = DenseModel(settings.dense, lowered.tables).to(device)
        # A group of its own tells dense gradients from those of replicated rows.
        self.dense_group = dist.new_group()
        ids = [device.index] if device.type == "cuda" else None
        self.dense = DistributedDataParallel(
            model, device_ids=ids, process_group=self.dense_group, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.loss = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=settings.learning_rate)]
        replicated = _replicated_parameters(lowered, self.tables)
        if replicated:
            self.optimizers.append(_OPTIMIZERS[settings.optimizer](replicated, lr=settings.learning_rate))
        self._assemble = assembler(lowered)
        self.bytes: SentBytes | None = None

    def __call__(self, batch: LocalBatch) -> tuple[torch.Tensor, Stamps]:
        """Train on one batch; returns the logits [b] (detached) and the stamps."""
        now, stamps = self.clock.now, Stamps()
        stamps.marks.append(now())
        self._phase("input")
        context = self.tables.create_context()
        lookups = self.tables.input_dist(context, batch.sparse).wait().wait()
        stamps.marks.append(now())
        pooled = self.tables.compute(context, lookups)
        stamps.marks.append(now())
        self._phase("output")
        self._watch_lookups(pooled, stamps)
        vectors = self.tables.output_dist(context, pooled).wait().to_dict()
        stamps.marks.append(now())
        assembled = self._assemble(vectors)
        self._watch_vectors(assembled, stamps)
        logits = self.dense(batch.dense, assembled)
        loss = self.loss(logits, batch.labels)
        stamps.marks.append(now())
        self._phase("backward")
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        stamps.marks.append(now())
        for optimizer in self.optimizers:
            optimizer.step()
        stamps.marks.append(now())
        return logits.detach(), stamps

    def _phase(self, name: str) -> None:
        if self.bytes is not None:
            self.bytes.phase = name

    def _watch_vectors(self, vectors: list[torch.Tensor], stamps: Stamps) -> None:
        stamp = self.clock.now
        # The first table's gradient stands for all: they leave one stack or cat together.
        vectors[0].register_hook(lambda _: stamps.vectors_ready.append(stamp()))

    def _watch_lookups(self, pooled: list[torch.Tensor], stamps: Stamps) -> None:
        for node in _kernel_nodes(pooled):
            _time_node(node, self.clock, stamps)


def _time_node(node: Any, clock: Clock, stamps: Stamps) -> None:
    started: list[Any] = []
    node.register_prehook(lambda _: started.append(clock.now()))
    node.register_hook(lambda *_: stamps.lookups.append((started[-1], clock.now())))


def _kernel_nodes(pooled: list[torch.Tensor]) -> list[Any]:
    """Autograd nodes between the pooled vectors and the weights: the embedding kernels."""
    found: dict[Any, None] = {}
    pending = [tensor.grad_fn for tensor in pooled if tensor.grad_fn is not None]
    while pending:
        node = pending.pop()
        if node in found or type(node).__name__ == "AccumulateGrad":
            continue
        found[node] = None
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
    return list(found)


def _shard(lowered: Lowered, settings: StepSettings, device: torch.device) -> ShardedEmbeddingBagCollection:
    module = lowered.module()
    replicated = {t.name for t in lowered.logical if t.is_replicated}
    fused = [p for name, p in module.named_parameters() if name.split(".")[1] not in replicated]
    if fused:
        apply_optimizer_in_backward(_OPTIMIZERS[settings.optimizer], fused, {"lr": settings.learning_rate})
    plan = lowered.sharding_plan(module, device.type)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    return EmbeddingBagCollectionSharder().shard(module, plan, env, device)


def _replicated_parameters(lowered: Lowered, tables: ShardedEmbeddingBagCollection) -> list[torch.nn.Parameter]:
    replicated = {t.name for t in lowered.logical if t.is_replicated}
    return [p for name, p in tables.named_parameters() if name.split(".")[1] in replicated]


def local_shards(lowered: Lowered, tables: ShardedEmbeddingBagCollection) -> dict[str, list[tuple[int, torch.Tensor]]]:
    """This rank's weights: logical table name -> [(first row, tensor [rows, columns])]."""
    shards: dict[str, list[tuple[int, torch.Tensor]]] = {t.name: [] for t in lowered.logical}
    for key, value in tables.state_dict().items():
        name = key.split(".")[1]
        if name not in shards:
            raise Unsupported(f"TorchRec returned weights '{key}' that no segment explains")
        if hasattr(value, "local_shards"):
            shards[name] = [(s.metadata.shard_offsets[0], s.tensor) for s in value.local_shards()]
        else:
            shards[name] = [(0, value)]
    return shards


def set_weights(lowered: Lowered, tables: ShardedEmbeddingBagCollection, full: Callable[[int], torch.Tensor]) -> None:
    """Write whole-table weights (``full(i)`` [rows, dim]) into this rank's shards."""
    logical = {t.name: t for t in lowered.logical}
    with torch.no_grad():
        for name, shards in local_shards(lowered, tables).items():
            for first, tensor in shards:
                table = logical[name]
                tensor.copy_(table.weights(full(table.table))[first : first + tensor.shape[0]])
