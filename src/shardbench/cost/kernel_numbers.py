"""Computes the few numbers of a load that its kernel time depends on: they add up, and the time is exact in their sums.

The cost model's work is linear but for the repeats that the cache serves and a CPU's map of sequences' rows. So a load
has the seconds of its forward and of its backward work as if every repeat missed, and for each kind of repeat that a
cache may serve its bytes and bytes times working set; last, where it matters, distinct rows of sequences.
"""

from collections.abc import Collection

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import (
    backward_work_s,
    forward_work_s,
    gather_rate,
    gradient_rate,
    placing_backward_s,
    placing_forward_s,
    reach,
)
from shardbench.cost.load import Load, TierRows
from shardbench.model.machine import Constants

TINY = 1e-300
"""A number that keeps nothing over nothing at zero."""
FORWARD, BACKWARD, FIRST = 0, 1, 2
HBM, UVM, GRADIENTS = range(3)
"""The kinds of repeats: rows in HBM and in host memory, gradients."""


class KernelNumbers:
    """The numbers of loads by a machine's constants, and the time of their sums."""

    def __init__(
        self,
        constants: Constants,
        kinds: Collection[int] = (HBM, UVM, GRADIENTS),
        *,
        sequences: bool = True,
        placing: bool = False,
    ) -> None:
        """``kinds`` of repeats and, with ``sequences``, distinct rows of sequences: loads must have no others.

        With ``placing`` the works have the time to put things in place before and after the kernels.
        """
        self.constants, self._sequences, self._placing = constants, sequences, placing
        self.reach = reach(constants)
        work_and_rate = {
            HBM: (FORWARD, gather_rate(constants)), UVM: (FORWARD, constants.uvm_bytes_per_s),
            GRADIENTS: (BACKWARD, gradient_rate(constants)),
        }  # fmt: skip
        self._kinds = sorted(kinds)
        self._works = [work_and_rate[kind][0] for kind in self._kinds]
        rates = np.array([work_and_rate[kind][1] for kind in self._kinds])
        # The cache is never slower than what is behind it.
        self._gains = self.reach * (1.0 / rates - 1.0 / np.maximum(constants.cache_bytes_per_s, rates))
        if constants.uvm_hit_ratio is not None and UVM in self._kinds:
            # The same share of every table's repeats: work, which adds up.
            self._gains[self._kinds.index(UVM)] = 0.0
        """Seconds a byte of ``_hits``, [kinds]."""
        number = len(self._kinds)
        self._repeated, self._sets = slice(FIRST, FIRST + number), slice(FIRST + number, FIRST + 2 * number)
        self.count = FIRST + 2 * number + sequences

    @classmethod
    def needed(cls, load: Load, constants: Constants) -> "KernelNumbers":
        """Return fewest numbers that these loads need: six for pooled tables in the HBM of a device with a cache."""
        every = cls(constants)
        repeats, _ = every._repeats(load)
        kinds = [kind for kind, gain in enumerate(every._gains) if gain and repeats[kind].any()]
        return cls(constants, kinds, sequences=bool(constants.sequence_row_s and load.sequence_rows.any()))

    def of(self, load: Load) -> Floats:
        """Return numbers of loads [...], float64 [count, ...]; raises BadInput for counted ones: tails are maxima."""
        if load.chain.any():
            raise BadInput("kernel numbers add up; the longest bag does not: give expected loads")
        works = [forward_work_s(load, self.constants), backward_work_s(load, self.constants)]
        if self._placing:
            works[FORWARD] += placing_forward_s(load, self.constants)
            works[BACKWARD] += placing_backward_s(load, self.constants)
        repeats, sets = self._repeats(load)
        for work, saving in zip(self._works, self._savings_s(repeats, sets)):
            works[work] += saving
        rows = [np.asarray(load.sequence_rows)] if self._sequences else []
        if self._sequences:
            works[BACKWARD] -= self._sequences_s(load.sequence_rows)
        return np.stack([*works, *repeats, *sets, *rows])

    def _repeats(self, load: Load) -> tuple[Floats, Floats]:
        """Return the bytes read again, and those bytes times their working set, [kinds, ...] each."""

        def again(rows: TierRows) -> Floats:
            return np.maximum(rows.lookup_bytes - rows.distinct_bytes, 0.0)

        gradients = load.gradient_bytes - load.gradient_first_bytes
        repeats = np.stack([again(load), again(load.uvm), gradients])
        sets = np.stack([load.repeat_set_bytes2, load.uvm.repeat_set_bytes2, load.gradient_set_bytes2])
        return repeats[self._kinds], sets[self._kinds]

    def ms(self, sums: Floats) -> Floats:
        """Return the milliseconds of devices with these sums, [count, ...] -> [...]: ``embedding_ms`` of their loads.

        A device without a bag counts as one with launches and no work: some other one is slower, or none has any bag.
        """
        forward, backward = self.work_s(sums)
        forward += self.constants.launch_s
        np.maximum(forward, self.constants.dispatch_s, out=forward)
        forward += backward
        forward += self.constants.backward_launch_s
        forward *= 1e3
        return forward

    def work_ms(self, sums: Floats) -> Floats:
        """Return milliseconds without launches and dispatch, [...]: the part whose time tables on a device share."""
        forward, backward = self.work_s(sums)
        return np.asarray(1e3 * (forward + backward))

    def work_s(self, sums: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of forward and of backward work, without launches and dispatch, [...] each."""
        works = sums[FORWARD].copy(), sums[BACKWARD].copy()
        for work, saving in zip(self._works, self._savings_s(sums[self._repeated], sums[self._sets])):
            works[work][...] -= saving
        if self._sequences and self.constants.sequence_row_s:
            works[BACKWARD][...] += self._sequences_s(sums[-1])
        return works

    def _savings_s(self, repeats: Floats, sets: Floats) -> Floats:
        """Return the seconds that the cache saves of each kind, [kinds, ...].

        Bytes again that hit, over the cache's reach, are r / (reach + s / r), whose share is ``hit_share``.
        """
        under = self.reach * repeats
        under += sets
        under += TINY
        saving = repeats * repeats
        saving /= under
        saving *= self._gains.reshape(-1, *(1,) * (repeats.ndim - 1))
        return saving

    def _sequences_s(self, rows: Floats) -> Floats:
        constants = self.constants
        return np.asarray(constants.sequence_row_s * rows * rows / (rows + constants.sequence_half_rows + TINY))

    def working_sets(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return mean working set, in bytes, of repeated rows and of repeated gradients, [count, ...] -> [...] each."""
        sets_of_work = np.zeros_like(numbers[FORWARD]), np.zeros_like(numbers[BACKWARD])
        for work, repeats, sets in zip(self._works, numbers[self._repeated], numbers[self._sets]):
            sets_of_work[work][...] += sets / (repeats + TINY)
        return sets_of_work
