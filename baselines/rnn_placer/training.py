"""REINFORCE on measured placements, one task an update, with a moving average as baseline."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput, Infeasible
from shardbench.base.serialise import content_hash
from shardbench.learning.checkpoint import Checkpoint, load, path_of, save
from shardbench.learning.settings import Count, NotNegative, Positive, Share, check_settings
from shardbench.learning.training import (
    CpuClock,
    Limit,
    adam_tensors,
    network_tensors,
    one_thread,
    put_adam,
    put_networks,
)
from shardbench.tasks.features import Scaling
from shardbench.tasks.oracle import Oracle
from shardbench.tasks.task import TableSet, Task

from .acting import Played, play
from .networks import Networks

KIND = "rnn-rl"
VERSION = 2
"""Of the checkpoints; raise it where weights, features or the loop change their meaning."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters: DreamShard's policy updates, each with measured placements in place of estimated ones.

    The baseline's own were never published (deviation 1). ``updates`` x ``episodes`` placements are measured.
    """

    updates: Count = 1000
    episodes: Count = 10
    """Placements measured in an update, all of one random task."""
    learning_rate: Positive = 2e-3
    """Of the first update; it falls linearly to zero."""
    entropy_weight: NotNegative = 1e-3
    decay: Share = 0.9
    """Of the moving average of a task's returns."""
    stages: Count = 10
    """How often the state is kept, and progress told, in a training."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What happened since the stage before."""

    updates: int
    """Updates so far."""
    measured_ms: float | None
    """Mean cost of the placements measured; None if none fitted."""
    failed: int
    """Sampled placements that found no room for a table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Networks, the scaling of their inputs, and how they came about."""

    networks: Networks
    scaling: Scaling
    history: tuple[Stage, ...]
    oracle_calls: int
    complete: bool
    """Whether the training came to its end; not where it ran out of time."""
    earlier_cpu_s: float
    """CPU seconds of the training that earlier processes spent: it was taken up from a folder."""


def training_key(tasks: Sequence[Task], oracle: Oracle, seed: int, settings: Settings) -> str:
    """Hash of everything that training depends on."""
    return content_hash(VERSION, [task.key for task in tasks], oracle.identity, seed, asdict(settings))


def train(
    tasks: Sequence[Task],
    oracle: Oracle,
    seed: int,
    settings: Settings | None = None,
    *,
    folder: Path | None = None,
    progress: Callable[[Stage], None] | None = None,
    limit_cpu_s: float | None = None,
) -> Trained:
    """Networks trained on ``tasks`` with ``oracle``; the same for the same seed.

    With a ``folder`` the state after the last stage is kept there by content key, and training goes
    on from it. It ends early, with what it has, where the updates after the first one take
    ``limit_cpu_s``: CPU seconds, so that a busy machine makes no other networks.
    """
    run = Run(tasks, oracle, seed, settings if settings is not None else Settings())
    with one_thread():
        if folder is not None:
            run.resume(folder)
        limit = Limit(limit_cpu_s)
        while not run.done and not limit.over:
            stage = run.update()
            limit.begin()
            if stage is not None and folder is not None:
                run.keep(folder)
            if stage is not None and progress is not None:
                progress(stage)
    return run.result()


def place(trained: Trained, task: TableSet) -> Ints:
    """The best legal device of every table, int64 [tables], without measuring anything.

    Raises Infeasible where a table has no device with room, in the tables' own order and, once
    more, largest first; BadInput for a number of devices that was not trained.
    """
    scaled = trained.scaling(task.features)
    with one_thread():
        for order in (np.arange(task.tables), np.argsort(-task.sizes_bytes, kind="stable")):
            placing = play(trained.networks, task, scaled, order, episodes=1, rng=None).placing
            if not placing.failed[0]:
                return placing.placements()[0]
    raise Infeasible(
        f"task {task.problem.name}: a table has no device with room, neither in the given order nor by size: "
        f"{int(task.sizes_bytes.sum())} bytes of tables on {task.devices} devices of {task.capacity_bytes}"
    )


def reinforce_loss(
    networks: Networks, scaled: Tensor, played: Played, advantages: Floats, entropy_weight: float
) -> Tensor:
    """REINFORCE loss of episodes of one task: mean over episodes, sum over steps; ``scaled`` [tables, 21] in order.

    Probabilities are over the devices with room, as when acting. Episodes of no advantage that
    failed count neither way.
    """
    placing = played.placing
    chosen = torch.from_numpy(placing.chosen)
    logits = networks.logits(networks.encode(scaled[None]), chosen, placing.legal_at.shape[2])
    legal = torch.from_numpy(placing.legal_at)
    log_p = logits.masked_fill(~legal, -torch.inf).log_softmax(dim=2)
    taken = log_p.gather(2, chosen[:, :, None]).squeeze(2).sum(1)
    # Probability zero times its infinite logarithm would be no number.
    entropy = -(log_p.exp() * log_p.masked_fill(~legal, 0.0)).sum((1, 2))
    used = torch.from_numpy(~placing.failed).float()
    weight = torch.from_numpy(advantages).float()
    return -((taken * weight + entropy_weight * entropy) * used).mean()


