"""Training in hot and cold phases, by one process: the order of mini-batches that a plan's batch schedule has.

A cold mini-batch is looked up in the master tables, a hot one in a replica of the hot rows. Where the kind changes, hot
rows and their optimiser state are copied between both.
"""

from dataclasses import dataclass

import numpy as np
import torch

from shardbench.base.arrays import Floats32
from shardbench.base.errors import BadInput
from shardbench.engine.dlrm import DenseModel
from shardbench.engine.phased.rowstore import RowStore, coalesce, flat_lookups
from shardbench.model.plan import PhaseKind
from shardbench.model.table import DenseShape, Optimizer, Table
from shardbench.workloads.trace import Bags, check_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalBatch:
    """A pure mini-batch: bags of every table, dense float32 [batch, features], labels float32 [batch]."""

    kind: PhaseKind
    tables: tuple[Bags, ...]
    dense: Floats32
    labels: Floats32


@dataclass(frozen=True, kw_only=True)
class PhasedModel:
    """What is trained: tables of one width and one feature, summed, and the dense model; ``hot[i]`` rows are hot."""

    tables: tuple[Table, ...]
    hot: tuple[int, ...]
    dense: DenseShape
    optimizer: Optimizer = Optimizer.SGD
    learning_rate: float = 0.01
    dense_seed: int = 0

    @property
    def dim(self) -> int:
        """Width of every table."""
        return self.tables[0].dim


class PhasedTrainer:
    """Call it with the mini-batches, one after the other.

    ``weights`` float32 [all rows, dim] are the tables' initial weights, one after the other; they are trained in place.
    """

    def __init__(self, model: PhasedModel, weights: torch.Tensor) -> None:
        self.model = model
        ends = np.cumsum([table.rows for table in model.tables])
        self._starts = [0, *ends[:-1].tolist()]
        hot_ends = np.cumsum(model.hot)
        self._hot_starts = [0, *hot_ends[:-1].tolist()]
        if tuple(weights.shape) != (int(ends[-1]), model.dim):
            raise BadInput(f"training needs weights of {ends[-1]} rows and {model.dim} columns")
        self.master = RowStore(weights, model.optimizer, model.learning_rate)
        self.replica = RowStore(torch.zeros(int(hot_ends[-1]), model.dim), model.optimizer, model.learning_rate)
        # Row of the master for every row of the replica: both are table after table.
        self._hot_rows = torch.from_numpy(
            np.concatenate([start + np.arange(hot) for start, hot in zip(self._starts, model.hot)]).astype(np.int64)
        )
        torch.manual_seed(model.dense_seed)
        self.dense = DenseModel(model.dense, model.tables)
        self._parameters = list(self.dense.parameters())
        self.kind = PhaseKind.COLD
        """Whose copy of the hot rows is current: the replica's in a hot phase, else the master's."""
        self.switches = 0

    def __call__(self, batch: GlobalBatch) -> torch.Tensor:
        """Train on a mini-batch; gives the logits of its samples, [batch].

        Raises BadInput for an id beyond its table, a hot batch that asks for a cold row, and bags that
        are not one a label and table.
        """
        self.switch(batch.kind)
        self._check(batch)
        hot = batch.kind is PhaseKind.HOT
        store, starts = (self.replica, self._hot_starts) if hot else (self.master, self._starts)
        lookups = flat_lookups(batch.tables, starts)
        vectors = store.pooled(lookups).requires_grad_()
        logits = self._logits(batch, vectors)
        labels = torch.from_numpy(batch.labels)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(labels)
        of_vectors, *of_parameters = torch.autograd.grad(loss, [vectors, *self._parameters])
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, of_parameters):
                parameter.sub_(gradient, alpha=self.model.learning_rate)
        store.step(*coalesce(lookups.rows, of_vectors[lookups.bag_of]))
        return logits.detach()

    def switch(self, kind: PhaseKind) -> None:
        """Copy the hot rows and their optimiser state to where ``kind`` of mini-batches updates them."""
        if kind is self.kind:
            return
        self.kind = kind
        self.switches += 1
        everything = torch.arange(len(self._hot_rows))
        if kind is PhaseKind.HOT:
            self.replica.copy(everything, self.master, self._hot_rows)
        else:
            self.master.copy(self._hot_rows, self.replica, everything)

    def predict(self, batch: GlobalBatch) -> torch.Tensor:
        """Give the logits [batch] without training; raises BadInput as training does for a cold batch."""
        self._check(batch)
        self.switch(PhaseKind.COLD)
        with torch.no_grad():
            return self._logits(batch, self.master.pooled(flat_lookups(batch.tables, self._starts)))

    def _logits(self, batch: GlobalBatch, vectors: torch.Tensor) -> torch.Tensor:
        table_vectors = list(vectors.view(len(self.model.tables), -1, self.model.dim))
        logits: torch.Tensor = self.dense(torch.from_numpy(batch.dense), table_vectors)
        return logits

    def _check(self, batch: GlobalBatch) -> None:
        """Raises BadInput for a batch that the tables, or of a hot one their hot rows, cannot answer."""
        tables = self.model.tables
        limits = self.model.hot if batch.kind is PhaseKind.HOT else [table.rows for table in tables]
        if len(batch.tables) != len(limits):
            raise BadInput(f"{batch.kind} batch has bags of {len(batch.tables)} tables, the model has {len(limits)}")
        for table, bags, limit in zip(tables, batch.tables, limits):
            what = f"{batch.kind} batch, table '{table.name}'"
            if bags.batch_size != len(batch.labels):
                raise BadInput(f"{what}: {bags.batch_size} bags for {len(batch.labels)} labels")
            check_rows(bags.values, limit, what)
