"""A training from end to end: the same for the same seed, kept by content key, stopped in time."""

import math
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_type_hints

import numpy as np
import torch
from pydantic import Field

from shardbench.base.arrays import Floats, Floats32, Ints
from shardbench.base.atomic import whole_file
from shardbench.base.code import JUDGE_VERSION, others_code
from shardbench.base.errors import BadInput, one_line
from shardbench.base.serialise import content_hash, from_data
from shardbench.learned.tasks.features import Scaling
from shardbench.learned.tasks.oracle import Oracle
from shardbench.learned.tasks.task import TableSet, Task
from shardbench.model.strategy import Budget, Strategy

Count = Annotated[int, Field(gt=0, strict=True)]
CountOrNone = Annotated[int, Field(ge=0, strict=True)]
"""A number of things, where none at all is a choice."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

PLANNED_SHARE = 0.25
"""Share of the fitting budget that training is planned for: machines may be slower than ours, and busy."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(ABC):
    """What every training is told; raises BadInput that names the field where a value is not of its type."""

    learning_rate: Positive
    """The first update has this rate; see ``Training.rate`` for the others."""

    def __post_init__(self) -> None:
        # Here, so that ``dataclasses.replace`` is checked as well.
        hints: dict[str, Any] = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            what = f"{type(self).__name__}, field {field.name} = {getattr(self, field.name)!r}"
            from_data(hints[field.name], getattr(self, field.name), what)

    @property
    @abstractmethod
    def updates(self) -> int:
        """Count the updates of a whole training."""

    @classmethod
    @abstractmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give the published settings, or less work where the fitting budget has no room for it on these tasks."""


def affordable_updates(budget: Budget, update_s: float, most_updates: int) -> int:
    """Give ``most_updates`` updates of ``update_s`` seconds, or as many as surely fit the fitting budget; at least one.

    Decided beforehand and not by the clock, so that the same budget gives the same networks.
    """
    return max(1, min(most_updates, int(PLANNED_SHARE * budget.fit_s / update_s)))


N = TypeVar("N", bound=torch.nn.Module)
S = TypeVar("S", bound=TrainingSettings)
UpdateNumbers = dict[str, float | None]
"""What an update tells of itself by name, such as its loss; None where it has no such number."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: these arrays are too small to share, and one thread adds up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_arrays(function: Callable[..., torch.Tensor], *arrays: np.ndarray) -> Floats32:
    """Ask a network, or a function of it, without gradients and with arrays for tensors."""
    with torch.inference_mode():
        answer: Floats32 = function(*map(torch.from_numpy, arrays)).numpy()
    return answer


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
class Trained(Generic[N, S]):
    """Networks, the scaling of their inputs, and how they came about."""

    networks: N
    scaling: Scaling
    settings: S
    history: tuple[UpdateNumbers, ...] = ()
    """What each update told: the learning curve."""
    oracle_calls: int = 0
    out_of_time: bool = False
    """True where the training was stopped before its end."""


