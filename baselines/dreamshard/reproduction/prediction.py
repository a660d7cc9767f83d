"""How well DreamShard's cost network predicts."""

from typing import Any

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task, one_hot
from shardbench.learned.training import Trained

from ..estimated_mdp import DreamShardPolicy
from ..networks import DreamShardNetworks


def cost_errors(trained: Trained[DreamShardNetworks, Any, Any], task: Task, placements: Ints) -> Floats:
    """Give relative errors of the predicted overall cost, [placements]."""
    policy = DreamShardPolicy(trained.networks, trained.scaling)
    holds = one_hot(placements, task.devices).astype(np.float32)
    sums = holds @ policy.encode(task.features)
    counts = holds.sum(axis=2).astype(np.int64)
    predicted = policy.overall_ms(sums, counts, np.ones(counts.shape, dtype=np.bool_))
    true = SimulatedOracle().measure(task, placements).overall_ms
    return np.asarray(predicted / true - 1.0, dtype=np.float64)
