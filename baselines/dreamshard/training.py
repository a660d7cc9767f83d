"""DreamShard's training loop: measure a few placements, fit the cost network, improve the policy on its estimates."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from shardbench.base.arrays import Floats32
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.baselines.dreamshard.adam import Adam
from shardbench.baselines.dreamshard.estimates import Policy, play
from shardbench.baselines.dreamshard.learning import CostLearner, policy_loss
from shardbench.baselines.dreamshard.networks import Networks
from shardbench.baselines.dreamshard.observed import Measured
from shardbench.learning.checkpoint import Checkpoint, load, path_of, save
from shardbench.learning.settings import Count, NotNegative, Positive, check_settings
from shardbench.learning.training import Catalogue, CpuClock, network_tensors, one_thread, put_networks
from shardbench.tasks.features import Scaling
from shardbench.tasks.oracle import Oracle
from shardbench.tasks.task import Task

KIND = "dreamshard"
VERSION = 2
"""Of the checkpoints; raise it where weights, features or the loop change their meaning."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters; the defaults are the paper's."""

    iterations: Count = 10
    measured: Count = 10
    """Placements measured in an iteration."""
    cost_updates: Count = 300
    cost_batch: Count = 64
    policy_updates: Count = 10
    episodes: Count = 10
    """Episodes of a policy update, all of one task."""
    learning_rate: Positive = 5e-4
    """Of the first iteration; it falls linearly, to a tenth in the last of ten."""
    entropy_weight: NotNegative = 1e-3

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What one iteration did."""

    number: int
    measured_ms: float
    """Mean cost of the placements that it measured, drawn from the policy before its updates."""
    cost_loss: float
    """Mean loss of the cost network over the iteration's last tenth of updates, ms^2."""
    failed: int
    """Sampled placements that found no room for a table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Networks, the scaling of their inputs, and how they came about."""

    networks: Networks
    scaling: Scaling
    history: tuple[Iteration, ...]
    oracle_calls: int
    earlier_cpu_s: float = 0.0
    """CPU seconds of the training that earlier processes spent: it was taken up from a folder."""


def untrained(tasks: Sequence[Task], seed: int) -> Trained:
    """The networks that training would start from: a control."""
    scaling = Scaling.fit(Catalogue(tasks).features)
    return Trained(networks=Networks(seed), scaling=scaling, history=(), oracle_calls=0)


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
    progress: Callable[[Iteration], None] | None = None,
) -> Trained:
    """Networks trained on ``tasks`` with ``oracle``; the same for the same seed.

    With a ``folder`` the state after every iteration is kept there by content key, and training goes
    on from the last one found. Where no sampled placement ever fits, the networks stay untrained.
    """
    if not tasks:
        raise BadInput("training needs at least one task")
    run = _Run(tasks, oracle, seed, settings if settings is not None else Settings(), folder)
    with one_thread():
        run.resume()
        while run.iteration < run.settings.iterations:
            done = run.step()
            run.keep()
            if progress is not None:
                progress(done)
    return run.result()


def snapshot(folder: Path, key: str, iteration: int) -> Trained:
    """The networks after ``iteration`` (1, 2, ...) of the training with this key; BadInput where it is not there."""
    return _restored(load(path_of(folder, KIND, f"{key}-{iteration}"), KIND, VERSION, f"{key}-{iteration}"))


def _restored(found: Checkpoint) -> Trained:
    networks = Networks(0)
    put_networks(networks, found)
    return Trained(
        networks=networks,
        scaling=Scaling(mean=tuple(found.facts["mean"]), spread=tuple(found.facts["spread"])),
        history=tuple(Iteration(**line) for line in found.facts["history"]),
        oracle_calls=int(found.facts["oracle_calls"]),
        earlier_cpu_s=float(found.facts["cpu_s"]),
    )


