"""Training in hot and cold phases, for real: how a plan with a batch schedule is run.

The master tables live in host memory beside the first rank. A cold mini-batch is looked up there:
its lookups travel to that rank, pooled vectors and their gradients travel back. A hot mini-batch
uses every rank's own replica of the hot rows; the gradients of touched rows are gathered, added up
in rank order and applied alike everywhere, so replicas stay equal to the bit. Where the kind
changes, hot rows and their optimiser state are copied between master and replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardbench.base.arrays import Floats32
from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.collectives import CollectiveName
from shardbench.engine.dlrm import DenseModel
from shardbench.engine.phased.exchange import ROWS_SPLITS, SYNCHRONISE, Wire
from shardbench.engine.phased.rowstore import FlatLookups, RowStore, coalesce, flat_lookups
from shardbench.model.plan import PhaseKind
from shardbench.model.table import DenseShape, Optimizer, Pooling, Table
from shardbench.workloads.trace import Bags, check_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalBatch:
    """A pure mini-batch of all ranks: bags of every table, dense float32 [batch, features], labels float32 [batch]."""

    kind: PhaseKind
    tables: tuple[Bags, ...]
    dense: Floats32
    labels: Floats32


@dataclass(frozen=True, kw_only=True)
class PhasedModel:
    """What is trained: tables of one width of which the first ``hot[i]`` rows are hot, and the dense model.

    Raises BadInput or Unsupported for what cannot be run.
    """

    tables: tuple[Table, ...]
    hot: tuple[int, ...]
    dense: DenseShape
    optimizer: Optimizer = Optimizer.SGD
    learning_rate: float = 0.01
    dense_seed: int = 0

    def __post_init__(self) -> None:
        if len({table.dim for table in self.tables}) != 1:
            raise Unsupported("phases run tables of one width")
        if any(table.features > 1 for table in self.tables):
            raise Unsupported("phases run tables of one feature, not shared ones")
        if any(table.pooling is not Pooling.SUM for table in self.tables):
            raise Unsupported("phases run summed bags, not sequences")
        if len(self.hot) != len(self.tables):
            raise BadInput(f"{len(self.tables)} tables need as many numbers of hot rows, got {len(self.hot)}")
        for table, hot in zip(self.tables, self.hot):
            if not 0 <= hot <= table.rows:
                raise BadInput(f"table '{table.name}' of {table.rows} rows cannot have {hot} hot ones")

    @property
    def dim(self) -> int:
        """Width of every table."""
        return self.tables[0].dim


class PhasedTrainer:
    """Call it with the mini-batches of all ranks, one after the other, the same on every rank.

    ``weights`` float32 [all rows, dim] are the tables' initial weights, one after the other; only
    the host's rank needs them (others pass None). They are trained in place. ``device`` is where
    replicas and dense model are; the master stays in CPU memory.
    """

    def __init__(
        self, model: PhasedModel, weights: torch.Tensor | None, wire: Wire, device: torch.device | None = None
    ) -> None:
        self.model, self.wire = model, wire
        self.device = device or torch.device("cpu")
        ends = np.cumsum([table.rows for table in model.tables])
        self._starts = [0, *ends[:-1].tolist()]
        hot_ends = np.cumsum(model.hot)
        self._hot_starts = [0, *hot_ends[:-1].tolist()]
        if wire.is_host and (weights is None or tuple(weights.shape) != (int(ends[-1]), model.dim)):
            raise BadInput(f"the host's rank needs weights of {ends[-1]} rows and {model.dim} columns")
        self.master = RowStore(weights, model.optimizer, model.learning_rate) if weights is not None else None
        replica = torch.zeros(int(hot_ends[-1]), model.dim, device=self.device)
        self.replica = RowStore(replica, model.optimizer, model.learning_rate)
        # Row of the master for every row of the replica: both are table after table.
        self._hot_rows = torch.from_numpy(
            np.concatenate([start + np.arange(hot) for start, hot in zip(self._starts, model.hot)]).astype(np.int64)
        )
        torch.manual_seed(model.dense_seed)
        self.dense = DenseModel(model.dense, model.tables).to(self.device)
        self._parameters = list(self.dense.parameters())
        self.kind = PhaseKind.COLD
        """Whose copy of the hot rows is current: the replicas' in a hot phase, else the master's."""
        self.switches = 0

    def __call__(self, batch: GlobalBatch) -> torch.Tensor:
        """Train on a mini-batch; gives the logits of this rank's samples, [local batch].

        Raises BadInput for an id beyond its table, a hot batch that asks for a cold row, and bags that
        are not one a label and table.
        """
        self.switch(batch.kind)
        local = self._local(batch)
        if batch.kind is PhaseKind.HOT:
            return self._hot(local, len(batch.labels))
        return self._cold(local, len(batch.labels))

    def switch(self, kind: PhaseKind) -> None:
        """Copy the hot rows and their optimiser state to where ``kind`` of mini-batches updates them."""
        if kind is self.kind:
            return
        self.kind = kind
        self.switches += 1
        if kind is PhaseKind.HOT:
            width = self.model.dim + (self.replica.moments is not None)
            rows = torch.empty(len(self._hot_rows), width, device=self.device)
            if self.master is not None:
                rows.copy_(self.master.select(self._hot_rows))
            self.wire.broadcast(SYNCHRONISE, rows)
            self.replica.copy(torch.arange(len(rows), device=self.device), rows)
            self.wire.copied["to_device"] += rows.numel() * rows.element_size()
        elif self.master is not None:
            taken = self.replica.select(torch.arange(len(self._hot_rows), device=self.device))
            self.master.copy(self._hot_rows, taken.cpu())
            self.wire.copied["to_host"] += taken.numel() * taken.element_size()

    def predict(self, batch: GlobalBatch) -> torch.Tensor:
        """Logits [batch] of a process that trains alone, without training.

        Raises Unsupported for ranks, BadInput as training does for a cold batch.
        """
        if self.wire.world > 1 or self.master is None:
            raise Unsupported("predictions are made by a process that trains alone")
        self._check(batch, self._rows)
        self.switch(PhaseKind.COLD)
        with torch.no_grad():
            pooled = self.master.pooled(flat_lookups(batch.tables, self._starts)).to(self.device)
            given = list(pooled.view(len(self.model.tables), -1, self.model.dim))
            logits: torch.Tensor = self.dense(torch.from_numpy(batch.dense).to(self.device), given)
        return logits

    def _check(self, batch: GlobalBatch, limits: Sequence[int]) -> None:
        """Raises BadInput for a batch that the tables, with ``limits`` rows each, cannot answer."""
        if len(batch.tables) != len(limits):
            raise BadInput(f"{batch.kind} batch has bags of {len(batch.tables)} tables, the model has {len(limits)}")
        for table, bags, limit in zip(self.model.tables, batch.tables, limits):
            what = f"{batch.kind} batch, table '{table.name}'"
            if bags.batch_size != len(batch.labels):
                raise BadInput(f"{what}: {bags.batch_size} bags for {len(batch.labels)} labels")
            check_rows(bags.values, limit, what)

    @property
    def _rows(self) -> list[int]:
        return [table.rows for table in self.model.tables]

    def _local(self, batch: GlobalBatch) -> GlobalBatch:
        self._check(batch, self.model.hot if batch.kind is PhaseKind.HOT else self._rows)
        start, stop = self._span(len(batch.labels), self.wire.rank)
        return GlobalBatch(
            kind=batch.kind,
            tables=tuple(bags.samples(start, stop) for bags in batch.tables),
            dense=batch.dense[start:stop],
            labels=batch.labels[start:stop],
        )

    def _span(self, samples: int, rank: int) -> tuple[int, int]:
        return rank * samples // self.wire.world, (rank + 1) * samples // self.wire.world

    def _cold(self, local: GlobalBatch, samples: int) -> torch.Tensor:
        own = flat_lookups(local.tables, self._starts)
        counts = self.wire.sizes(
            CollectiveName.INPUT_SPLITS, (len(own.lengths), len(own.rows), len(local.labels)), self.device
        )
        bags, lookups = [n for n, _, _ in counts], [n for _, n, _ in counts]
        asked = FlatLookups(
            lengths=self.wire.to_host(CollectiveName.INPUT_ALL_TO_ALL, own.lengths.to(self.device), bags).cpu(),
            rows=self.wire.to_host(CollectiveName.INPUT_ALL_TO_ALL, own.rows.to(self.device), lookups).cpu(),
        )
        # Whose bags follow one another on the host: rank by rank, each table by table.
        pooled = self.master.pooled(asked) if self.master is not None else torch.empty(0, self.model.dim)
        vectors = self.wire.from_host(CollectiveName.OUTPUT_ALL_TO_ALL, pooled.to(self.device), bags)
        logits, gradients = self._train_dense(local, vectors, samples)
        returned = self.wire.to_host(CollectiveName.BACKWARD_ALL_TO_ALL, gradients, bags).cpu()
        if self.master is not None:
            self.master.step(*coalesce(asked.rows, returned[asked.bag_of]))
        return logits

    def _hot(self, local: GlobalBatch, samples: int) -> torch.Tensor:
        own = flat_lookups(local.tables, self._hot_starts)
        own = FlatLookups(rows=own.rows.to(self.device), lengths=own.lengths.to(self.device))
        logits, gradients = self._train_dense(local, self.replica.pooled(own), samples)
        rows, summed = coalesce(own.rows, gradients[own.bag_of])
        sizes = [n for (n,) in self.wire.sizes(ROWS_SPLITS, (len(rows),), self.device)]
        all_rows = self.wire.gather(CollectiveName.ROWS_ALL_REDUCE, rows, sizes)
        self.replica.step(*coalesce(all_rows, self.wire.gather(CollectiveName.ROWS_ALL_REDUCE, summed, sizes)))
        return logits

    def _train_dense(
        self, local: GlobalBatch, vectors: torch.Tensor, samples: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward, backward and step of the dense model: logits, and gradients of the mean loss by ``vectors``."""
        vectors = vectors.requires_grad_()
        given = list(vectors.view(len(self.model.tables), -1, self.model.dim))
        logits = self.dense(torch.from_numpy(local.dense).to(self.device), given)
        labels = torch.from_numpy(local.labels).to(self.device)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / samples
        gradients = torch.autograd.grad(loss, [vectors, *self._parameters])
        flat = torch.cat([g.flatten() for g in gradients[1:]])
        self.wire.add(CollectiveName.DENSE_ALL_REDUCE, flat)
        with torch.no_grad():
            parts = torch.split(flat, [p.numel() for p in self._parameters])
            for parameter, part in zip(self._parameters, parts):
                parameter.sub_(part.view_as(parameter), alpha=self.model.learning_rate)
        return logits.detach(), gradients[0]
