"""How many of each table's hottest rows are in HBM where not all rows fit: one price of a byte for all tables."""

from collections.abc import Callable

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move

from .limits import ANY_FORM, Limits
from .pieces import Counter, Holders, PieceCut
from .priced import by_table, cheapest, filled

FULL = 0.97
"""Share of all HBM that the cuts plan to fill: packing leaves some of it unused."""
HOT_SHARES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Shares of a table's accesses at which its rows may be cut between HBM and host memory."""


def hot_rows(
    problem: Problem,
    share: float,
    moves: frozenset[Move],
    limits: Limits = ANY_FORM,
    on_table: Callable[[], None] = lambda: None,
) -> list[int | None]:
    """Return how many hottest rows of each table are in HBM, None where all are.

    They fill a ``share`` of what all HBM is planned to hold. A table whose rows may not be split is in one tier.
    ``on_table`` is called before each table is counted, and may raise what ends that.
    """
    room = FULL * share * problem.world_size * problem.topology.hbm_bytes
    sizes = np.array([problem.weight_bytes(table) for table in problem.tables], dtype=np.float64)
    fits = sizes.sum() <= room and all(limits.may_be_in(table, Tier.HBM) for table in problem.tables)
    if fits or problem.topology.uvm_bytes == 0 or Move.UVM not in moves:
        return [None] * len(problem.tables)
    rows, table, cost = _cuts(problem, limits, on_table, split=Move.ROWS in moves)
    each = np.array([problem.weight_bytes(table) / table.rows for table in problem.tables])
    size = rows * each[table]
    kept_rows = rows[filled(cheapest(cost, size, by_table(table), room), cost, size, table, room)].tolist()
    return [None if kept == table.rows else kept for kept, table in zip(kept_rows, problem.tables)]


def _cuts(problem: Problem, limits: Limits, on_table: Callable[[], None], *, split: bool) -> tuple[Ints, Ints, Floats]:
    """Return the rows in HBM, the table and the milliseconds of its kernels for every cut, [cuts] each.

    A device's kernels count, and what all devices spend on sending: rows in both tiers are two segments.
    """
    rows, tables, cuts = [], [], []
    for index, (table, profile) in enumerate(zip(problem.tables, problem.profiles, strict=True)):
        on_table()
        may_cut = split and limits.may_cut(table)
        between = [*profile.inverse_cdf(HOT_SHARES).tolist(), profile.seen_rows] if may_cut else []
        whole = [kept for kept, tier in ((0, Tier.UVM), (table.rows, Tier.HBM)) if limits.may_be_in(table, tier)]
        choice = np.unique([*between, *(whole or [0, table.rows])])
        rows.append(choice)
        tables.append(np.full(len(choice), index))
        for kept in choice.tolist():
            cuts += [
                PieceCut(index, Holders.RANK, 0, kept, table.dim),
                PieceCut(index, Holders.RANK, kept, table.rows, table.dim, Tier.UVM, False),
            ]
    counter = Counter(problem)
    counted = counter.count(cuts, on_table)
    table_of, kept_rows = np.concatenate(tables), np.concatenate(rows)
    nonempty = np.array([cut.start < cut.stop for cut in cuts])
    numbers, sources = counted.numbers * nonempty[:, None], counted.sources * nonempty * problem.world_size
    forward, backward = counter.kernels.work_ms(numbers[0::2] + numbers[1::2])
    return kept_rows, table_of, forward + backward + sources[0::2] + sources[1::2]