class _Run:
    """The state of one training."""

    def __init__(
        self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: Settings, folder: Path | None
    ) -> None:
        self.tasks, self.oracle, self.settings, self.folder = tuple(tasks), oracle, settings, folder
        self.key = training_key(tasks, oracle, seed, settings)
        self.catalogue = Catalogue(tasks)
        self.scaling = Scaling.fit(self.catalogue.features)  # deviation 2
        self.scaled: Floats32 = self.scaling(self.catalogue.features)
        self.networks = Networks(seed)
        # The paper's one Adam for everything keeps its moments, and counts its steps, by weight: two are the same
        # (deviation 7).
        self.adams = {"cost": Adam(self.networks.cost), "policy": Adam(self.networks.policy)}
        self.measured = Measured(self.catalogue, max(task.devices for task in tasks))
        self.rng = np.random.default_rng([seed, 1])
        self.history: list[Iteration] = []
        self.calls = 0
        self.clock = CpuClock()

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return len(self.history)

    def result(self) -> Trained:
        """What was learned."""
        return Trained(
            networks=self.networks, scaling=self.scaling, history=tuple(self.history), oracle_calls=self.calls,
            earlier_cpu_s=self.clock.earlier_s,
        )  # fmt: skip

    def step(self) -> Iteration:
        """One iteration."""
        settings = self.settings
        rate = settings.learning_rate * (1.0 - self.iteration / settings.iterations)
        measured_ms, failed = self._collect()
        losses: list[float] = []
        # Without any cost known, estimates mean nothing: the policy stays as it is until a placement fits.
        if len(self.measured):
            learner = CostLearner(self.networks.cost, self.adams["cost"], self.measured, self.scaled)
            losses = learner.learn(settings.cost_updates, settings.cost_batch, rate, self.rng)
            failed += sum(self._improve(rate) for _ in range(settings.policy_updates))
        last = losses[-max(1, len(losses) // 10) :]
        done = Iteration(
            number=self.iteration + 1,
            measured_ms=measured_ms,
            cost_loss=float(np.mean(last)) if last else 0.0,
            failed=failed,
        )
        self.history.append(done)
        return done

    def _collect(self) -> tuple[float, int]:
        """Measure sampled placements of random tasks; their mean cost, and how many did not fit."""
        chosen = self.rng.integers(0, len(self.tasks), self.settings.measured)
        policy = Policy(self.networks, self.scaling)
        everything = policy.encode(self.catalogue.features)
        encodings = [everything[self.catalogue.rows[i]] for i in chosen]
        orders = [policy.order(encoded) for encoded in encodings]
        tasks = [self.tasks[i] for i in chosen]
        placing = play(policy, tasks, encodings, orders, self.rng).placing
        found = [
            (int(i), task, placement)
            for i, task, placement, failed in zip(chosen, tasks, placing.placements(), placing.failed)
            if not failed
        ]
        costs_ms = []
        for number, task, placement in found:
            costs = self.oracle.measure(task, placement[None])
            self.measured.add(number, placement, costs)
            costs_ms.append(float(costs.overall_ms[0]))
        self.calls += len(found)
        return float(np.mean(costs_ms)) if costs_ms else 0.0, int(placing.failed.sum())

    def _improve(self, rate: float) -> int:
        """One policy update on the estimated costs of one random task; how many episodes did not fit."""
        number = int(self.rng.integers(0, len(self.tasks)))
        task, rows = self.tasks[number], self.catalogue.rows[number]
        policy = Policy(self.networks, self.scaling)
        encoded = policy.encode(task.features)
        order = policy.order(encoded)
        count = self.settings.episodes
        episodes = play(policy, [task] * count, [encoded] * count, [order] * count, self.rng)
        empty_ms = policy.device_ms(policy.empty[None])[0]
        tables = torch.from_numpy(self.scaled[rows[order]])
        loss = policy_loss(self.networks.policy, tables, episodes, empty_ms, self.settings.entropy_weight)
        self.adams["policy"].zero_grad()
        loss.backward()
        self.adams["policy"].step(rate)
        return int(episodes.placing.failed.sum())

    def keep(self) -> None:
        """Save the state after this iteration."""
        if self.folder is None:
            return
        measured = self.measured
        tensors = network_tensors(self.networks)
        for which, adam in self.adams.items():
            tensors |= {f"adam.{which}.{name}": torch.from_numpy(getattr(adam, name)) for name in ("mean", "square")}
        tensors["measured.tasks"] = torch.from_numpy(measured.tasks)
        everything = np.concatenate([np.zeros(0, dtype=np.int64), *measured.placements])
        tensors["measured.placements"] = torch.from_numpy(everything)
        tensors["measured.device_ms"] = torch.from_numpy(measured.device_ms)
        tensors["measured.overall_ms"] = torch.from_numpy(measured.overall_ms)
        facts = {
            "mean": list(self.scaling.mean),
            "spread": list(self.scaling.spread),
            "history": [asdict(line) for line in self.history],
            "oracle_calls": self.calls,
            "cpu_s": self.clock.seconds,
            "steps": {which: adam.steps for which, adam in self.adams.items()},
            "rng": json.dumps(self.rng.bit_generator.state),
        }
        save(
            Checkpoint(kind=KIND, version=VERSION, key=f"{self.key}-{self.iteration}", facts=facts, tensors=tensors),
            self.folder,
        )

    def resume(self) -> None:
        """Go on from the last state kept for this training, if there is one."""
        if self.folder is None:
            return
        for number in range(self.settings.iterations, 0, -1):
            key = f"{self.key}-{number}"
            path = path_of(self.folder, KIND, key)
            if path.is_file():
                self._restore(load(path, KIND, VERSION, key))
                return

    def _restore(self, found: Checkpoint) -> None:
        put_networks(self.networks, found)
        for which, adam in self.adams.items():
            adam.mean[:] = found.tensors[f"adam.{which}.mean"].numpy()
            adam.square[:] = found.tensors[f"adam.{which}.square"].numpy()
            adam.steps = int(found.facts["steps"][which])
        numbers = found.tensors["measured.tasks"].tolist()
        ends = np.cumsum([self.tasks[i].tables for i in numbers])[:-1]
        placements = np.split(found.tensors["measured.placements"].numpy(), ends)
        device_ms, overall_ms = found.tensors["measured.device_ms"].numpy(), found.tensors["measured.overall_ms"]
        for i, placement, devices, overall in zip(numbers, placements, device_ms, overall_ms.tolist()):
            self.measured.append(i, placement, devices[: self.tasks[i].devices], overall)
        self.history = [Iteration(**line) for line in found.facts["history"]]
        self.calls = int(found.facts["oracle_calls"])
        self.clock.earlier_s = float(found.facts["cpu_s"])
        self.rng.bit_generator.state = json.loads(found.facts["rng"])
