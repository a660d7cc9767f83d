"""Collections whose tables a plan splits: the remap, a collection of the pieces, and the vectors put together again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.modules.embedding_configs import PoolingType

from shardbench.base.errors import BadInput, Unsupported
from shardbench.engine.torchrec.exported import Exported, ExportedTable, TorchRecTable
from shardbench.engine.torchrec.remap import IdRemap, bags_of_samples, piece_keys
from shardbench.engine.torchrec.sharding import Collection, configs_of

Ranks = Mapping[str, torch.Tensor | None]


def split(exported: Exported, module: Collection, ranks: Ranks | None = None) -> torch.nn.Module:
    """Make what takes the collection's place in the model: itself, if no table of it is remapped.

    ``ranks`` as in IdRemap, for every table that is remapped (``exported.remapped``). Weights are copied
    where ``module`` has some (is not on the meta device). Raises BadInput where its tables are not the
    plan's or ranks are missing, Unsupported for what cannot be split.
    """
    tables = _tables(exported, configs_of(module))
    if not any(table.is_remapped for table in tables.values()):
        same: torch.nn.Module = module
        return same
    own = {name: order for name, order in (ranks or {}).items() if name in tables}
    if isinstance(module, EmbeddingBagCollection):
        replacement: SplitBags | SplitSequences = SplitBags(module, tables, own)
    else:
        replacement = SplitSequences(module, tables, own)
    weights = {name.split(".")[-2]: weight.detach() for name, weight in module.named_parameters()}
    if not any(weight.is_meta for weight in weights.values()):
        load_tables(replacement, exported, weights)
    return replacement


def _tables(exported: Exported, configs: Sequence[Any]) -> dict[str, ExportedTable]:
    by_name = {table.name: table for table in exported.tables}
    for config in configs:
        if config.name not in by_name:
            raise BadInput(f"table '{config.name}' of the model is not in the plan")
        table = by_name[config.name]
        if (config.num_embeddings, config.embedding_dim) != (table.rows, table.dim):
            raise BadInput(
                f"table '{config.name}' is {config.num_embeddings} x {config.embedding_dim}, "
                f"the plan's is {table.rows} x {table.dim}: give the model's table, and one name to one table"
            )
    tables = {config.name: by_name[config.name] for config in configs}
    features = [feature for config in configs for feature in config.feature_names]
    twice = sorted({feature for feature in features if features.count(feature) > 1})
    if twice and any(table.is_remapped for table in tables.values()):
        raise Unsupported(f"feature '{twice[0]}' is looked up in two tables of what is to be split: split none of them")
    return tables


class SplitBags(torch.nn.Module):
    """Stands for an EmbeddingBagCollection, with its keys: bags are summed over the pieces of their table."""

    def __init__(self, module: EmbeddingBagCollection, tables: dict[str, ExportedTable], ranks: Ranks) -> None:
        super().__init__()
        configs = module.embedding_bag_configs()
        means = [c.name for c in configs if c.pooling is PoolingType.MEAN and tables[c.name].is_remapped]
        self.remap = _remap(configs, tables, ranks)
        self.collection = EmbeddingBagCollection(
            tables=[
                _config(config, piece, keys, pooling=PoolingType.SUM if config.name in means else config.pooling)
                for config in configs
                for piece, keys in _pieces(config, tables)
            ],
            is_weighted=module.is_weighted(),
            device=module.device,
        )
        self.join = _JoinBags(configs, tables, frozenset(means))

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Turn lookups into vectors [batch, sum of widths], as the collection it stands for does."""
        return self.join(features, self.collection(self.remap(features).lookups))


class _JoinBags(torch.nn.Module):
    """Sums the vectors of pieces; a module of its own, so that fx, by which TorchRec's pipelines look, sees a call."""

    def __init__(self, configs: Sequence[Any], tables: dict[str, ExportedTable], means: frozenset[str]) -> None:
        super().__init__()
        self._parts = _parts(configs, tables)
        self._dims = {feature: config.embedding_dim for config in configs for feature in config.feature_names}
        self._means = {feature for config in configs if config.name in means for feature in config.feature_names}

    def forward(self, features: KeyedJaggedTensor, vectors_of_pieces: KeyedTensor) -> KeyedTensor:
        """Return vectors [batch, sum of widths]; of ``features`` it needs lengths alone."""
        by_key = vectors_of_pieces.to_dict()
        vectors = []
        for feature, dim in self._dims.items():
            parts = [_widened(by_key[key], piece, dim) for key, piece in self._parts[feature]]
            total = torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]
            if feature in self._means:
                lengths, bags = features[feature].lengths(), bags_of_samples(features, feature)
                total = total / (lengths if bags is None else lengths[bags]).clamp(min=1).unsqueeze(1)
            vectors.append(total)
        return KeyedTensor(
            keys=list(self._dims), length_per_key=list(self._dims.values()), values=torch.cat(vectors, 1)
        )


