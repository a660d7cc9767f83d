"""How well AutoShard's cost network predicts."""

from typing import Any

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task, one_hot
from shardbench.learned.training import Trained

from ..networks import AutoShardNetworks
from ..policy import AutoShardPolicy
from ..rewards import kernel_ms


def kernel_errors(trained: Trained[AutoShardNetworks, Any, Any], task: Task, placements: Ints) -> Floats:
    """Give relative errors of the predicted kernel ms of every device with tables, one after the other."""
    policy = AutoShardPolicy(trained.networks, trained.scaling)
    holds = one_hot(placements, task.devices).astype(np.float32)
    sums = holds @ policy.encode(task.features) + policy.dummy
    predicted = policy.device_ms(sums.reshape(-1, sums.shape[-1]))
    true = kernel_ms(SimulatedOracle().measure(task, placements)).reshape(-1)
    busy = true > 0.0
    return np.asarray(predicted[busy] / true[busy] - 1.0, dtype=np.float64)
