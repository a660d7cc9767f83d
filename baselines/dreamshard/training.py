"""DreamShard's training: measure a few placements, fit the cost network, improve the policy on its estimates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from shardbench.base.arrays import Floats, Floats32
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training, UpdateNumbers

from . import DreamShard
from .estimated_mdp import DreamShardPolicy, play
from .estimated_mdp import place as place_tables
from .measured_placements import MeasuredPlacements
from .networks import DreamShardNetworks
from .regression import learn_costs
from .reinforce import policy_loss
from .settings import DreamShardSettings

SCORED = ("rows", "pooling", "size_gib")


class DreamShardTraining(Training[DreamShardNetworks, DreamShardSettings]):
    """An iteration is one update; where no sampled placement ever fits, the networks stay untrained."""

    strategy = DreamShard
    settings_type = DreamShardSettings
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: DreamShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        self.scaled: Floats32 = self.scaling(self.catalogue.features)  # deviations 2 and 3
        self.measured = MeasuredPlacements(self.catalogue, max(task.devices for task in tasks))

    def scaling_of(self, features: Floats) -> Scaling:
        """Leave the width raw, as published: where tables are alike it tells how many a device holds (deviation 2)."""
        scaling = Scaling.fit(features, SCORED)
        mean_width = self.settings.mean_width
        if mean_width is None:
            return scaling
        return replace(scaling, spread=(float(features[:, 0].mean()) / mean_width, *scaling.spread[1:]))

    def draw(self) -> DreamShardNetworks:
        """Draw the cost network and the policy."""
        return DreamShardNetworks(self.seed)

    def update(self) -> UpdateNumbers:
        """Make one iteration: measure, fit the cost network, improve the policy.

        It tells the mean cost of the placements that it measured, drawn from the policy before its updates, and the
        cost network's mean loss over the iteration's last tenth of updates, ms^2.
        """
        measured_ms = self._collect()
        losses: list[float] = []
        # Without any cost known, estimates mean nothing: the policy stays as it is until a placement fits.
        if len(self.measured):
            losses = self._fit()
            for _ in range(self.settings.policy_updates):
                self._improve()
        last = losses[-max(1, len(losses) // 10) :]
        return {"measured_ms": measured_ms, "cost_loss": float(np.mean(last)) if last else None}

    def _collect(self) -> float | None:
        """Measure sampled placements of random tasks; gives their mean cost, if any of them fits."""
        chosen = self.rng.integers(0, len(self.tasks), self.settings.measured)
        policy = DreamShardPolicy(self.networks, self.scaling)
        catalogue = policy.encode(self.catalogue.features)
        encodings = [catalogue[self.catalogue.rows[i]] for i in chosen]
        orders = [policy.order(encoded) for encoded in encodings]
        tasks = [self.tasks[i] for i in chosen]
        placing = play(policy, tasks, encodings, orders, self.rng).placing
        costs_ms = []
        for number, task, placement, failed in zip(chosen.tolist(), tasks, placing.placements(), placing.failed):
            if not failed:
                costs = self.oracle.measure(task, placement[None])
                self.measured.add(number, placement, costs)
                costs_ms.append(float(costs.overall_ms[0]))
        self.calls += len(costs_ms)
        return float(np.mean(costs_ms)) if costs_ms else None

    def _fit(self) -> list[float]:
        """Fit the cost network to everything that was measured; gives each update's loss."""
        shape = (self.settings.cost_updates, self.settings.cost_batch)
        return learn_costs(self.networks.cost, self.adam, self.measured, self.scaled, shape=shape, rng=self.rng)

    def _improve(self) -> None:
        """Update the policy on the estimated costs of one random task."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task, rows = self.tasks[number], self.catalogue.rows[number]
        policy = DreamShardPolicy(self.networks, self.scaling)
        encoded = policy.encode(task.features)
        order = policy.order(encoded)
        count = self.settings.episodes
        episodes = play(policy, [task] * count, [encoded] * count, [order] * count, self.rng)
        empty_ms = policy.device_ms(policy.empty[None])[0]
        tables = torch.from_numpy(self.scaled[rows[order]])
        self.descend(policy_loss(self.networks.policy, tables, episodes, empty_ms, self.settings.entropy_weight))