class Training(ABC, Generic[N, S]):
    """The state of one training; ``train`` brings it to its end, the same for the same seed.

    A subclass has the networks (N) and settings (S), and makes one update. Raises BadInput where there is no task.
    """

    strategy: ClassVar[type[Strategy]]
    """The strategy that it trains: what is kept is for its name and version."""
    settings_type: type[S]

    def __init__(self, tasks: Sequence[Task], oracle: Oracle, seed: int, settings: S) -> None:
        if not tasks:
            raise BadInput("training needs at least one task")
        self._start_cpu_s = time.process_time()
        self.earlier_cpu_s = 0.0
        """CPU seconds of the process that made the training, where it is read from a folder."""
        self.tasks, self.oracle, self.seed, self.settings = tuple(tasks), oracle, seed, settings
        self.key = training_key(self)
        self.catalogue = Catalogue(tasks)
        self.scaling = self.scaling_of(self.catalogue.features)
        self.networks = self.draw()
        self.learning = self.networks
        """The networks that updates change, where these are not yet the ones to be used."""
        self.rng = np.random.default_rng([seed, 1])
        self.history: list[UpdateNumbers] = []
        self.calls = 0

    def scaling_of(self, features: Floats) -> Scaling:
        """Fit how the networks' inputs are normalised to the training tables' raw features float64 [tables, 21].

        All scalars are z-scored unless a subclass says otherwise.
        """
        return Scaling.fit(features)

    @staticmethod
    @abstractmethod
    def place(trained: Trained[N, S], tasks: Sequence[TableSet]) -> list[Ints]:
        """Place the tables of tasks with trained networks; ``Learner.place`` says how."""

    @abstractmethod
    def draw(self) -> N:
        """Draw the networks as they are before any training, by the seed."""

    @abstractmethod
    def update(self) -> UpdateNumbers:
        """Make one update: act, ask the oracle, learn with ``adam``; add to ``calls`` what it asked."""

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
    def updates(self) -> int:
        """Count the updates that were made."""
        return len(self.history)

    @property
    def done(self) -> bool:
        """Tell whether every update was made."""
        return self.updates >= self.settings.updates

    @property
    def rate(self) -> float:
        """Give the learning rate of the next update; it falls linearly, and would be zero after the last."""
        return self.settings.learning_rate * (1.0 - self.updates / self.settings.updates)

    @property
    def cpu_s(self) -> float:
        """Count the CPU seconds so far, those of an earlier process included."""
        return self.earlier_cpu_s + time.process_time() - self._start_cpu_s

    def untrained(self) -> Trained[N, S]:
        """Give the networks that training starts from, as a control."""
        return Trained(networks=self.draw(), scaling=self.scaling, settings=self.settings)

    def train(self, *, folder: Path | None = None, limit_cpu_s: float = math.inf) -> Trained[N, S]:
        """Make all updates, or read what they gave from ``folder``, where it is kept at the end, by content key.

        It ends early, with what it has and without keeping it, where the updates after the first one take
        ``limit_cpu_s``: CPU seconds, so that a busy machine makes no other networks.
        """
        path = None if folder is None else self.path(folder)
        if path is not None and path.is_file():
            self._read(path)
        with one_thread():
            if not self.done:
                # No part of the limit: the first update imports what torch needs for its optimisers, which takes
                # seconds on a slow machine, and would make other networks there.
                self.step()
            end_cpu_s = time.process_time() + limit_cpu_s
            while not self.done and time.process_time() < end_cpu_s:
                self.step()
        if path is not None and self.done and not path.is_file():
            networks, calls = self.networks.state_dict(), self.calls
            save(path, {"networks": networks, "history": self.history, "oracle_calls": calls, "cpu_s": self.cpu_s})
        return Trained(
            networks=self.networks,
            scaling=self.scaling,
            settings=self.settings,
            history=tuple(self.history),
            oracle_calls=self.calls,
            out_of_time=not self.done,
        )

    def step(self) -> None:
        """Make one update at its learning rate; the last of ``history`` is then what it told."""
        self.adam.param_groups[0]["lr"] = self.rate
        self.history.append(self.update())

    def path(self, folder: Path) -> Path:
        """Name the file of the networks of a whole training."""
        return folder / f"{self.strategy.name}-{self.key}.pt"

    def _read(self, path: Path) -> None:
        with opened(path) as contents:
            self.networks.load_state_dict(contents["networks"])
            self.history, self.calls = contents["history"], contents["oracle_calls"]
            self.earlier_cpu_s = contents["cpu_s"]


AnyTrained = Trained[Any, Any]
AnyTraining = Training[Any, Any]


def training_key(training: AnyTraining) -> str:
    """Hash all that a training depends on, versions of code included: what is kept under it is for it alone."""
    inputs = [task.key for task in training.tasks], training.oracle.identity, training.seed, asdict(training.settings)
    theirs = others_code(*(kind.__module__ for kind in type(training).__mro__ if issubclass(kind, Training)))
    return content_hash(training.strategy.name, training.strategy.version, JUDGE_VERSION, theirs, *inputs)


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain data to a file of torch's, whole or not at all."""
    with whole_file(path) as file:
        torch.save({**state, "name": path.name}, file)


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """Give what ``save`` wrote, read without pickled code, to a block that puts it where it belongs.

    Raises BadInput where reading the file or the block trips over what is in it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # torch checks no sums, and packs nothing but unpacks what is packed, however large.
            if archive.testzip() or any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("its parts are not as they were written")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["name"] != path.name:
            raise ValueError(f"it was written as {state['name']}")
        yield state
    except Exception as error:
        # Whatever torch raises of damaged bytes, and modules of tensors of other shapes.
        raise BadInput(
            f"checkpoint {path} is broken or no checkpoint ({one_line(str(error), 80)}): delete it and train again"
        ) from error
