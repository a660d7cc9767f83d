"""NeuroShard's pre-training: all cost data is collected first, then the three networks are fitted to it.

The data are sets of augmented tables on a device, and exchanges of random placements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import vectors_exchange_s
from shardbench.cost.load import VECTOR_BYTES
from shardbench.learned.tasks.features import FEATURES, Scaling
from shardbench.learned.tasks.oracle import NO_TABLE, Oracle
from shardbench.learned.tasks.task import Task
from shardbench.learned.training import (
    Count,
    Positive,
    Share,
    Training,
    TrainingSettings,
    UpdateNumbers,
    affordable_updates,
)
from shardbench.model.machine import Machine
from shardbench.model.strategy import Budget

from . import NeuroShard
from .networks import INPUTS, NeuroShardNetworks
from .search import place as place_tables
from .shards import WIDTH, augmented, vectors

EPOCHS_HERE = 60
"""Epochs of what is run here (deviation 2): study ``networks`` shows what more samples and epochs would change."""
UPDATE_S = 0.012
"""CPU seconds of an update of the three networks on 512 samples: measured on one core, rounded up."""
WIDTHS = (4, 8, 16, 32, 64, 128)
"""Every table is augmented to these."""
SET_TABLES = 15
"""Most tables of a set: 60 tables on 4 devices."""
LEAST_TABLES, MOST_TABLES = 2.5, 15.0
"""Tables a device of a random placement: 10 to 60 on 4 devices."""
LATEST_MS = (1.0, 20.0)
"""Range of the latest start of an exchange's devices."""
NETWORKS = ("compute", "forward_exchange", "backward_exchange")


@dataclass(frozen=True, kw_only=True)
class NeuroShardSettings(TrainingSettings):
    """The defaults are the published ones."""

    samples: Count = 100_000
    """Samples for each of the three networks: table sets, and exchanges."""
    epochs: Count = 1000
    batch: Count = 512
    learning_rate: Positive = 1e-3
    held_out: Share = 0.2
    """Share of the samples that is not learned from: the first half chooses the epoch, the second is for tests."""

    @property
    def updates(self) -> int:
        """Count an epoch as an update."""
        return self.epochs

    @property
    def learned_from(self) -> int:
        """Count the samples of each network that its weights are fitted to."""
        return self.samples - 2 * max(1, round(0.5 * self.held_out * self.samples))

    @classmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give what is run here, with fewer samples where the budget has no room for so many updates; epochs stay."""
        settings = cls(epochs=EPOCHS_HERE)
        updates = -(-settings.learned_from // settings.batch) * settings.epochs
        share = affordable_updates(budget, UPDATE_S, updates) / updates
        return replace(settings, samples=max(100, round(share * settings.samples)))


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSets:
    """Sets of a task's tables and their kernels' time.

    ``members`` int64 [all] are the tables of all sets, those of set i from ``starts[i]`` on, int64 [sets]; ``ms``
    float32 [sets] is forward and backward.
    """

    members: Ints
    starts: Ints
    ms: Floats32

    def some(self, chosen: Ints) -> "TableSets":
        """Pick sets by number, int64 [chosen]."""
        ends = np.append(self.starts[1:], len(self.members))
        sizes = (ends - self.starts)[chosen]
        starts = np.cumsum(sizes) - sizes
        at = np.repeat(self.starts[chosen] - starts, sizes) + np.arange(sizes.sum())
        return TableSets(members=self.members[at], starts=starts, ms=self.ms[chosen])


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanges:
    """Widths and starts of all devices, and how long each is in either exchange; float32 [exchanges, devices] each."""

    widths: Floats32
    late_ms: Floats32
    """Delay after the first device, in the forward exchange; the backward one begins everywhere at once."""
    forward_ms: Floats32
    backward_ms: Floats32


def draw_sets(sizes_bytes: Ints, capacity_bytes: int, most: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw random sets of 1 to ``most`` tables that fit a device, int64 [count, most], padded with NO_TABLE.

    Tables are drawn independently, so that a set may hold two shards of one table, as plans may. A set ends before
    the first table that does not fit (deviation 4); its first table always does.
    """
    fitting = np.flatnonzero(sizes_bytes <= capacity_bytes)
    if not len(fitting):
        # Nothing can be placed, which planning will say: any sets do.
        return rng.integers(0, len(sizes_bytes), (count, 1))
    drawn = fitting[rng.integers(0, len(fitting), (count, most))]
    lengths = rng.integers(1, most + 1, (count, 1))
    fits = (np.cumsum(sizes_bytes[drawn], axis=1) <= capacity_bytes) & (np.arange(most) < lengths)
    return np.where(np.logical_and.accumulate(fits, axis=1), drawn, NO_TABLE)


