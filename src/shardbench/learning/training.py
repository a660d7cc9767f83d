"""What trainings of learned strategies share: one thread, the tables of all tasks, the state of networks on disk."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.learning.checkpoint import Checkpoint
from shardbench.tasks.task import Task

NET, ADAM = "net.", "adam."
"""Prefixes of tensors in a checkpoint."""


class CpuClock:
    """CPU seconds of a training that may go on over several processes."""

    def __init__(self) -> None:
        self._begun = time.process_time()
        self.earlier_s = 0.0
        """Seconds of the processes that it was taken up from."""

    @property
    def seconds(self) -> float:
        """CPU seconds so far, earlier ones included."""
        return self.earlier_s + time.process_time() - self._begun


class Limit:
    """CPU seconds that updates may take after the first one; None: as many as they do.

    Not counted before: the first update imports what torch needs for its optimisers, which takes
    seconds on a slow machine, and would make other networks there.
    """

    def __init__(self, cpu_s: float | None) -> None:
        self._cpu_s = cpu_s
        self._begun: float | None = None

    def begin(self) -> None:
        """An update is done; the first call starts the clock."""
        if self._begun is None:
            self._begun = time.process_time()

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        if self._cpu_s is None or self._begun is None:
            return False
        return time.process_time() - self._begun >= self._cpu_s


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: these arrays are too small to share, and one thread adds up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Catalogue:
    """The different tables of all training tasks: ``features`` float64 [different, 21] raw, ``rows[i]`` of task i."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        everything = np.concatenate([task.features for task in tasks])
        self.features, inverse = np.unique(everything, axis=0, return_inverse=True)
        ends = np.cumsum([task.tables for task in tasks])[:-1]
        self.rows: list[Ints] = list(np.split(inverse.reshape(-1).astype(np.int64), ends))

    def __len__(self) -> int:
        return len(self.features)


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def network_tensors(networks: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights by name, for a checkpoint."""
    return {f"{NET}{name}": value for name, value in networks.state_dict().items()}


def put_networks(networks: torch.nn.Module, found: Checkpoint) -> None:
    """Set weights from a checkpoint; raises BadInput where its layers are others."""
    try:
        networks.load_state_dict(_under(NET, found.tensors))
    except RuntimeError as error:
        raise BadInput(f"checkpoint {found.kind}-{found.key} has other layers: delete it and train again") from error


def adam_tensors(adam: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """State of an optimizer by parameter number and field, for a checkpoint."""
    state = adam.state_dict()["state"]
    return {f"{ADAM}{number}.{field}": value for number, fields in state.items() for field, value in fields.items()}


def put_adam(adam: torch.optim.Optimizer, found: Checkpoint) -> None:
    """Set the optimizer's state from a checkpoint; its settings stay."""
    state = adam.state_dict()
    state["state"] = {}
    for name, value in _under(ADAM, found.tensors).items():
        number, _, field = name.partition(".")
        state["state"].setdefault(int(number), {})[field] = value
    adam.load_state_dict(state)
