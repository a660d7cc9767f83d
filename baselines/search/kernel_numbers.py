"""The few numbers a table that a device's kernel time depends on: they add up, and the time is exact in their sums."""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import backward_work_s, forward_work_s, gather_rate
from shardbench.cost.load import Load, TierRows, in_uvm
from shardbench.model.machine import Constants

TINY = 1e-300
"""Keeps nothing over nothing at zero."""


class KernelNumbers:
    """``values`` float64 [numbers, tiers, tables] of each table in HBM and, with ``uvm``, in host memory.

    The cost model's work is linear but for the repeats that the cache serves and a CPU's map of sequences' rows. So a
    table has the seconds of its forward and of its backward work as if every repeat missed, and for each kind of repeat
    that a cache may serve its bytes and bytes times working set. Kinds that no table has, or that no cache makes
    faster, are left out: of pooled tables in the HBM of a device with a cache, six numbers remain.
    """

    def __init__(self, loads: Load, constants: Constants, *, uvm: bool) -> None:
        """``loads`` [tables] are each table's alone in HBM; raises BadInput for counted ones: tails are maxima."""
        if loads.longest_bag.any():
            raise BadInput("kernel numbers add up; the longest bag does not: give expected loads")
        self.constants = constants
        tiers = Load(np.stack([loads.values, in_uvm(loads).values]) if uvm else loads.values[None])
        self.reach = constants.cache_reach_ratio * constants.cache_bytes
        forward, backward = forward_work_s(tiers, constants), backward_work_s(tiers, constants)
        numbers: list[Floats] = []
        self._saved: list[tuple[bool, float, int]] = []
        for is_forward, rate, repeats, sets in self._repeats(tiers):
            gain = self.reach * (1.0 / rate - 1.0 / max(constants.cache_bytes_per_s, rate))
            if not gain or not repeats.any():
                continue
            if is_forward:
                forward += gain * self._hits(repeats, sets)
            else:
                backward += gain * self._hits(repeats, sets)
            self._saved.append((is_forward, gain, 2 + len(numbers)))
            numbers += [repeats, sets]
        self._sequences = bool(constants.sequence_row_s and tiers.sequence_rows.any())
        if self._sequences:
            backward -= self._sequences_s(tiers.sequence_rows)
            numbers.append(np.asarray(tiers.sequence_rows))
        self.values: Floats = np.stack([forward, backward, *numbers])

    def _repeats(self, tiers: Load) -> list[tuple[bool, float, Floats, Floats]]:
        """Whether forward, rate without the cache, bytes again and bytes times working set of each kind of repeat."""
        constants, rate = self.constants, gather_rate(self.constants)

        def again(rows: TierRows) -> Floats:
            return np.maximum(rows.lookup_bytes - rows.distinct_bytes, 0.0)

        gradients = tiers.gradient_bytes - tiers.gradient_first_bytes
        return [
            (True, rate, again(tiers), tiers.repeat_set_bytes2),
            (True, constants.uvm_bytes_per_s, again(tiers.uvm), tiers.uvm.repeat_set_bytes2),
            (False, rate, gradients, tiers.gradient_set_bytes2),
        ]

    def ms(self, sums: Floats) -> Floats:
        """Milliseconds of devices with these sums, [numbers, ...] -> [...]: ``embedding_ms`` of their loads.

        A device without a bag counts as one with launches and no work: some other one is slower, or none has any bag.
        """
        launch = self.constants.launch_s
        forward, backward = self._work_s(sums)
        forward += launch
        np.maximum(forward, self.constants.dispatch_s, out=forward)
        forward += backward
        forward += launch
        forward *= 1e3
        return forward

    def work_ms(self, sums: Floats) -> Floats:
        """The same without launches and dispatch: the part that tables on one device share the time of."""
        forward, backward = self._work_s(sums)
        return np.asarray(1e3 * (forward + backward))

    def _work_s(self, sums: Floats) -> tuple[Floats, Floats]:
        forward, backward = sums[0].copy(), sums[1].copy()
        for is_forward, gain, at in self._saved:
            saved = self._hits(sums[at], sums[at + 1])
            saved *= gain
            if is_forward:
                forward -= saved
            else:
                backward -= saved
        if self._sequences:
            backward += self._sequences_s(sums[-1])
        return forward, backward

    def _hits(self, repeats: Floats, sets: Floats) -> Floats:
        """Bytes again that hit, over the cache's reach: r / (reach + s / r), whose share is ``hit_share``."""
        under = self.reach * repeats
        under += sets
        under += TINY
        hits = repeats * repeats
        hits /= under
        return hits

    def _sequences_s(self, rows: Floats) -> Floats:
        constants = self.constants
        return np.asarray(constants.sequence_row_s * rows * rows / (rows + constants.sequence_half_rows + TINY))

    def working_sets(self) -> tuple[Floats, Floats]:
        """Mean working set, in bytes, of each table's repeated rows and of its repeated gradients, [tiers, tables]."""
        rows, gradients = np.zeros_like(self.values[0]), np.zeros_like(self.values[0])
        for is_forward, _, at in self._saved:
            found = self.values[at + 1] / (self.values[at] + TINY)
            (rows if is_forward else gradients)[...] += found
        return rows, gradients
