"""Bounds how many lookups can be near where they are asked for: lemma 10 of ``docs/bounds.md``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds.row_counts import BatchRows
from shardbench.cost.lookups import CountedLookups
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Table

RANK, NODE, COPY = range(3)
"""The places that are near: the asking rank, or its node, for rows held once; that rank, if every node has a copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalLookups:
    """The most lookups that are near where they are asked for, in the mean over batches; [tables, places]."""

    most: Floats
    """The most near lookups of all rows."""
    share: Floats
    excess: Floats
    """Any rows have at most ``share`` of their lookups near, and ``excess`` more."""


def block_lookups(table: Table, problem: Problem) -> int:
    """Return the lookups of a block of rows: twice as many cost no more to exchange than a further range's lengths."""
    topology = problem.topology
    nodes, local = topology.nodes, topology.devices_per_node
    # A range more is sent to one device by the other nodes, or inside each node to one of it.
    outside, inside = (nodes - 1) * local, nodes * (local - 1)
    peers = min(outside, inside) if outside and inside else outside or inside
    lengths = problem.batch_size // problem.world_size * table.features * LENGTH_BYTES * peers
    vectors = 2 * problem.exchange.bytes * table.dim if table.pooling is Pooling.NONE else 0
    return max(1, lengths // (2 * (INDEX_BYTES + vectors)))


class Blocks(NamedTuple):
    """The blocks of a table's rows in one batch."""

    lookups: Ints
    """The lookups of each block, [blocks]."""
    near: Ints
    """The most of these that are near, [blocks, places]."""


def local_lookups_of(batches: Sequence[Blocks], table: Table, problem: Problem) -> Floats:
    """Return the three fields of a table's ``LocalLookups``, [3, places]."""
    lookups = np.concatenate([blocks.lookups for blocks in batches]).astype(np.float64)
    near = np.concatenate([blocks.near for blocks in batches]).astype(np.float64)
    if not len(lookups):
        return np.zeros((3, 3))
    share = np.array([_weighted_quantile(near[:, kind] / lookups, lookups, 0.9) for kind in range(3)])
    over = np.maximum(near - lookups[:, None] * share, 0.0).sum(axis=0) / len(batches)
    return np.array([near.sum(axis=0) / len(batches), share, over + 2.0 * block_lookups(table, problem)])


def _weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(cumulative, level * cumulative[-1]))]])


def local_blocks(lookups: CountedLookups, rows: BatchRows, table: Table, problem: Problem) -> Blocks:
    """Return the blocks of a table's rows in one batch, with the most lookups of each that are near."""
    topology = problem.topology
    nodes, local, world = topology.nodes, topology.devices_per_node, topology.world_size
    values, source = lookups.values, rows.source
    if world == 1 or not len(values):
        return Blocks(lookups=np.zeros(0, dtype=np.int64), near=np.zeros((0, 3), dtype=np.int64))
    block_of_id = (np.cumsum(rows.times) - rows.times) // block_lookups(table, problem)
    # They ascend; without those that no row begins in.
    block_of_id = np.cumsum(np.diff(block_of_id, prepend=0) > 0)
    block = block_of_id[rows.which]
    blocks = int(block_of_id[-1]) + 1
    residue, cells, times = values % world, blocks * world * world, None
    if cells <= len(values):
        # Lookups of one block, one asking rank and one residue are alike: they are counted once.
        alike = np.bincount((block * world + source) * world + residue, minlength=cells)
        filled_cells = np.flatnonzero(alike)
        times, (block, source, residue) = alike[filled_cells], np.unravel_index(filled_cells, (blocks, world, world))
    node, own = source // local, source % local

    def tally(choice: Ints, choices: int) -> Ints:
        """Count lookups by block and by the choice of a first device that brings them near."""
        counts = np.bincount(block * choices + choice, times, minlength=blocks * choices)
        return np.asarray(counts.astype(np.int64).reshape(blocks, choices))

    on_rank = tally(source, world)
    by_node = on_rank.reshape(blocks, nodes, local).sum(axis=2)
    dealt = tally((source - residue) % world, world)
    dealt_in_node = tally(node * local + (own - residue) % local, world)
    # A row dealt over the world is in the node of those that ask for it for ``local`` first devices in a row.
    first = tally((node * local - residue) % world, world)
    before = np.zeros((blocks, 1), dtype=np.int64)
    running = np.cumsum(np.concatenate([before, first[:, world - local + 1 :], first], axis=1), axis=1)
    dealt_near = running[:, local:] - running[:, :-local]
    copies = np.maximum(tally((own - residue) % local, local).max(axis=1), tally(own, local).max(axis=1))
    rank = np.maximum(np.maximum(on_rank.max(axis=1), dealt.max(axis=1)), dealt_in_node.max(axis=1))
    near = [rank, np.maximum(by_node.max(axis=1), dealt_near.max(axis=1)), copies]
    return Blocks(lookups=on_rank.sum(axis=1), near=np.stack(near, axis=1))
