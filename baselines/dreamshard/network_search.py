"""Moves and swaps of whole tables under the learned cost network: no measurement, no randomness, counted work."""

from collections.abc import Sequence

import numpy as np

from shardbench.base.arrays import Bools, Floats32, Ints
from shardbench.base.errors import Infeasible
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import AnyTrained, on_arrays, one_thread

from .networks import LATENT, DreamShardPolicy
from .training import DreamShardTraining

RATED = 1_000_000
"""Placements that the network rates for a task at the most; a search is seldom longer than a tenth of it."""
CHUNK = 8192
"""Placements that are rated at once."""
GAIN = 1e-5
"""Relative improvement of a predicted cost below which it is rounding: weights are fp32."""


class NetworkSearch:
    """Descends from placements of one task; ``rated`` counts what the network was asked.

    A placement's predicted cost depends on the largest of its devices' sums, number by number: a change of two devices
    needs their new sums, and the largest of the others.
    """

    def __init__(self, trained: AnyTrained, task: TableSet, limit: int = RATED) -> None:
        self.task, self.limit, self.rated = task, limit, 0
        self._policy = policy = DreamShardPolicy(trained.networks, trained.scaling)
        self._encoded: Floats32 = np.ascontiguousarray(policy.encode(task.features)[:, LATENT:])
        self._empty: Floats32 = policy.empty[LATENT:]
        self._overall = trained.networks.cost.overall

    def cost_ms(self, placement: Ints) -> float:
        """Predict the cost of a placement int64 [tables]."""
        sums, counts = self._sums(placement)
        return float(self._predict(self._fill_empty(sums, counts).max(axis=0)[None])[0])

    def pack(self) -> Ints:
        """Place int64 [tables] by the network alone: dearest tables first, each where least is predicted.

        Of devices that make the same of the whole, which waits for the largest sums, the one that is cheapest itself.
        Raises Infeasible where a table has no room.
        """
        devices, sizes = self.task.devices, self.task.sizes_bytes
        sums, used_bytes = np.zeros((devices, LATENT), dtype=np.float32), np.zeros(devices, dtype=np.int64)
        occupied = np.tile(self._empty, (devices, 1))
        placement = np.full(len(self._encoded), -1, dtype=np.int64)
        alone = np.maximum(self._encoded, self._empty) if devices > 1 else self._encoded
        for table in np.argsort(-self._predict(alone), kind="stable").tolist():
            grown = sums + self._encoded[table]
            rest = _largest_of_others(occupied, occupied)
            whole, own = self._predict(np.maximum(grown, rest)), self._predict(grown)
            self.rated += devices
            full = used_bytes + sizes[table] > self.task.capacity_bytes
            if full.all():
                raise Infeasible(f"table {table} has no room on any device when it is its turn")
            device = int(np.lexsort((own, whole, full))[0])
            placement[table], used_bytes[device] = device, used_bytes[device] + sizes[table]
            sums[device] = occupied[device] = grown[device]
        return placement

    def descend(self, placement: Ints) -> Ints:
        """Find a placement int64 [tables] that fits and is predicted to cost no more than one that fits.

        One device after the other: the best of its moves and of its swaps with any other device, until no device has
        one that helps, or ``limit`` placements are rated.
        """
        best = placement.copy()
        best_ms, idle, giver = self.cost_ms(best), 0, 0
        while idle < self.task.devices and self.rated < self.limit:
            changed = self._best_change(best, giver, best_ms)
            changed_ms = best_ms if changed is None else self.cost_ms(changed)
            if changed is not None and changed_ms < best_ms:
                best, best_ms, idle = changed, changed_ms, 0
            else:
                idle, giver = idle + 1, (giver + 1) % self.task.devices
        return best

    def _sums(self, placement: Ints) -> tuple[Floats32, Ints]:
        """Give sums of encodings [devices, 32] and numbers of tables [devices]."""
        sums = np.zeros((self.task.devices, LATENT), dtype=np.float32)
        np.add.at(sums, placement, self._encoded)
        return sums, np.bincount(placement, minlength=self.task.devices)

    def _fill_empty(self, sums: Floats32, counts: Ints) -> Floats32:
        """Put the sum of an empty device, [..., 32], where a device holds no tables."""
        return np.where(counts[..., None] > 0, sums, self._empty)

    def _predict(self, largest: Floats32) -> Floats32:
        """Predict milliseconds of placements by the largest sums of their devices, [n, 32] -> [n]."""
        return on_arrays(self._overall, largest).squeeze(-1)

    def _best_change(self, placement: Ints, giver: int, now_ms: float) -> Ints | None:
        """Find the cheapest placement by one move or swap of a table of ``giver``; None where none is cheaper."""
        giver_tables, other_tables = np.flatnonzero(placement == giver), np.flatnonzero(placement != giver)
        elsewhere = np.flatnonzero(np.arange(self.task.devices) != giver)
        # Moves first: nothing (-1) comes back.
        back = np.concatenate([np.full(len(elsewhere), -1), other_tables])
        to = np.concatenate([elsewhere, placement[other_tables]])
        if not len(giver_tables) or not len(to):
            return None
        best, change = now_ms * (1.0 - GAIN), None
        rows = max(1, CHUNK // len(to))
        for first in range(0, len(giver_tables), rows):
            out = giver_tables[first : first + rows]
            costs = self._rate(placement, giver, out, back, to)
            costs = np.where(self._fits(placement, giver, out, back, to), costs, np.inf).ravel()
            at = int(costs.argmin())
            if costs[at] < best:
                best, change = float(costs[at]), (int(out[at // len(to)]), at % len(to))
        if change is None:
            return None
        table, target = change
        changed = placement.copy()
        changed[table] = to[target]
        if back[target] >= 0:
            changed[back[target]] = giver
        return changed

    def _fits(self, placement: Ints, giver: int, out: Ints, back: Ints, to: Ints) -> Bools:
        """Tell whether both devices have room afterwards, [out, to]."""
        sizes, capacity = self.task.sizes_bytes, self.task.capacity_bytes
        used_bytes = np.zeros(self.task.devices, dtype=np.int64)
        np.add.at(used_bytes, placement, sizes)
        grown = sizes[out][:, None] - np.where(back >= 0, sizes[back], 0)
        return np.asarray((used_bytes[to] + grown <= capacity) & (used_bytes[giver] - grown <= capacity))

    def _rate(self, placement: Ints, giver: int, out: Ints, back: Ints, to: Ints) -> Floats32:
        """Predict the cost of each change, [out, to]."""
        sums, counts = self._sums(placement)
        occupied = self._fill_empty(sums, counts)
        rest = _largest_of_others(occupied, np.delete(occupied, giver, axis=0))
        swaps = back >= 0
        returned = np.where(swaps[:, None], self._encoded[back], np.float32(0.0))
        leaves = self._encoded[out][:, None]
        giver_sums = self._fill_empty(
            sums[giver] + returned - leaves, np.broadcast_to(counts[giver] - 1 + swaps, (len(out), len(to)))
        )
        # Whoever gets a table has one.
        target_sums = sums[to] - returned + leaves
        largest = np.maximum(np.maximum(giver_sums, target_sums), rest[to])
        self.rated += len(out) * len(to)
        return self._predict(largest.reshape(-1, LATENT)).reshape(len(out), len(to))


def _largest_of_others(occupied: Floats32, among: Floats32) -> Floats32:
    """Find the largest of ``among`` [some devices, 32] but itself for each device, number by number, [devices, 32]."""
    ranked = np.sort(among, axis=0)
    second = ranked[-2] if len(ranked) > 1 else np.full(LATENT, -np.inf, dtype=np.float32)
    return np.where(occupied >= ranked[-1], second, ranked[-1])


@one_thread()
def place_and_search(trained: AnyTrained, tasks: Sequence[TableSet]) -> tuple[list[Ints], int]:
    """Improve the policy's placements int64 [tables] a task under the cost network; gives what that rated in all too.

    Raises Infeasible as ``place`` does.
    """
    placements, ratings = [], 0
    for task, placement in zip(tasks, DreamShardTraining.place(trained, tasks)):
        search = NetworkSearch(trained, task)
        placements.append(search.descend(placement))
        ratings += search.rated
    return placements, ratings
