"""Hot rows on a rank: lookups in its own replicas, and gradients of touched rows that all ranks apply alike."""

from typing import Any

import torch
import torch.distributed as dist

from shardbench.base.errors import Unsupported
from shardbench.engine.blocks import Block
from shardbench.engine.lower import LogicalTable, Lowered, ModuleKey, Slot
from shardbench.engine.modules import Shards, TableModule
from shardbench.engine.operators import WEIGHT
from shardbench.engine.phased.rowstore import FlatLookups, RowStore, coalesce
from shardbench.engine.sent_bytes import StepPart
from shardbench.engine.step import StepSettings, TrainingStep
from shardbench.model.table import Precision

Touched = tuple[torch.Tensor, torch.Tensor]
"""Rows int64 [n] of a store, and their gradients float32 [n, columns]."""


class HotRows:
    """A rank's replicas of all hot rows: one store a width, table after table."""

    def __init__(self, lowered: Lowered, settings: StepSettings, device: torch.device) -> None:
        if lowered.precision is not Precision.FP32:
            raise Unsupported(f"hot rows are trained in fp32, not in {lowered.precision}")
        self.starts: dict[str, int] = {}
        rows: dict[int, int] = {}
        for table in lowered.logical:
            width = table.segment.columns
            self.starts[table.name] = rows.get(width, 0)
            rows[width] = self.starts[table.name] + table.rows
        self.stores = {
            width: RowStore(torch.full((n, width), WEIGHT, device=device), settings.optimizer, settings.learning_rate)
            for width, n in sorted(rows.items())
        }
        self.touched: dict[int, list[Touched]] = {width: [] for width in self.stores}
        # Autograd calls the lookups' backward only for something that wants a gradient.
        self.anchor = torch.zeros(0, device=device, requires_grad=True)

    def place(self, table: LogicalTable) -> tuple[RowStore, int, int]:
        """Return the store of a table's rows, and its first and last row (not itself) there."""
        start = self.starts[table.name]
        return self.stores[table.segment.columns], start, start + table.rows

    def take(self, width: int) -> Touched:
        """Take what the last backward pass touched, each row once."""
        pieces, self.touched[width] = self.touched[width], []
        if len(pieces) == 1:
            return pieces[0]
        # Modules hold different tables: no row is in two pieces.
        return torch.cat([rows for rows, _ in pieces]), torch.cat([gradients for _, gradients in pieces])


class _Lookup(torch.autograd.Function):
    """Pooled rows of a store [bags, columns], or single ones; backward leaves touched rows and their gradients."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, store: RowStore, lookups: FlatLookups, touched: list[Touched]) -> Any:
        ctx.lookups, ctx.touched = lookups, touched
        return store.pooled(lookups)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        lookups = ctx.lookups
        ctx.touched.append(coalesce(lookups.rows, gradients[0][lookups.bag_of]))
        return None, None, None, None


class HotTables(TableModule):
    """The replicas of one width, pooled or not."""

    def __init__(self, lowered: Lowered, key: ModuleKey, rows: HotRows) -> None:
        self.key, self._rows = key, rows
        self._tables = lowered.modules[key]
        blocks = [
            Block(slot=Slot(t.table, feature), start=t.segment.column_start, stop=t.segment.column_stop)
            for t in self._tables
            for feature in range(t.features)
        ]
        self.layouts = [blocks] if key.pooled else []
        self._starts = torch.tensor([rows.starts[t.name] for t in self._tables for _ in t.keys])

    def compute(self, received: Any) -> list[torch.Tensor]:
        """Look up pooled or single rows of the replicas."""
        key_lengths, width = received.length_per_key(), self.key.columns
        starts = torch.repeat_interleave(self._starts, torch.tensor(key_lengths)).to(received.values().device)
        ids = received.values() + starts
        # A single row is a bag of its own.
        lengths = received.lengths() if self.key.pooled else torch.ones_like(ids, dtype=torch.int32)
        rows = self._rows
        lookups = FlatLookups(rows=ids, lengths=lengths)
        vectors: torch.Tensor = _Lookup.apply(rows.anchor, rows.stores[width], lookups, rows.touched[width])  # type: ignore[no-untyped-call]
        if not self.key.pooled:
            return [vectors]
        samples = len(lengths) // len(self._starts)
        return [vectors.view(-1, samples, width).transpose(0, 1).reshape(samples, -1)]

    def output(self, received: Any, vectors: list[torch.Tensor]) -> Any:
        """Split vectors by their lookups where they are not pooled; nothing is exchanged."""
        if self.key.pooled:
            return vectors
        return dict(zip(received.keys(), vectors[0].split(received.length_per_key())))

    def shards(self) -> Shards:
        """Return the tables' rows in the store of their width."""
        by_table: Shards = {}
        for table in self._tables:
            store, start, stop = self._rows.place(table)
            by_table[table.name] = [(0, store.weights[start:stop])]
        return by_table


class HotStep(TrainingStep):
    """A step of a hot mini-batch: no exchange of lookups or vectors.

    Gradients of touched rows are gathered after the backward pass (in its phase, where an ordinary
    plan's replicas are all-reduced), added up in rank order and applied alike on every rank, so that
    replicas stay equal to the bit.
    """

    def _make_modules(self, optimizer: Any) -> list[TableModule]:
        self.rows = HotRows(self.lowered, self.settings, self.device)
        self._all: dict[int, Touched] = {}
        return [HotTables(self.lowered, key, self.rows) for key in self.lowered.modules]

    def _return_gradients(self) -> None:
        own = {width: self.rows.take(width) for width in self.rows.stores}
        world = self.groups.topology.world_size
        if world == 1:
            self._all = own
            return
        self.enter(StepPart.ROWS_SPLITS)
        counts = torch.tensor([[len(rows) for rows, _ in own.values()]] * world, device=self.device)
        sizes = _everyones(counts, [1] * world, [1] * world, self.groups.world).tolist()
        self.enter(StepPart.ROWS)
        widths, group = list(own), self.groups.world
        rows = _gather([rows for rows, _ in own.values()], sizes, [1] * len(widths), group)
        # A rank's loss is the mean over its own samples.
        summed = _gather([gradients.flatten() / world for _, gradients in own.values()], sizes, widths, group)
        self._all = {width: (rows[i], summed[i].view(-1, width)) for i, width in enumerate(widths)}

    def _update_rows(self) -> None:
        for width, (rows, gradients) in self._all.items():
            self.rows.stores[width].step(*coalesce(rows, gradients))


def _gather(own: list[torch.Tensor], sizes: list[list[int]], numbers: list[int], group: Any) -> list[torch.Tensor]:
    """Return all ranks' numbers of each store, in rank order; one collective for all stores.

    Rank r has ``sizes[r][i]`` rows of store i, ``numbers[i]`` numbers each.
    """
    counts = [[n * each for n, each in zip(rows, numbers)] for rows in sizes]
    mine, world, stores = torch.cat(own), len(sizes), len(numbers)
    received = _everyones(mine.repeat(world), [len(mine)] * world, [sum(c) for c in counts], group)
    pieces = received.split([n for c in counts for n in c])
    return [torch.cat(pieces[i::stores]) for i in range(stores)]


def _everyones(sent: torch.Tensor, to: list[int], received: list[int], group: Any) -> torch.Tensor:
    into = sent.new_empty((sum(received), *sent.shape[1:]))
    dist.all_to_all_single(into, sent, received, to, group=group)
    return into
