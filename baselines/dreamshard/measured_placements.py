"""Measured placements that the cost network learns from, as table sets over one catalogue of tables."""

import numpy as np

from shardbench.base.arrays import Bools, Floats32, Ints
from shardbench.learned.tasks.oracle import Costs
from shardbench.learned.training import Catalogue


class MeasuredPlacements:
    """A buffer that only grows: which tables every device held, and what it cost.

    ``holds`` float32 [placements, devices, catalogue + 1] counts tables; the last column is the row
    of zeros that stands for an empty device. ``device_ms`` float32 [placements, devices, 3] and
    ``overall_ms`` float32 [placements] are the targets; ``real`` bool [placements, devices] is False
    where a placement has fewer devices than the widest task.
    """

    def __init__(self, catalogue: Catalogue, devices: int) -> None:
        self._columns = len(catalogue) + 1
        self._rows = catalogue.rows
        self.holds: Floats32 = np.zeros((0, devices, self._columns), dtype=np.float32)
        self.device_ms: Floats32 = np.zeros((0, devices, 3), dtype=np.float32)
        self.overall_ms: Floats32 = np.zeros(0, dtype=np.float32)
        self.real: Bools = np.zeros((0, devices), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.overall_ms)

    def add(self, task: int, placement: Ints, costs: Costs) -> None:
        """Append one placement int [tables] of a task number and its costs [1, devices]."""
        wide, devices = self.holds.shape[1], costs.device_ms.shape[1]
        holds = np.zeros((wide, self._columns), dtype=np.float32)
        np.add.at(holds, (placement, self._rows[task]), 1.0)
        holds[holds.sum(axis=1) == 0, -1] = 1.0
        targets = np.zeros((wide, 3), dtype=np.float32)
        # Of the two exchanges only the backward one has a head; the forward one is in the overall cost.
        columns = (costs.forward_ms[0], costs.backward_comm_ms[0], costs.backward_ms[0])
        targets[:devices] = np.stack(columns, axis=-1)
        self.holds = np.concatenate([self.holds, holds[None]])
        self.device_ms = np.concatenate([self.device_ms, targets[None]])
        self.overall_ms = np.append(self.overall_ms, np.float32(costs.overall_ms[0]))
        self.real = np.concatenate([self.real, (np.arange(wide) < devices)[None]])
