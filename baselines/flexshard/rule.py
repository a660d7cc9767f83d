"""The cost-benefit rule: seconds saved a byte of memory, row by row, until the budget is spent.

Seconds are those of bytes at given link prices. At fixed prices the choice among the tiers
(cold, warm, hot) of every unit under one memory budget is a multiple-choice knapsack, whose
relaxation is solved by taking the steps of each unit's concave hull in order of benefit per
byte (Sinha and Zoltners, Operations Research 27(3), 1979). Hotter rows of a table come first,
so that a table's tiers are ranges of its frequency order: its thresholds.
"""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem

from .units import LinkShares, Units


@dataclass(frozen=True, kw_only=True)
class LinkPrices:
    """Seconds a byte, (inside the node, across), of exchanges and of gradient synchronisation."""

    exchange: tuple[float, float]
    synchronise: tuple[float, float]

    @classmethod
    def weighted(cls, machine: Machine, exchange_inter: float, synchronise_inter: float) -> "LinkPrices":
        """Return prices from shares 0..1 of how much a collective waits for the link across nodes (deviation 3)."""
        intra, inter = 1.0 / machine.constants.intra_bytes_per_s, 1.0 / machine.constants.inter_bytes_per_s

        def pair(share: float) -> tuple[float, float]:
            return (1.0 - share) * intra, share * inter

        return cls(exchange=pair(exchange_inter), synchronise=pair(synchronise_inter))


@dataclass(frozen=True, kw_only=True)
class RowTiers:
    """Rows of each table that are hot (on every rank) and warm (one copy a node), int64 [tables]; the rest are cold."""

    hot: Ints
    warm: Ints

    def __hash__(self) -> int:
        return hash((self.hot.tobytes(), self.warm.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTiers) and bool((self.hot == other.hot).all() and (self.warm == other.warm).all())


def _seconds(shares: tuple[float, float], prices: tuple[float, float]) -> float:
    return shares[0] * prices[0] + shares[1] * prices[1]


def benefits(units: Units, shares: LinkShares, prices: LinkPrices) -> tuple[Floats, Floats]:
    """Return seconds an iteration that warm and the hot tier save over the cold one, [units] each; negative: a cost.

    A row is worth a copy if the exchange that it saves exceeds its synchronisation, which the
    engine does densely, whether the row was touched or not (deviation 7). Time of lookups does not
    count (deviation 8).
    """
    cold = _seconds(shares.cold, prices.exchange)
    in_node = _seconds(shares.warm, prices.exchange)
    warm = units.exchanged * (cold - in_node) - units.weights * _seconds(shares.warm_sync, prices.synchronise)
    hot = units.exchanged * cold - units.weights * _seconds(shares.hot_sync, prices.synchronise)
    return warm, hot


def added_bytes(units: Units, problem: Problem) -> tuple[Floats, Floats]:
    """Return the bytes that the warm and the hot tier add to every device over the cold one, [units] each."""
    local = problem.topology.devices_per_node
    return units.held_bytes * (1.0 / local - units.cold_share), units.held_bytes * (1.0 - units.cold_share)


def choose(
    units: Units, saved: tuple[Floats, Floats], added: tuple[Floats, Floats], free_bytes: float, tables: int
) -> RowTiers:
    """Choose tiers within ``free_bytes`` a device, by the greedy rule; ``saved`` are ``benefits``, in seconds.

    Rows of the last run that does not fit whole are taken as far as there is room.
    """
    (warm, hot), (warm_bytes, hot_bytes) = saved, added
    warm_density = np.where(units.warm & (warm > 0), warm / np.maximum(warm_bytes, 1e-300), -np.inf)
    rest = np.where(hot > 0, hot - np.maximum(warm, 0.0), -np.inf)
    rest_density = rest / np.maximum(hot_bytes - warm_bytes, 1e-300)
    in_two = np.isfinite(warm_density) & (warm_density > rest_density)
    direct = np.where(in_two, -np.inf, np.where(hot > 0, hot / np.maximum(hot_bytes, 1e-300), -np.inf))
    # Three kinds of step: cold to warm, warm to hot, cold to hot.
    density = np.concatenate([np.where(in_two, warm_density, -np.inf), np.where(in_two, rest_density, -np.inf), direct])
    step_bytes = np.concatenate([warm_bytes, hot_bytes - warm_bytes, hot_bytes])
    number = np.tile(units.number, 3)
    worth = np.flatnonzero(density > 0)
    order = worth[np.argsort(-density[worth], kind="stable")]
    ends = np.cumsum(step_bytes[order] * number[order])
    whole = int(np.searchsorted(ends, free_bytes, side="right")) if free_bytes > 0 else 0
    counts = np.zeros(len(density))
    counts[order[:whole]] = number[order[:whole]]
    if free_bytes > 0 and whole < len(order):
        room = free_bytes - (ends[whole - 1] if whole else 0.0)
        counts[order[whole]] = np.floor(room / step_bytes[order[whole]])
    to_warm, on, to_hot = (part * units.rows for part in np.split(counts, 3))
    hot_rows = np.bincount(units.table, weights=on + to_hot, minlength=tables)
    warm_rows = np.bincount(units.table, weights=to_warm - on, minlength=tables)
    return RowTiers(hot=np.rint(hot_rows).astype(np.int64), warm=np.rint(warm_rows).astype(np.int64))
