"""A training from end to end: kept by content key, taken up again after a kill, stopped in time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from shardbench.base.arrays import Floats, Ints
from shardbench.base.code import JUDGE_VERSION, others_code
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.learned.checkpoint import opened, save
from shardbench.learned.clocks import Limit, TrainingClock, one_thread
from shardbench.learned.settings import TrainingSettings
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import TableSet, Task

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

N = TypeVar("N", bound=torch.nn.Module)
S = TypeVar("S", bound=TrainingSettings)
L = TypeVar("L", bound="DataclassInstance")


class Catalogue:
    """The different tables of all training tasks: ``features`` float64 [different, 21] raw, ``rows[i]`` of task i."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        everything = np.concatenate([task.features for task in tasks])
        self.features, inverse = np.unique(everything, axis=0, return_inverse=True)
        ends = np.cumsum([task.tables for task in tasks])[:-1]
        self.rows: list[Ints] = list(np.split(inverse.reshape(-1).astype(np.int64), ends))

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained(Generic[N, S, L]):
    """Networks, the scaling of their inputs, and how they came about."""

    networks: N
    scaling: Scaling
    settings: S
    history: tuple[L, ...]
    """The stages in order, each with what it did."""
    updates: int
    oracle_calls: int
    out_of_time: bool
    """True where the training was stopped before its end."""
    earlier_cpu_s: float
    """CPU seconds that earlier processes spent on the training, which was taken up from a folder."""


