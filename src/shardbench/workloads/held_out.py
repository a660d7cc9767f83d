"""Which rows lookups meet that were not counted: each block of the train lookups against all others.

Lookups come in clusters: the same user's next samples ask for the same rows again. Counts alone do not show it: rows
look hot that no other user asks for, and few seem to be left that nobody has asked for.
"""

import numpy as np
from numpy.typing import NDArray

from shardbench.base.arrays import Floats, Ints
from shardbench.model.profile import BLOCKS, HeldOut, count_classes
from shardbench.workloads.trace import Ranking

LEAST_SHARE, SURE = 0.01, 4.0
"""Share of the lookups, and standard deviations of chance, below which a cluster is none."""


def measure_held_out(ids: NDArray[np.integer], ranking: Ranking) -> HeldOut | None:
    """Return ``AccessProfile.held_out`` of lookups [n], in the order of their samples, which ``ranking`` is made of.

    None where each block meets no more rows that the others lack than if the order of the lookups were left to chance.
    """
    lookups, counts = len(ids), ranking.counts
    if lookups < BLOCKS:
        return None
    ends = np.arange(BLOCKS + 1) * lookups // BLOCKS
    met, blocks_of = np.zeros(int(count_classes(counts[:1])[0]) + 1), np.zeros(len(counts), dtype=np.int8)
    for first, last in zip(ends[:-1], ends[1:]):
        held = np.bincount(ranking(ids[first:last].astype(np.int64, copy=False)), minlength=len(counts))
        blocks_of += held > 0
        # Counted as if there were as many others as lookups.
        others = count_classes((counts - held) * (lookups / (lookups - (last - first))))
        met += np.bincount(np.minimum(others, len(met) - 1), weights=held, minlength=len(met))
    by_chance, deviation = _met_by_chance(*ranking.runs, np.diff(ends) / lookups)
    if met[0] - by_chance <= max(LEAST_SHARE * lookups, SURE * deviation):
        return None
    # All meet more rows than the others: so many lookups of rows that are in two blocks are, by chance, in one. Rows
    # looked up once are in one whatever the order.
    unseen = max(met[0] - counts[blocks_of == 2].sum() / (BLOCKS - 1), np.count_nonzero(counts == 1))
    met[1:] *= (lookups - unseen) / max(lookups - met[0], 1.0)
    met[0] = unseen
    class_rows = np.bincount(count_classes(counts), minlength=len(met))
    class_rows[0] = ranking.rows - len(counts)
    # A class without rows gives its lookups to the next colder one that has some.
    classes = np.flatnonzero(class_rows)
    at = np.maximum(np.searchsorted(classes, np.arange(len(met)), side="right") - 1, 0)
    shares = np.bincount(classes[at], weights=met, minlength=len(met)) / lookups
    return HeldOut(shares=tuple(shares.tolist()), block_rows=float(blocks_of.sum(dtype=np.int64)) / BLOCKS)


def _met_by_chance(counts: Ints, row_counts: Ints, blocks: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of the lookups whose row no other block meets, in an order left to chance.

    ``blocks`` float64 [blocks] are their shares of the lookups.
    """
    alone = (blocks[:, None] ** counts).sum(axis=0)
    lookups = counts.astype(np.float64) * row_counts
    return float(lookups @ alone), float(np.sqrt((lookups * counts) @ (alone * (1.0 - alone))))