class SplitSequences(torch.nn.Module):
    """Stands for an EmbeddingCollection, with its keys: vectors are put back in their places of the sequence."""

    def __init__(self, module: EmbeddingCollection, tables: dict[str, ExportedTable], ranks: Ranks) -> None:
        super().__init__()
        configs = module.embedding_configs()
        narrow = [
            piece.table
            for config in configs
            for piece in tables[config.name].pieces
            if piece.column_stop - piece.column_start < config.embedding_dim
        ]
        if narrow:
            raise Unsupported(f"table '{narrow[0]}': an EmbeddingCollection holds tables of one width, not columns")
        self.remap = _remap(configs, tables, ranks)
        self.collection = EmbeddingCollection(
            tables=[_config(config, piece, keys) for config in configs for piece, keys in _pieces(config, tables)],
            device=module.device,
        )
        self.join = _JoinSequences(configs, tables)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Turn lookups into vectors of each by feature, as the collection it stands for does."""
        remapped = self.remap(features)
        vectors: dict[str, JaggedTensor] = self.join(features, remapped.positions, self.collection(remapped.lookups))
        return vectors


class _JoinSequences(torch.nn.Module):
    """Puts the vectors of pieces back into their places; a module of its own, as _JoinBags is."""

    def __init__(self, configs: Sequence[Any], tables: dict[str, ExportedTable]) -> None:
        super().__init__()
        self._parts = _parts(configs, tables)

    def forward(
        self,
        features: KeyedJaggedTensor,
        positions: dict[str, torch.Tensor | None],
        by_key: dict[str, JaggedTensor],
    ) -> dict[str, JaggedTensor]:
        """Return vectors of each lookup by feature."""
        outputs = {}
        for feature, parts in self._parts.items():
            own, bags, origins = features[feature], bags_of_samples(features, feature), None
            lengths, lookups = own.lengths(), own.values().numel()
            if bags is not None:
                origins = _origins(lengths, bags)
                lengths, lookups = lengths[bags], len(origins)
            first = by_key[parts[0][0]].values()
            vectors = first.new_zeros((lookups, first.shape[1]))
            for key, _ in parts:
                at = positions[key]
                if at is not None and origins is not None:
                    at = torch.isin(origins, at).nonzero().squeeze(1)
                vectors = by_key[key].values() if at is None else vectors.index_add(0, at, by_key[key].values())
            outputs[feature] = JaggedTensor(values=vectors, lengths=lengths)
        return outputs


def _origins(lengths: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
    """Return where each lookup of the samples stands among those of the bags, whose lengths are given."""
    firsts, counts = (lengths.cumsum(0) - lengths)[bags], lengths[bags]
    within = torch.arange(int(counts.sum()), device=bags.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return within + firsts.repeat_interleave(counts)


def _remap(configs: Sequence[Any], tables: dict[str, ExportedTable], ranks: Ranks) -> IdRemap:
    remapped = [table for table in tables.values() if table.is_remapped]
    # Without a remap a table's rows are where its ids say: the order of frequency changes nothing.
    orders = {name: order for name, order in ranks.items() if tables[name].is_remapped}
    return IdRemap(remapped, {config.name: config.feature_names for config in configs}, orders)


def _pieces(config: Any, tables: dict[str, ExportedTable]) -> list[tuple[TorchRecTable, list[str]]]:
    table = tables[config.name]
    return list(zip(table.pieces, piece_keys(table, config.feature_names).values(), strict=True))


def _parts(configs: Sequence[Any], tables: dict[str, ExportedTable]) -> dict[str, list[tuple[str, TorchRecTable]]]:
    """Return the keys and pieces that a feature's vectors come from."""
    return {
        feature: [(keys[number], piece) for piece, keys in _pieces(config, tables)]
        for config in configs
        for number, feature in enumerate(config.feature_names)
    }


