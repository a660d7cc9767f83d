"""NeuroShard's pre-training: all cost data is collected first, then the three networks are fitted to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.learned.tasks.column_shards import augmented
from shardbench.learned.tasks.features import FEATURES, Scaling
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import Training, UpdateNumbers

from . import NeuroShard
from .cost_data import SET_TABLES, WIDTHS, Exchanges, TableSets, draw_exchanges, draw_sets, measure_sets
from .networks import INPUTS, NeuroShardNetworks
from .planning import place as place_tables
from .settings import NeuroShardSettings
from .shards import WIDTH, vectors

NETWORKS = ("compute", "forward_exchange", "backward_exchange")


class NeuroShardTraining(Training[NeuroShardNetworks, NeuroShardSettings]):
    """An epoch is an update; of each network the weights with the smallest validation error are kept."""

    strategy = NeuroShard
    settings_type = NeuroShardSettings
    place = staticmethod(place_tables)

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: NeuroShardSettings) -> None:
        super().__init__(tasks, oracle, seed, settings)
        check_alike(tasks)
        self.learning = self.draw()
        self.best = dict.fromkeys(NETWORKS, float("inf"))

    @cached_property
    def tables(self) -> Task:
        """Give every different table at every width."""
        return augmented(self.tasks, self.widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Give the published widths, and the tables' own."""
        own = {table.dim for task in self.tasks for table in task.problem.tables}
        return tuple(sorted({*WIDTHS, *own}))

    def scaling_of(self, features: Floats) -> Scaling:
        """Score all inputs by z over the augmented tables, the bins too."""
        widened = np.repeat(features, len(self.widths), axis=0)
        widened[:, WIDTH] = np.tile(self.widths, len(features))
        return Scaling.fit(widened, FEATURES)

    def draw(self) -> NeuroShardNetworks:
        """Draw all three, for the tasks' number of devices."""
        return NeuroShardNetworks(self.seed, self.tasks[0].devices)

    @cached_property
    def data(self) -> "CostData":
        """Draw all samples, from the seed alone."""
        rng = np.random.default_rng([self.seed, 3])
        most = max(SET_TABLES, *(-(-task.tables // task.devices) for task in self.tasks))
        return collect(self.tables, self.scaling, self.oracle, most=most, count=self.settings.samples, rng=rng)

    def update(self) -> UpdateNumbers:
        """Make one epoch of each network; tells the smallest mean squared error on the validation samples so far."""
        if not self.updates:
            self.calls += self.settings.samples
            self._scale()
        learned, validation = self.split()
        order = self.rng.permutation(learned)
        for first in range(0, len(order), self.settings.batch):
            losses = self.data.losses(self.learning, order[first : first + self.settings.batch])
            # One Adam for all: the networks share no weight, so that it is three.
            self.descend(torch.stack(list(losses.values())).sum())  # deviation 2
        with torch.no_grad():
            errors = {name: float(loss) for name, loss in self.data.losses(self.learning, validation).items()}
        for name, loss in errors.items():
            if loss < self.best[name]:
                self.best[name] = loss
                self.networks.get_submodule(name).load_state_dict(self.learning.get_submodule(name).state_dict())
        return {f"{name}_ms2": loss for name, loss in self.best.items()}

    def split(self) -> tuple[Ints, Ints]:
        """Give the numbers of the samples to learn from, and to choose the epoch by; the others are for tests."""
        learned = self.settings.learned_from
        return np.arange(learned), np.arange(learned, (learned + self.settings.samples) // 2)

    def _scale(self) -> None:
        """Set the scales of the exchanges' inputs to their means over the samples."""
        exchanges = self.data.exchanges
        width, late = float(exchanges.widths.mean()) or 1.0, float(exchanges.late_ms.mean()) or 1.0
        devices = self.learning.devices
        for networks in (self.learning, self.networks):
            networks.backward_exchange.scale[:] = width
            networks.forward_exchange.scale[:devices] = width
            networks.forward_exchange.scale[devices:] = late


@dataclass(frozen=True, kw_only=True, eq=False)
class CostData:
    """Samples of all three networks; ``tables`` float32 [tables, 20] scaled are what the sets are made of."""

    tables: Tensor
    sets: TableSets
    exchanges: Exchanges

    def predict(self, networks: NeuroShardNetworks, chosen: Ints) -> dict[str, tuple[Tensor, Tensor]]:
        """Give predictions and truths of chosen samples int64 [chosen], in ms, by network."""
        sets = self.sets.some(chosen)
        # Of the tables, those that the sets hold are encoded, once each.
        tables, members = np.unique(sets.members, return_inverse=True)
        compute = networks.compute(
            self.tables[torch.from_numpy(tables)], torch.from_numpy(members.reshape(-1)), torch.from_numpy(sets.starts)
        )
        exchanges = self.exchanges
        widths, late = torch.from_numpy(exchanges.widths[chosen]), torch.from_numpy(exchanges.late_ms[chosen])
        forward = networks.forward_exchange(torch.cat([widths, late], dim=1))
        return {
            "compute": (compute, torch.from_numpy(sets.ms)),
            "forward_exchange": (forward, torch.from_numpy(exchanges.forward_ms[chosen])),
            "backward_exchange": (networks.backward_exchange(widths), torch.from_numpy(exchanges.backward_ms[chosen])),
        }

    def losses(self, networks: NeuroShardNetworks, chosen: Ints) -> dict[str, Tensor]:
        """Mean squared error of each network on chosen samples, ms^2."""
        predictions = self.predict(networks, chosen)
        return {name: (ours - truth).square().mean() for name, (ours, truth) in predictions.items()}


def collect(
    tables: Task, scaling: Scaling, oracle: Oracle, *, most: int, count: int, rng: np.random.Generator
) -> CostData:
    """``count`` sets of 1 to ``most`` of the tables, and as many exchanges of their vectors, with what they take."""
    problem = tables.problem
    drawn = draw_sets(tables.sizes_bytes, tables.capacity_bytes, most, count, rng)
    widths = np.array([vectors(t, p, t.dim) for t, p in zip(problem.tables, problem.profiles)])
    return CostData(
        tables=torch.from_numpy(scaling(tables.features)[:, INPUTS]),
        sets=measure_sets(tables, drawn, oracle),
        exchanges=draw_exchanges(
            widths, problem.machine, problem.batch_size, count, rng, number_bytes=problem.exchange.bytes
        ),
    )


def check_alike(tasks: Sequence[Task]) -> None:
    """Raises BadInput where tasks differ in machine, batch or precisions: one set of costs is learned (deviation 8)."""
    facts = {
        (t.problem.topology.world_size, t.problem.batch_size, t.problem.precision, t.problem.exchange) for t in tasks
    }
    if len(facts) > 1 or any(t.problem.machine.constants != tasks[0].problem.machine.constants for t in tasks):
        raise BadInput("neuroshard learns the costs of one machine and batch: fit it on problems that share them")
