"""What trainings of learned strategies share: one thread, the tables of all tasks, the state of networks on disk."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from shardbench.errors import BadInput
from shardbench.learned.checkpoint import Checkpoint
from shardbench.learned.tasks import Task

Ints = NDArray[np.int64]
NET, ADAM = "net.", "adam."
"""Prefixes of tensors in a checkpoint."""


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
