"""Kernel times from ten numbers a device that add up over pieces: the cost model's, bags counted as well.

The copies before and after a kernel lengthen the step as its work does, so that they count as work.
"""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.kernel_numbers import KernelNumbers
from shardbench.cost.load import Load
from shardbench.model.machine import Constants

NUMBERS = 10
"""The numbers of ``KernelNumbers`` for all kinds of repeats and for sequences, and last the bags: without any nothing
runs."""
NONE = 1e-6
"""Bags below which a device has none: what rounding leaves of pieces that were taken away."""


class PieceKernels:
    """The times of pieces' kernels and of the copies around them on a machine."""

    def __init__(self, constants: Constants) -> None:
        self._numbers = KernelNumbers(constants, placing=True)
        self._launch, self._dispatch = 1e3 * constants.launch_s, 1e3 * constants.dispatch_s
        self._backward_launch = 1e3 * constants.backward_launch_s

    def numbers(self, load: Load) -> Floats:
        """Return ten numbers of loads, [..., NUMBERS]; raises BadInput for counted loads, which have a longest bag."""
        return np.stack([*self._numbers.of(load), load.bags], axis=-1)

    def work_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return milliseconds of forward and of backward work, without launch and dispatch, [...] each."""
        forward, backward = self._numbers.work_s(numbers.T[:-1])
        return 1e3 * forward.T, 1e3 * backward.T

    def times_ms(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return milliseconds of devices' forward and backward kernels and copies; zero without a bag.

        ``numbers`` are [NUMBERS, ...], what is returned [...] each.
        """
        forward, backward = self._numbers.work_s(numbers[:-1])
        busy = numbers[-1] > NONE
        return (
            np.maximum(self._dispatch, self._launch + 1e3 * forward) * busy,
            (self._backward_launch + 1e3 * backward) * busy,
        )
