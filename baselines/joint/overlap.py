"""What of the step goes on beside other phases: the cost model's rule, for sums and for whole arrays of candidates."""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.bounds.step import dense_all_reduce_s, expected_dense_s
from shardbench.cost.costmodel import hides_all_reduce
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, StepSchedule

Ms = Floats | float
"""Milliseconds, of one plan or of many candidates."""


class Overlap:
    """The schedule of a problem, and the dense model beside which exchanges go on."""

    def __init__(self, problem: Problem, shape: DenseShape) -> None:
        self.hides = hides_all_reduce(problem.machine)
        self.pipelined = problem.schedule is StepSchedule.PIPELINED
        self.reduced_ms = 1e3 * dense_all_reduce_s(problem, shape)
        """Milliseconds of the all-reduce of the dense model's gradients."""
        self.dense_ms = 1e3 * expected_dense_s(problem, shape)

    @property
    def input_waits(self) -> bool:
        """True where the exchange of lookups may be hidden whole."""
        return self.pipelined and self.hides

    def hidden_reduced_ms(self, replicas: Ms, beside: Ms) -> Ms:
        """Return what of the all-reduces of ``replicas`` and of the dense model the backward pass hides."""
        return np.minimum(replicas + self.reduced_ms, beside) if self.hides else 0.0

    def hidden_input_ms(
        self, waits: Ms, sources: Ms, *, kernels: Ms, linked: Ms, hidden_reduced: Ms, called: float = 0.0
    ) -> Ms:
        """Return what a pipeline hides of the exchange of lookups, ``waits``, and of placing them, ``sources``.

        ``kernels`` are those of a step without the dense model's, ``linked`` its other exchanges and all-reduces of
        rows, ``called`` the part of ``waits`` that is latency.
        """
        if not self.pipelined:
            return 0.0
        busy, linked = kernels + self.dense_ms, linked + self.reduced_ms
        if not self.hides:
            return np.minimum(called, busy)
        step, ahead, idle = busy + linked - hidden_reduced, waits + sources, linked - hidden_reduced
        free = np.maximum(step - linked, 0.0)
        exposed = np.maximum(np.maximum(sources - idle, waits - free), np.maximum(ahead - step, 0.0))
        return ahead - exposed
