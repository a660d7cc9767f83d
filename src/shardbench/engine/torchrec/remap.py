"""The module that goes in front of a collection: ids become rows of the tables that a plan splits them into."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torchrec import JaggedTensor, KeyedJaggedTensor

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.engine.row_ranges import cut_ids
from shardbench.engine.torchrec.exported import ExportedTable


class Remapped(NamedTuple):
    """Lookups of the pieces, and by piece's key the places of its lookups among the feature's (None: all in order)."""

    lookups: KeyedJaggedTensor
    positions: dict[str, torch.Tensor | None]


def piece_keys(table: ExportedTable, features: Sequence[str]) -> dict[str, list[str]]:
    """Name the features of each piece of a table, in the table's order; one piece alone keeps the table's names."""
    if len(table.pieces) == 1:
        return {table.pieces[0].name: list(features)}
    return {piece.name: [f"{feature}_s{k}" for feature in features] for k, piece in enumerate(table.pieces)}


def ranks_of(order: Ints, rows: int) -> torch.Tensor:
    """Return each id's place in the order of frequency, int64 [rows]; ``order`` are the ids seen, the hottest first.

    Ids never seen follow by number. Raises BadInput where ``order`` names an id twice, or one that there is not.
    """
    ids = torch.from_numpy(np.asarray(order, dtype=np.int64).copy())
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise BadInput(f"an order of ids {int(ids.min())} to {int(ids.max())} is not of a table of {rows} rows")
    ranks = torch.full((rows,), -1, dtype=torch.int64)
    ranks[ids] = torch.arange(len(ids))
    never = ranks < 0
    if int(never.sum()) != rows - len(ids):
        raise BadInput("an order of ids names one twice: state each id once")
    ranks[never] = torch.arange(len(ids), rows)
    return ranks


class IdRemap(torch.nn.Module):
    """Cuts lookups by row range and deals the rows of row-wise pieces; keys of no table here pass unchanged.

    ``features`` are those of each table, ``ranks[table]`` int64 [rows] is each id's place in the
    order of frequency that the plan was made for: 0 for the hottest; None says that the table's ids are
    such places already. Weights of lookups go with them. Raises BadInput for a table without ranks,
    whose hot rows would be any, and for one of other size than the plan's.

    It has no weights and one argument, so that TorchRec's pipelines can run it ahead (``pipeline_postproc=True``).
    """

    def __init__(
        self,
        tables: Sequence[ExportedTable],
        features: Mapping[str, Sequence[str]],
        ranks: Mapping[str, torch.Tensor | None],
    ) -> None:
        super().__init__()
        rows = {table.name: table.rows for table in tables}
        strange, missing = sorted(ranks.keys() - rows.keys()), sorted(rows.keys() - ranks.keys())
        if strange:
            raise BadInput(f"ranks of table '{strange[0]}', which is not among those that are remapped")
        if missing:
            raise BadInput(
                f"table '{missing[0]}': its hot rows are known by the ranks of its ids alone: give "
                f"ranks['{missing[0]}'] (ranks_of), or None where ids are places by frequency already"
            )
        self._tables = {feature: table for table in tables for feature in features[table.name]}
        self._logical = {piece.name: piece.logical() for table in tables for piece in table.pieces}
        self._keys = {
            feature: {name: keys[number] for name, keys in piece_keys(table, features[table.name]).items()}
            for table in tables
            for number, feature in enumerate(features[table.name])
        }
        for name, order in ranks.items():
            if order is None:
                continue
            if order.shape != (rows[name],):
                raise BadInput(f"ranks of table '{name}' are {tuple(order.shape)}, the plan's has {rows[name]} rows")
            # Part of the state: rows of a checkpoint mean something in this order alone.
            self.register_buffer(f"ranks_{name}", order.to(torch.int64))

    def forward(self, lookups: KeyedJaggedTensor) -> Remapped:
        """Turn lookups [keys, batch] into those of the pieces, a key each, and say where each came from."""
        parts = [part for key in lookups.keys() for part in self._of(key, lookups[key])]  # noqa: SIM118 - not a dict
        features, keys, ids, lengths, positions, weights = zip(*parts)
        remapped = KeyedJaggedTensor(
            keys=list(keys),
            values=torch.cat(ids),
            lengths=torch.cat(lengths),
            weights=torch.cat(weights) if lookups.weights_or_none() is not None else None,
            **_batches_of(lookups, features, list(keys)),
        )
        return Remapped(remapped, dict(zip(keys, positions)))

    def _of(self, feature: str, own: JaggedTensor) -> list[tuple[Any, ...]]:
        """Return feature, key, ids, lengths, positions and weights of every piece of a feature's table."""
        table, ids, lengths, weights = self._tables.get(feature), own.values(), own.lengths(), own.weights_or_none()
        if table is None:
            return [(feature, feature, ids, lengths, None, weights)]
        order = getattr(self, f"ranks_{table.name}", None)
        places = ids.to(torch.int64) if order is None else order[ids]
        ranges = sorted({(piece.row_start, piece.row_stop) for piece in table.pieces})
        cuts = cut_ids(places, lengths.to(torch.int32), ranges, table.rows)
        parts = []
        for piece in table.pieces:
            cut, key = cuts[piece.row_start, piece.row_stop], self._keys[feature][piece.name]
            rows, counts = self._logical[piece.name].local_ids(cut.ids).to(ids.dtype), cut.lengths.to(lengths.dtype)
            own_weights = weights if weights is None or cut.positions is None else weights[cut.positions]
            parts.append((feature, key, rows, counts, cut.positions, own_weights))
        return parts


def bags_of_samples(lookups: KeyedJaggedTensor, feature: str) -> torch.Tensor | None:
    """Return which of a feature's bags is each sample's, int64 [samples]; None where each has its own, in order."""
    inverse = lookups.inverse_indices_or_none()
    return inverse[1][inverse[0].index(feature)] if inverse is not None else None


def _batches_of(lookups: KeyedJaggedTensor, features: Sequence[str], keys: list[str]) -> dict[str, Any]:
    """Return what TorchRec is told of the pieces of these features where their batches differ in length (VBE)."""
    if not lookups.variable_stride_per_key():
        return {}
    strides = dict(zip(lookups.keys(), lookups.stride_per_key_per_rank()))
    names, bags = lookups.inverse_indices()
    return {
        "stride_per_key_per_rank": [strides[feature] for feature in features],
        "inverse_indices": (keys, bags[[names.index(feature) for feature in features]]),
    }
