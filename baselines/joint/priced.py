"""Chooses the cheapest choice of each table where all that is chosen must fit: a byte has one price for all tables."""

import numpy as np

from shardbench.base.arrays import Floats, Ints

FIRST_PRICE, RAISE, LARGEST_PRICE = 1e-12, 16.0, 1e9
"""Milliseconds a byte: what is tried first, times what, and up to where a price that fits is looked for."""
BISECTIONS = 60


def cheapest(cost: Floats, size: Floats, table: Ints, room: float) -> Ints:
    """Return each table's choice of least cost, [tables], at the least price of a byte at which the sizes fit the room.

    ``cost``, ``size`` and ``table`` are of all choices [choices], table by table, and every table has one. Where no
    price makes them fit, the smallest are chosen.
    """
    first = np.flatnonzero(np.diff(table, prepend=-1) > 0)
    chosen = least(cost, table, first)
    if size[chosen].sum() <= room:
        return chosen
    low, high = 0.0, FIRST_PRICE
    while size[least(cost + high * size, table, first)].sum() > room and high < LARGEST_PRICE:
        low, high = high, high * RAISE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        fits = size[least(cost + middle * size, table, first)].sum() <= room
        low, high = (low, middle) if fits else (middle, high)
    return least(cost + high * size, table, first)


def filled(chosen: Ints, cost: Floats, size: Floats, table: Ints, room: float) -> Ints:
    """Return the choices [tables] with better ones that fit what is left of the room, the largest gain first.

    No price of a byte brings a choice that lies above the line between two others.
    """
    chosen = chosen.copy()
    while True:
        left = room - size[chosen].sum()
        gains = np.where(size - size[chosen][table] <= left, cost[chosen][table] - cost, 0.0)
        best = int(gains.argmax())
        if not gains[best] > 0.0:
            return chosen
        chosen[table[best]] = best


def least(cost: Floats, table: Ints, first: Ints) -> Ints:
    """Return the first choice of least cost of each table, [tables]; ``first`` is where each table's choices begin."""
    lowest = np.repeat(np.minimum.reduceat(cost, first), np.diff(first, append=len(table)))
    at = np.flatnonzero(cost <= lowest)
    return np.asarray(at[np.diff(table[at], prepend=-1) > 0])