def _config(
    config: EmbeddingBagConfig | EmbeddingConfig, piece: TorchRecTable, keys: list[str], **changes: Any
) -> EmbeddingBagConfig | EmbeddingConfig:
    """Return the configuration of a piece, whose weights are drawn as the whole table's are."""
    logical = piece.logical()
    return replace(
        config,
        name=piece.name,
        feature_names=keys,
        num_embeddings=logical.rows,
        embedding_dim=logical.segment.columns,
        weight_init_min=config.get_weight_init_min(),
        weight_init_max=config.get_weight_init_max(),
        **changes,
    )


def _widened(vectors: torch.Tensor, piece: TorchRecTable, dim: int) -> torch.Tensor:
    if vectors.shape[1] == dim:
        return vectors
    return torch.nn.functional.pad(vectors, (piece.column_start, dim - piece.column_stop))


def load_tables(model: torch.nn.Module, exported: Exported, weights: Mapping[str, torch.Tensor]) -> None:
    """Write whole tables [rows, dim], rows in the order of the user's ids, into what a model holds of them.

    ``model`` may be sharded: each rank writes its own shards. Without it, TorchRec draws new
    weights for tables that were built on a CPU when it shards them. Tables that ``weights`` does
    not name stay as they are.
    """
    with torch.no_grad():
        for piece, parameter, order in _held(model, exported):
            if piece.table not in weights:
                continue
            whole = _logical(piece, weights[piece.table], order)
            if not hasattr(parameter, "local_shards"):
                parameter.copy_(whole)
                continue
            for shard in parameter.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[row : row + rows, column : column + columns])


def read_tables(model: torch.nn.Module, exported: Exported) -> dict[str, torch.Tensor]:
    """Return whole tables [rows, dim], rows in the order of the user's ids, out of what a model holds of them.

    The opposite of ``load_tables``: with it a model goes from one plan to another, whose pieces are others. If the
    model is sharded, all ranks of the group that is initialised call it, and every one of them gets all tables, in its
    own memory and on the CPU.
    """
    tables = {table.name: table for table in exported.tables}
    tables_by_name: dict[str, torch.Tensor] = {}
    for piece, parameter, order in _held(model, exported):
        table, weights = tables[piece.table], _gathered(parameter)
        places = torch.arange(table.rows) if order is None else order.cpu()
        own = ((places >= piece.row_start) & (places < piece.row_stop)).nonzero().squeeze(1)
        if piece.table not in tables_by_name:
            tables_by_name[piece.table] = weights.new_empty((table.rows, table.dim))
        rows = piece.logical().local_ids(places[own] - piece.row_start)
        tables_by_name[piece.table][own, piece.column_start : piece.column_stop] = weights[rows]
    return tables_by_name


def _gathered(parameter: Any) -> torch.Tensor:
    """Return a parameter whole, on the CPU, from whichever ranks hold parts of it."""
    if not hasattr(parameter, "local_shards"):
        return parameter.detach().cpu()  # type: ignore[no-any-return]
    own = [(shard.metadata.shard_offsets, shard.tensor.detach().cpu()) for shard in parameter.local_shards()]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    parts = [part for rank in every for part in rank]
    whole = torch.empty(tuple(parameter.size()), dtype=parts[0][1].dtype)
    for (row, column), part in parts:
        whole[row : row + part.shape[0], column : column + part.shape[1]] = part
    return whole


def _held(model: torch.nn.Module, exported: Exported) -> Iterator[tuple[TorchRecTable, Any, torch.Tensor | None]]:
    """Yield the pieces that a model holds, their parameters, and ranks of ids; None where ids are where they say."""
    remaps = [module for module in model.modules() if isinstance(module, IdRemap)]
    pieces = exported.pieces
    for name, parameter in model.state_dict().items():
        parts = name.split(".")
        if parts[-1] == "weight" and len(parts) > 1 and parts[-2] in pieces:
            piece = pieces[parts[-2]]
            orders = (getattr(remap, f"ranks_{piece.table}", None) for remap in remaps)
            yield piece, parameter, next((order for order in orders if order is not None), None)


def _logical(piece: TorchRecTable, whole: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Take the piece's weights out of the table's."""
    if order is None:
        return piece.logical().weights(whole)
    by_frequency = torch.empty_like(whole)
    by_frequency[order.to(whole.device)] = whole
    return piece.logical().weights(by_frequency)
