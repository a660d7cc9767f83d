"""REINFORCE on the oracle's costs of placements, one task an update, with a moving average as baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training

from .decoder import RnnEpisodes, play
from .decoder import place as place_tables
from .networks import RnnNetworks
from .settings import RnnSettings


@dataclass(frozen=True, kw_only=True)
class RnnStage:
    """What happened since the stage before."""

    updates: int
    """Updates that were made so far."""
    measured_ms: float | None
    """Mean cost of the placements measured; None if none fitted."""
    failed: int
    """Sampled placements that found no room for a table."""


def reinforce_loss(
    networks: RnnNetworks, scaled: Tensor, episodes: RnnEpisodes, advantages: Floats, entropy_weight: float
) -> Tensor:
    """Compute REINFORCE's loss of episodes of a task: mean of episodes, sum of steps; ``scaled`` [tables, 21] in order.

    Probabilities are over the devices with room, as when acting. Episodes of no advantage that
    failed count neither way.
    """
    placing = episodes.placing
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


class RnnTraining(Training[RnnNetworks, RnnSettings, RnnStage]):
    """Every update samples placements of one task and has them all measured."""

    kind = "rnn-rl"
    version = 4
    settings_type = RnnSettings
    stage_type = RnnStage
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: RnnSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        self.average: Floats = np.full(len(tasks), np.nan)
        """Moving average of each task's returns; NaN before the first."""
        self._costs_ms: list[float] = []
        self._failed = 0

    def draw(self, seed: int) -> RnnNetworks:
        """Draw encoder and decoder, with output layers for the tasks' numbers of devices."""
        return RnnNetworks((task.devices for task in self.tasks), seed)

    def update(self) -> None:
        """Sample placements of a random task, have them measured, and learn from that."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task = self.tasks[number]
        scaled, order = self.scaling(task.features), np.arange(task.tables)
        episodes = play(self.networks, task, scaled, order, episodes=self.settings.episodes, rng=self.rng)
        advantages = self.measure(number, episodes)
        if not episodes.placing.failed.all():
            tables = torch.from_numpy(scaled[order])
            self.descend(reinforce_loss(self.networks, tables, episodes, advantages, self.settings.entropy_weight))

    def measure(self, number: int, episodes: RnnEpisodes) -> Floats:
        """Measure episodes; gives their advantages [E]: minus the cost's root, over the task's average; 0 if failed."""
        task, failed = self.tasks[number], episodes.placing.failed
        self._failed += int(failed.sum())
        advantages = np.zeros(len(failed))
        if failed.all():
            return advantages
        placements = np.stack(episodes.placing.placements())[~failed]
        costs_ms = self.oracle.measure(task, placements).overall_ms  # deviation 2
        self.calls += len(placements)
        self._costs_ms += costs_ms.tolist()
        # The root of the running time is what device placement by REINFORCE used (ICML 2017).
        returns = -np.sqrt(costs_ms)
        if np.isnan(self.average[number]):
            self.average[number] = returns.mean()
        advantages[~failed] = returns - self.average[number]
        decay = self.settings.decay
        self.average[number] = decay * self.average[number] + (1.0 - decay) * returns.mean()
        return advantages

    def stage(self) -> RnnStage:
        """Average what happened since the stage before."""
        mean_ms = float(np.mean(self._costs_ms)) if self._costs_ms else None
        stage = RnnStage(updates=self.updates, measured_ms=mean_ms, failed=self._failed)
        self._costs_ms, self._failed = [], 0
        return stage

    def state(self) -> dict[str, Any]:
        """Give the moving averages."""
        return {"average": torch.from_numpy(self.average)}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Set what ``state`` gave."""
        self.average = state["average"].numpy()