def measure_sets(task: Task, sets: Ints, oracle: Oracle) -> TableSets:
    """Ask the oracle how long the kernels of sets, int64 [sets, most], take (deviation 1)."""
    forward_ms, backward_ms = oracle.measure_sets(task, sets)
    is_table = sets != NO_TABLE
    sizes = is_table.sum(axis=1)
    return TableSets(
        members=sets[is_table], starts=np.cumsum(sizes) - sizes, ms=(forward_ms + backward_ms).astype(np.float32)
    )


def draw_widths(vectors: Floats, devices: int, count: int, rng: np.random.Generator) -> Floats:
    """Draw sums of widths of random placements, float64 [count, devices]; ``vectors`` [tables] are numbers a sample.

    A table goes to the narrowest device or to a random one, by a probability that each placement draws.
    """
    tables = rng.integers(round(LEAST_TABLES * devices), round(MOST_TABLES * devices), count)
    greedy = rng.random(count)
    sums, rows = np.zeros((count, devices)), np.arange(count)
    for step in range(int(tables.max())):
        width = np.where(step < tables, vectors[rng.integers(0, len(vectors), count)], 0.0)
        device = np.where(rng.random(count) < greedy, sums.argmin(axis=1), rng.integers(0, devices, count))
        sums[rows, device] += width
    return sums


def draw_exchanges(
    vectors: Floats,
    machine: Machine,
    batch_size: int,
    count: int,
    rng: np.random.Generator,
    *,
    number_bytes: int = VECTOR_BYTES,
) -> Exchanges:
    """Draw exchanges of random placements under the cost model; all wait for the last device (deviation 3)."""
    devices = machine.topology.world_size
    widths = draw_widths(vectors, devices, count, rng)
    late_ms = rng.random((count, devices)) * rng.uniform(*LATEST_MS, (count, 1))
    late_ms -= late_ms.min(axis=1, keepdims=True)
    own_ms = exchange_ms(widths, machine, batch_size, number_bytes)
    waits_ms = late_ms.max(axis=1, keepdims=True) - late_ms
    return Exchanges(
        widths=widths.astype(np.float32),
        late_ms=late_ms.astype(np.float32),
        forward_ms=(waits_ms + own_ms).astype(np.float32),
        backward_ms=own_ms.astype(np.float32),
    )


def exchange_ms(widths: Floats, machine: Machine, batch_size: int, number_bytes: int = VECTOR_BYTES) -> Floats:
    """Compute milliseconds of each device in an exchange that all begin at once, [..., devices]."""
    return 1e3 * vectors_exchange_s(widths * float(batch_size * number_bytes), machine)


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
    def data(self) -> CostData:
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


def check_alike(tasks: Sequence[Task]) -> None:
    """Raises BadInput where tasks differ in machine, batch or precisions: one set of costs is learned (deviation 8)."""
    facts = {
        (t.problem.topology.world_size, t.problem.batch_size, t.problem.precision, t.problem.exchange) for t in tasks
    }
    if len(facts) > 1 or any(t.problem.machine.constants != tasks[0].problem.machine.constants for t in tasks):
        raise BadInput("neuroshard learns the costs of one machine and batch: fit it on problems that share them")
