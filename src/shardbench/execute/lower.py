"""Lowering: a plan becomes logical TorchRec tables, one a segment, and a sharding plan.

Row ids arrive in frequency order. A row-wise segment is padded to equal blocks and its rows
are permuted (row j -> block j % ways, place j // ways), so that TorchRec's contiguous blocks
deal rows round-robin. A column range is a logical table of its own on its rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan
from torchrec.modules.embedding_configs import DataType

from shardbench.errors import Unsupported
from shardbench.machine import Topology
from shardbench.plan import OnRank, Plan, Replicated, RowWise, Segment, Tier
from shardbench.table import Pooling, Precision, Table
from shardbench.trace import Bags

_DATA_TYPES = {Precision.FP32: DataType.FP32, Precision.FP16: DataType.FP16}


@dataclass(frozen=True, kw_only=True)
class LogicalTable:
    """One segment as a table of TorchRec."""

    name: str
    table: int
    segment: Segment
    ways: int
    """Ranks its rows are dealt over; 1 if not row-wise."""

    @property
    def block(self) -> int:
        """Rows a rank holds, padding included."""
        return -(-self.segment.rows // self.ways)

    @property
    def rows(self) -> int:
        """Rows of the logical table, padding included."""
        return self.block * self.ways

    @property
    def is_replicated(self) -> bool:
        """Whether it is data-parallel, and so has an ordinary optimiser."""
        return isinstance(self.segment.placement, Replicated)

    def local_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids within the segment -> rows of the logical table, int64 [n]."""
        if self.ways == 1:
            return ids
        return (ids % self.ways) * self.block + torch.div(ids, self.ways, rounding_mode="floor")

    def weights(self, full: torch.Tensor) -> torch.Tensor:
        """The logical table's weights [rows, columns] out of the whole table's [rows, dim]; padding is zero."""
        s = self.segment
        part = full[s.row_start : s.row_stop, s.column_start : s.column_stop]
        out = part.new_zeros((self.rows, s.columns))
        out[self.local_ids(torch.arange(s.rows))] = part
        return out

    def scatter(self, logical: torch.Tensor, full: torch.Tensor) -> None:
        """Inverse of ``weights``: write the logical table back into the whole one."""
        s = self.segment
        full[s.row_start : s.row_stop, s.column_start : s.column_stop] = logical[self.local_ids(torch.arange(s.rows))]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A plan as TorchRec sees it."""

    tables: tuple[Table, ...]
    logical: tuple[LogicalTable, ...]
    topology: Topology
    precision: Precision

    def module(self) -> EmbeddingBagCollection:
        """The collection of logical tables on the meta device."""
        configs = [
            EmbeddingBagConfig(
                name=t.name,
                embedding_dim=t.segment.columns,
                num_embeddings=t.rows,
                feature_names=[t.name],
                data_type=_DATA_TYPES[self.precision],
            )
            for t in self.logical
        ]
        return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))

    def sharding_plan(self, module: EmbeddingBagCollection, device: str) -> EmbeddingModuleShardingPlan:
        """TorchRec's sharding plan for ``module()``."""
        generators = {t.name: _generator(t.segment, self.topology, device) for t in self.logical}
        return construct_module_sharding_plan(
            module,
            generators,
            EmbeddingBagCollectionSharder(),
            local_size=self.topology.devices_per_node,
            world_size=self.topology.world_size,
            device_type=device,
        )

    def jagged(self, bags: Callable[[int], Bags]) -> KeyedJaggedTensor:
        """A rank's local lookups as one KeyedJaggedTensor, one key a logical table.

        ``bags(i)`` gives table i's local bags in frequency-ranked ids.
        """
        keys, values, lengths = [], [], []
        by_table: dict[int, list[LogicalTable]] = {}
        for t in self.logical:
            by_table.setdefault(t.table, []).append(t)
        for i, parts in by_table.items():
            ids, bag_lengths = _tensors(bags(i))
            cuts = sorted({(t.segment.row_start, t.segment.row_stop) for t in parts})
            cut_ids = _cut(ids, bag_lengths, cuts, self.tables[i].rows)
            for t in parts:
                local, local_lengths = cut_ids[(t.segment.row_start, t.segment.row_stop)]
                keys.append(t.name)
                values.append(t.local_ids(local))
                lengths.append(local_lengths)
        return KeyedJaggedTensor(keys=keys, values=torch.cat(values), lengths=torch.cat(lengths))


