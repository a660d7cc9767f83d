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
    low, high = 0.0, FIRST_PRICE
    while size[least(cost + high * size, columns)].sum() > room and high < LARGEST_PRICE:
        low, high = high, high * RAISE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        fits = size[least(cost + middle * size, columns)].sum() <= room
        low, high = (low, middle) if fits else (middle, high)
    return least(cost + high * size, columns)


def filled(chosen: Ints, cost: Floats, size: Floats, table: Ints, room: float) -> Ints:
    """Return the choices [tables] with better ones that fit what is left of the room, the largest gain first.

    No price of a byte brings a choice that lies above the line between two others.
    """
    chosen = chosen.copy()
    while True:
        free_bytes = room - size[chosen].sum()
        gains = np.where(size - size[chosen][table] <= free_bytes, cost[chosen][table] - cost, 0.0)
        best = int(gains.argmax())
        if not gains[best] > 0.0:
            return chosen
        chosen[table[best]] = best


def least(cost: Floats, columns: Ints) -> Ints:
    """Return the first choice of least cost of each table, [tables]."""
    return np.asarray(columns[cost[columns].argmin(axis=0), np.arange(columns.shape[1])])