class Training(ABC, Generic[N, S, L]):
    """The state of one training; ``train`` brings it to its end, the same for the same seed.

    A subclass has the networks (N), settings (S) and what a stage tells (L), makes one update, and
    says what its state is besides the networks, the history and the generator. Raises BadInput
    where there is no task.
    """

    kind: ClassVar[str]
    """The strategy's name, by which its checkpoints are told apart."""
    version: ClassVar[int]
    """The version of its checkpoints: raise it where weights, features or an update change their meaning."""
    settings_type: type[S]
    stage_type: type[L]

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: S) -> None:
        if not tasks:
            raise BadInput("training needs at least one task")
        self.tasks, self.oracle, self.seed, self.settings = tuple(tasks), oracle, seed, settings
        self.key = training_key(self)
        self.catalogue = Catalogue(tasks)
        self.scaling = self.scaling_of(self.catalogue.features)
        self.networks = self.draw(seed)
        self.learning = self.networks
        """The networks that updates change, where these are not yet the ones to be used."""
        self.rng = np.random.default_rng([seed, 1])
        self.history: list[L] = []
        self.updates = self.calls = 0
        self._out_of_time = False
        self.clock = TrainingClock()

    def scaling_of(self, features: Floats) -> Scaling:
        """Fit how the networks' inputs are normalised to the training tables' raw features float64 [tables, 21].

        All scalars are z-scored unless a subclass says otherwise.
        """
        return Scaling.fit(features)

    @staticmethod
    @abstractmethod
    def place(trained: Trained[N, S, L], tasks: Sequence[TableSet]) -> list[Ints]:
        """Place the tables of tasks with trained networks; ``Learner.place`` says how."""

    @abstractmethod
    def draw(self, seed: int) -> N:
        """Draw the networks as they are before any training."""

    @abstractmethod
    def update(self) -> None:
        """Make one update: act, ask the oracle, learn with ``adam``; add to ``calls`` what it asked."""

    @abstractmethod
    def stage(self) -> L:
        """Tell what happened since the stage before; the next one begins."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Give what else the next update depends on, between two stages: tensors and plain data, without ``adam``'s."""

    @abstractmethod
    def put_state(self, state: Mapping[str, Any]) -> None:
        """Set what ``state`` gave; networks and ``adam`` are set besides."""

    @cached_property
    def adam(self) -> torch.optim.Adam:
        """Give one Adam of all weights; those without a gradient in a step are left as they are."""
        # Late: it imports a compiler, which takes a second that a control or a finished training need not spend.
        return torch.optim.Adam(self.learning.parameters(), lr=self.settings.learning_rate, fused=True)

    def descend(self, loss: torch.Tensor) -> None:
        """Take a step of Adam down the gradient of a loss."""
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()

    @property
    def done(self) -> bool:
        """Tell whether every update was made."""
        return self.updates >= self.settings.updates

    @property
    def rate(self) -> float:
        """Give the learning rate of the next update; it falls linearly, and would be zero after the last."""
        return self.settings.learning_rate * (1.0 - self.updates / self.settings.updates)

    def untrained(self) -> Trained[N, S, L]:
        """Give the networks that training starts from, as a control."""
        return self._snapshot(self.draw(self.seed), (), 0, 0)

    def result(self) -> Trained[N, S, L]:
        """Give what was learned so far."""
        return self._snapshot(self.networks, self.history, self.updates, self.calls)

    def train(
        self,
        *,
        folder: Path | None = None,
        progress: Callable[[L], None] | None = None,
        limit_cpu_s: float | None = None,
    ) -> Trained[N, S, L]:
        """Make all updates that are left; ``progress`` is told of each stage.

        With a ``folder`` the state after the last stage, and at the end the networks, are kept there by
        content key, and training goes on from there. It ends early, with what it has, where the
        updates after the first one take ``limit_cpu_s``: CPU seconds, so that a busy machine makes no
        other networks.
        """
        with one_thread():
            if folder is not None:
                self._resume(folder)
            limit = Limit(limit_cpu_s)
            while not self.done and not limit.over:
                stage = self.step()
                limit.begin()
                if stage is not None and folder is not None:
                    self._keep(folder)
                if stage is not None and progress is not None:
                    progress(stage)
        self._out_of_time = not self.done
        return self.result()

    def step(self) -> L | None:
        """Make one update; gives the stage that ends with it, if one does."""
        self.adam.param_groups[0]["lr"] = self.rate
        self.update()
        self.updates += 1
        if not self._ends_stage(self.updates):
            return None
        self.history.append(self.stage())
        return self.history[-1]

    def _ends_stage(self, updates: int) -> bool:
        stages, every = self.settings.stages, self.settings.updates
        return updates * stages // every > (updates - 1) * stages // every

    def _snapshot(self, networks: N, history: Sequence[L], updates: int, calls: int) -> Trained[N, S, L]:
        return Trained(
            networks=networks,
            scaling=self.scaling,
            settings=self.settings,
            history=tuple(history),
            updates=updates,
            oracle_calls=calls,
            out_of_time=self._out_of_time,
            earlier_cpu_s=self.clock.earlier_s,
        )

    def path(self, folder: Path) -> Path:
        """Name the file of the networks of a whole training."""
        return folder / f"{self.kind}-{self.key}-{self.settings.updates}.pt"

    def state_path(self, folder: Path) -> Path:
        """Name the one file, replaced at every stage, that a training needs to go on."""
        return folder / f"{self.kind}-state-{self.key}.pt"

    def _keep(self, folder: Path) -> None:
        contents = {
            "networks": self.networks.state_dict(),
            "updates": self.updates,
            "oracle_calls": self.calls,
            "cpu_s": self.clock.seconds,
            "history": [asdict(stage) for stage in self.history],
        }
        if self.done:
            save(self.path(folder), contents)
            self.state_path(folder).unlink(missing_ok=True)
        else:
            generator, adam = self.rng.bit_generator.state, self.adam.state_dict()
            save(self.state_path(folder), {**contents, "rng": generator, "adam": adam, "own": self.state()})

    def _resume(self, folder: Path) -> None:
        """Go on from what was kept for this training, if anything was."""
        whole, state = self.path(folder), self.state_path(folder)
        path = whole if whole.is_file() else state
        if not path.is_file():
            return
        with opened(path) as contents:
            self.networks.load_state_dict(contents["networks"])
            if path == state:
                self.rng.bit_generator.state = contents["rng"]
                self.adam.load_state_dict(contents["adam"])
                self.put_state(contents["own"])
            self.updates, self.calls = contents["updates"], contents["oracle_calls"]
            self.clock.earlier_s = contents["cpu_s"]
            self.history = [self.stage_type(**line) for line in contents["history"]]


AnyTrained = Trained[Any, Any, Any]
AnyTraining = Training[Any, Any, Any]


def training_key(training: AnyTraining) -> str:
    """Hash all that a training depends on, versions of code included: what is kept under it is for it alone."""
    inputs = [task.key for task in training.tasks], training.oracle.identity, training.seed, asdict(training.settings)
    theirs = others_code(*(kind.__module__ for kind in type(training).__mro__ if issubclass(kind, Training)))
    return content_hash(training.kind, training.version, JUDGE_VERSION, theirs, *inputs)