class Run:
    """The state of one training."""

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: Settings) -> None:
        if not tasks:
            raise BadInput("training needs at least one task")
        self.tasks, self.oracle, self.settings = tuple(tasks), oracle, settings
        self.key = training_key(tasks, oracle, seed, settings)
        self.scaling = Scaling.fit(np.unique(np.concatenate([task.features for task in tasks]), axis=0))
        self.networks = Networks((task.devices for task in tasks), seed)
        self.adam = torch.optim.Adam(self.networks.parameters(), lr=settings.learning_rate, fused=True)
        self.rng = np.random.default_rng([seed, 1])
        self.average: Floats = np.full(len(tasks), np.nan)
        """Moving average of each task's returns; NaN before the first."""
        self.history: list[Stage] = []
        self.updates = self.calls = 0
        self._costs: list[float] = []
        self._failed = 0
        self.clock = CpuClock()

    @property
    def done(self) -> bool:
        """Whether every update was made."""
        return self.updates >= self.settings.updates

    def result(self) -> Trained:
        """What was learned so far."""
        return Trained(
            networks=self.networks,
            scaling=self.scaling,
            history=tuple(self.history),
            oracle_calls=self.calls,
            complete=self.done,
            earlier_cpu_s=self.clock.earlier_s,
        )

    def update(self) -> Stage | None:
        """Sample, measure, learn; gives the stage that ends with this update, if one does."""
        settings = self.settings
        number = int(self.rng.integers(0, len(self.tasks)))
        task = self.tasks[number]
        scaled, order = self.scaling(task.features), np.arange(task.tables)
        played = play(self.networks, task, scaled, order, episodes=settings.episodes, rng=self.rng)
        advantages = self.measured(number, played)
        self.adam.param_groups[0]["lr"] = settings.learning_rate * (1.0 - self.updates / settings.updates)
        if not played.placing.failed.all():
            tables = torch.from_numpy(scaled[order])
            loss = reinforce_loss(self.networks, tables, played, advantages, settings.entropy_weight)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        self.updates += 1
        return self._stage()

    def measured(self, number: int, played: Played) -> Floats:
        """Advantages of the episodes, [E]: minus the root of the cost, minus the task's average; zero where failed."""
        task, failed = self.tasks[number], played.placing.failed
        self._failed += int(failed.sum())
        advantages = np.zeros(len(failed))
        if failed.all():
            return advantages
        placements = np.stack(played.placing.placements())[~failed]
        costs_ms = self.oracle.measure(task, placements).overall_ms
        self.calls += len(placements)
        self._costs += costs_ms.tolist()
        # The root of the running time is what device placement by REINFORCE used (ICML 2017).
        returns = -np.sqrt(costs_ms)
        if np.isnan(self.average[number]):
            self.average[number] = returns.mean()
        advantages[~failed] = returns - self.average[number]
        decay = self.settings.decay
        self.average[number] = decay * self.average[number] + (1.0 - decay) * returns.mean()
        return advantages

    def _stage(self) -> Stage | None:
        settings = self.settings
        before, now = ((n * settings.stages) // settings.updates for n in (self.updates - 1, self.updates))
        if before == now:
            return None
        mean_ms = float(np.mean(self._costs)) if self._costs else None
        self.history.append(Stage(updates=self.updates, measured_ms=mean_ms, failed=self._failed))
        self._costs, self._failed = [], 0
        return self.history[-1]

    def keep(self, folder: Path) -> None:
        """Save everything; one file a training, replaced at every stage."""
        tensors = network_tensors(self.networks) | adam_tensors(self.adam)
        tensors["average"] = torch.from_numpy(self.average)
        facts = {
            "updates": self.updates,
            "oracle_calls": self.calls,
            "cpu_s": self.clock.seconds,
            "history": [asdict(line) for line in self.history],
            "rng": json.dumps(self.rng.bit_generator.state),
        }
        save(Checkpoint(kind=KIND, version=VERSION, key=self.key, facts=facts, tensors=tensors), folder)

    def resume(self, folder: Path) -> None:
        """Go on from what was kept for this training, if anything was."""
        if not path_of(folder, KIND, self.key).is_file():
            return
        found = load(path_of(folder, KIND, self.key), KIND, VERSION, self.key)
        put_networks(self.networks, found)
        put_adam(self.adam, found)
        self.average = found.tensors["average"].numpy().copy()
        self.updates, self.calls = int(found.facts["updates"]), int(found.facts["oracle_calls"])
        self.clock.earlier_s = float(found.facts["cpu_s"])
        self.history = [Stage(**line) for line in found.facts["history"]]
        self.rng.bit_generator.state = json.loads(found.facts["rng"])
