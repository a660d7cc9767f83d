"""REINFORCE on the oracle's costs of placements, one task an update, with a moving average as baseline."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats
from shardbench.learned.episodes import Placing
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training, UpdateNumbers

from . import RnnPlacer
from .decoder import place as place_tables
from .decoder import play
from .networks import RnnNetworks
from .settings import RnnSettings


def reinforce_loss(
    networks: RnnNetworks, scaled: Tensor, placing: Placing, advantages: Floats, entropy_weight: float
) -> Tensor:
    """Compute REINFORCE's loss of episodes of a task: mean of episodes, sum of steps; ``scaled`` [tables, 21] in order.

    Probabilities are over the devices with room, as when acting. Episodes of no advantage that
    failed count neither way.
    """
    chosen = torch.from_numpy(placing.chosen)
    logits = networks.logits(networks.encode(scaled[None]), chosen, placing.legal_at.shape[2])
    legal = torch.from_numpy(placing.legal_at)
    log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(dim=2)
    placement_log_p = log_p.gather(2, chosen[:, :, None]).squeeze(2).sum(1)
    # Probability zero times its infinite logarithm would be no number.
    entropy = -(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum((1, 2))
    is_used = torch.from_numpy(~placing.failed).float()
    weight = torch.from_numpy(advantages).float()
    return -((placement_log_p * weight + entropy_weight * entropy) * is_used).mean()


class RnnTraining(Training[RnnNetworks, RnnSettings]):
    """Every update samples placements of one task and has them all measured."""

    strategy = RnnPlacer
    settings_type = RnnSettings
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: RnnSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        self.average: Floats = np.full(len(tasks), np.nan)
        """Moving average of each task's returns; NaN before the first."""

    def draw(self) -> RnnNetworks:
        """Draw encoder and decoder, with output layers for the tasks' numbers of devices."""
        return RnnNetworks((task.devices for task in self.tasks), self.seed)

    def update(self) -> UpdateNumbers:
        """Sample placements of a random task, have them measured, and learn from that; tells their mean cost."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task = self.tasks[number]
        scaled, order = self.scaling(task.features), np.arange(task.tables)
        placing = play(self.networks, task, scaled, order, episodes=self.settings.episodes, rng=self.rng)
        if placing.failed.all():
            return {"measured_ms": None}
        advantages, measured_ms = self.measure(number, placing)
        tables = torch.from_numpy(scaled[order])
        self.descend(reinforce_loss(self.networks, tables, placing, advantages, self.settings.entropy_weight))
        return {"measured_ms": measured_ms}

    def measure(self, number: int, placing: Placing) -> tuple[Floats, float]:
        """Measure episodes of a task, some of which did not fail; gives their advantages [E] and mean cost, ms.

        An advantage is minus the cost's root, over the task's average, and 0 of an episode that failed.
        """
        failed = placing.failed
        placements = np.stack(placing.placements())[~failed]
        costs_ms = self.oracle.measure(self.tasks[number], placements).overall_ms  # deviation 2
        self.calls += len(placements)
        # The root of the running time is what device placement by REINFORCE used (ICML 2017).
        returns = -np.sqrt(costs_ms)
        if np.isnan(self.average[number]):
            self.average[number] = returns.mean()
        advantages = np.zeros(len(failed))
        advantages[~failed] = returns - self.average[number]
        decay = self.settings.decay
        self.average[number] = decay * self.average[number] + (1.0 - decay) * returns.mean()
        return advantages, float(costs_ms.mean())
