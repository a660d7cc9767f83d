"""Kernel times from ten numbers a device that add up over pieces: the cost model's, without the terms of counted bags.

A repeat is read from the cache with probability C / (C + W), W being Q / R, the mean working set of the device's
repeats. Over R repeated bytes that is C R R / (C R + Q) bytes, so that a kernel's time is a sum of linear terms less
(1 / rate - 1 / cache rate) times this, for rows in HBM, rows in host memory and gradients: all that does not add up.
"""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.costmodel import backward_work_s, forward_work_s, gather_rate
from shardbench.cost.load import Load
from shardbench.model.machine import Constants

FORWARD, BACKWARD, SEQUENCE_ROWS, BAGS = range(4)
"""Milliseconds as if no repeat met the cache, twice; distinct rows of unpooled tables; bags."""
REPEATS, SETS = slice(4, 7), slice(7, 10)
"""Repeated bytes of HBM, host memory and gradients, and what they are worth in working sets (bytes2)."""
NUMBERS = 10
NONE = 1e-6
"""Bags below which a device has none: what rounding leaves of pieces that were taken away."""
TINY = 1e-30


class Kernels:
    """The kernel times of a machine."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.reach = constants.cache_reach_ratio * constants.cache_bytes
        rates = np.array([gather_rate(constants), constants.uvm_bytes_per_s, gather_rate(constants)])
        # The cache is never slower than what is behind it.
        self._saved = 1e3 * (1.0 / rates - 1.0 / np.maximum(constants.cache_bytes_per_s, rates))
        self._launch, self._dispatch = 1e3 * constants.launch_s, 1e3 * constants.dispatch_s

    def numbers(self, load: Load) -> Floats:
        """The ten numbers of loads, [..., NUMBERS]; a load's longest bag must be unknown (0)."""
        found = np.zeros((*load.bags.shape, NUMBERS))
        for at, (rows, sets) in enumerate(
            (
                (load.lookup_bytes - load.distinct_bytes, load.repeat_set_bytes2),
                (load.uvm.lookup_bytes - load.uvm.distinct_bytes, load.uvm.repeat_set_bytes2),
                (load.gradient_bytes - load.gradient_first_bytes, load.gradient_set_bytes2),
            )
        ):
            found[..., REPEATS.start + at] = np.maximum(rows, 0.0)
            found[..., SETS.start + at] = sets
        found[..., SEQUENCE_ROWS], found[..., BAGS] = load.sequence_rows, load.bags
        cached = self._cached(found)
        own = self._sequences(found[..., SEQUENCE_ROWS])
        found[..., FORWARD] = 1e3 * forward_work_s(load, self.constants) + cached[..., 0] + cached[..., 1]
        found[..., BACKWARD] = 1e3 * backward_work_s(load, self.constants) + cached[..., 2] - own
        return found

    def _cached(self, numbers: Floats) -> Floats:
        """Milliseconds that the cache saves, [..., 3]."""
        repeats = numbers[..., REPEATS]
        return np.asarray(self._saved * repeats * repeats / (repeats + numbers[..., SETS] / self.reach + TINY))

    def _sequences(self, rows: Floats) -> Floats | float:
        if self.constants.sequence_row_s == 0.0:
            return 0.0
        return 1e3 * self.constants.sequence_row_s * rows * rows / (rows + self.constants.sequence_half_rows + TINY)

    def work_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Forward and backward without launch and dispatch, [...] each."""
        cached = self._cached(numbers)
        forward = numbers[..., FORWARD] - cached[..., 0] - cached[..., 1]
        backward = numbers[..., BACKWARD] - cached[..., 2] + self._sequences(numbers[..., SEQUENCE_ROWS])
        return np.asarray(forward), np.asarray(backward)

    def times_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Forward and backward of devices, [...] each; zero where one has no bag."""
        forward, backward = self.work_ms(numbers)
        busy = numbers[..., BAGS] > NONE
        return (
            np.where(busy, np.maximum(self._dispatch, self._launch + forward), 0.0),
            np.where(busy, self._launch + backward, 0.0),
        )