def lower(plan: Plan, tables: Sequence[Table], topology: Topology, precision: Precision) -> Lowered:
    """Raises Unsupported for placements that this version cannot run."""
    if plan.schedule is not None:
        raise Unsupported("running of batch schedules is not built yet")
    index = {table.name: i for i, table in enumerate(tables)}
    by_table = plan.by_table()
    logical = []
    for table in tables:
        if table.pooling is not Pooling.SUM:
            raise Unsupported(f"table '{table.name}': running of unpooled tables is not built yet")
        for k, segment in enumerate(by_table[table.name]):
            ways = len(segment.placement.ranks) if isinstance(segment.placement, RowWise) else 1
            i = index[segment.table]
            logical.append(LogicalTable(name=f"t{i}_s{k}", table=i, segment=segment, ways=ways))
            _generator(segment, topology, "cpu")
    return Lowered(tables=tuple(tables), logical=tuple(logical), topology=topology, precision=precision)


def _generator(segment: Segment, topology: Topology, device: str) -> Any:
    place = segment.placement
    kernel = "fused"
    if getattr(place, "tier", Tier.HBM) is Tier.UVM and device == "cuda":
        kernel = "fused_uvm"
    if isinstance(place, OnRank):
        return table_wise(rank=place.rank, compute_kernel=kernel)
    if isinstance(place, RowWise) and len(place.ranks) == topology.world_size:
        return row_wise(compute_kernel=kernel)
    if isinstance(place, RowWise) and place.ranks in {topology.node_ranks(n) for n in range(topology.nodes)}:
        return _with_kernel(table_row_wise(host_index=topology.node_of(place.ranks[0])), kernel)
    if isinstance(place, Replicated) and len(place.ranks) == topology.world_size:
        return data_parallel()
    raise Unsupported(f"table '{segment.table}': this version cannot run '{place.kind}' over part of the world")


def _with_kernel(generator: Any, kernel: str) -> Any:
    # TorchRec's table_row_wise takes no kernel and would fall back to the dense one.
    def sized(*args: Any) -> Any:
        sharding = generator(*args)
        sharding.compute_kernel = kernel
        return sharding

    return sized


def _tensors(bags: Bags) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.from_numpy(bags.values.astype("int64"))
    return ids, torch.from_numpy(bags.lengths.astype("int32"))


Cut = dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]


def _cut(ids: torch.Tensor, lengths: torch.Tensor, cuts: list[tuple[int, int]], rows: int) -> Cut:
    """Ids and bag lengths of each row range, ids relative to the range."""
    if cuts == [(0, rows)]:
        return {cuts[0]: (ids, lengths)}
    if all(a[1] == b[0] for a, b in zip(cuts, cuts[1:])):
        return _bucketize(ids, lengths, cuts)
    return {cut: _select(ids, lengths, cut) for cut in cuts}


def _bucketize(ids: torch.Tensor, lengths: torch.Tensor, cuts: list[tuple[int, int]]) -> Cut:
    edges = torch.tensor([cuts[0][0], *(stop for _, stop in cuts)])
    size = torch.tensor([int(edges[-1])])
    out = torch.ops.fbgemm.block_bucketize_sparse_features(
        lengths, ids, False, False, size, len(cuts), block_bucketize_pos=[edges]
    )
    pieces_lengths = out[0].view(len(cuts), -1)
    pieces = torch.split(out[1], pieces_lengths.sum(dim=1).tolist())
    return {cut: (pieces[k], pieces_lengths[k]) for k, cut in enumerate(cuts)}


def _select(ids: torch.Tensor, lengths: torch.Tensor, cut: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    inside = (ids >= cut[0]) & (ids < cut[1])
    bag = torch.repeat_interleave(torch.arange(len(lengths)), lengths.long())
    counts = torch.bincount(bag[inside], minlength=len(lengths))
    return ids[inside] - cut[0], counts.to(torch.int32)
