"""Chooses the cheapest choice of each table where all that is chosen must fit: a byte has one price for all tables."""

import numpy as np

from shardbench.base.arrays import Floats, Ints

FIRST_PRICE, RAISE, LARGEST_PRICE = 1e-12, 16.0, 1e9
"""Milliseconds a byte: what is tried first, times what, and up to where a price that fits is looked for."""
BISECTIONS = 40


def by_table(table: Ints) -> Ints:
    """Return each table's choices in a column, [most of a table, tables], from the table of every choice [choices].

    Shorter columns repeat their last choice.
    """
    first = np.flatnonzero(np.diff(table, prepend=-1) > 0)
    numbers = np.diff(first, append=len(table))
    return np.asarray(first + np.minimum(np.arange(numbers.max())[:, None], numbers - 1))


def cheapest(cost: Floats, size: Floats, columns: Ints, room: float) -> Ints:
    """Return each table's choice of least cost, [tables], at the least price of a byte at which the sizes fit the room.

    ``cost`` and ``size`` are of all choices [choices], ``columns`` are those of ``by_table``. Where no price makes them
    fit, the smallest are chosen.
    """
    chosen = least(cost, columns)
    if size[chosen].sum() <= room:
        return chosen
    smallest = least(cost + LARGEST_PRICE * size, columns)
    if size[smallest].sum() > room:
        return smallest
    low, high, at_low = 0.0, FIRST_PRICE, chosen
    while size[at_high := least(cost + high * size, columns)].sum() > room and high < LARGEST_PRICE:
        low, high, at_low = high, high * RAISE, at_high
    open_columns = columns
    for _ in range(BISECTIONS):
        # Between two prices at which a table has the same choice it has no other.
        is_open, middle = at_low != at_high, (low + high) / 2.0
        room -= size[at_low[~is_open]].sum()
        open_columns, at_low, at_high = open_columns[:, is_open], at_low[is_open], at_high[is_open]
        at_middle = _least(cost[open_columns] + middle * size[open_columns], open_columns)
        if size[at_middle].sum() <= room:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return least(cost + high * size, columns)


def filled(chosen: Ints, cost: Floats, size: Floats, table: Ints, room: float) -> Ints:
    """Return the choices [tables] with better ones that fit what is left of the room, the largest gain first.

    No price of a byte brings a choice that lies above the line between two others.
    """
    chosen, free_bytes = chosen.copy(), room - size[chosen].sum()
    more_bytes, gains = size - size[chosen][table], cost[chosen][table] - cost
    while True:
        best = int(np.where(more_bytes <= free_bytes, gains, 0.0).argmax())
        if not (more_bytes[best] <= free_bytes and gains[best] > 0.0):
            return chosen
        own = slice(*np.searchsorted(table, [table[best], table[best] + 1]))
        free_bytes -= more_bytes[best]
        more_bytes[own], gains[own] = size[own] - size[best], cost[best] - cost[own]
        chosen[table[best]] = best


def least(cost: Floats, columns: Ints) -> Ints:
    """Return the first choice of least cost of each table, [tables]."""
    return _least(cost[columns], columns)


def _least(cost: Floats, columns: Ints) -> Ints:
    return np.asarray(columns[cost.argmin(axis=0), np.arange(columns.shape[1])])
