"""Networks and training states on disk: versioned, checked by content, read without pickled code."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.base.torch_files import tensors_in

FORMAT = "shardbench checkpoint"
NET, ADAM = "net.", "adam."
"""Prefixes of tensors by what they belong to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """Tensors by name and JSON-able facts of one kind of networks.

    ``kind`` is the strategy's, ``version`` that of its layout: raise it where the meaning of the
    tensors or facts changes. ``key`` is the hash of what the training was told (tasks, seed,
    settings); a file is for one key.
    """

    kind: str
    version: int
    key: str
    facts: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @property
    def digest(self) -> str:
        """Hash everything that the file holds."""
        names = sorted(self.tensors)
        arrays = [self.tensors[name].detach().cpu().numpy() for name in names]
        return content_hash(self.kind, self.version, self.key, dict(self.facts), names, *arrays)


def path_of(folder: Path, kind: str, key: str) -> Path:
    """Name the file of the checkpoint of a kind and key."""
    return folder / f"{kind}-{key}.pt"


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write whole or not at all; gives the path."""
    path = path_of(folder, checkpoint.kind, checkpoint.key)
    with whole_file(path) as file:
        torch.save(data_of(checkpoint), file)
    return path


def data_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Give what a file holds of a checkpoint."""
    return {
        "format": FORMAT,
        "kind": checkpoint.kind,
        "version": checkpoint.version,
        "key": checkpoint.key,
        "facts": json.dumps(dict(checkpoint.facts), sort_keys=True),
        "digest": checkpoint.digest,
        "tensors": {name: tensor.detach().cpu().clone() for name, tensor in checkpoint.tensors.items()},
    }


def load(path: Path, kind: str, version: int, key: str | None = None) -> Checkpoint:
    """Read back; raises BadInput for a broken, foreign, old or exchanged file. ``key`` None takes any."""
    if not path.is_file():
        raise BadInput(f"there is no checkpoint {path}: train first")
    try:
        data = tensors_in(path, path.stat().st_size, str(path))
    except BadInput as error:
        raise BadInput(f"checkpoint {path} is broken or no checkpoint: delete it and train again") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadInput(f"{path} is not a checkpoint of this project: give one that {kind} wrote")
    if data.get("kind") != kind:
        raise BadInput(f"checkpoint {path} is of '{data.get('kind')}', not of '{kind}': give one that {kind} wrote")
    if data.get("version") != version:
        raise BadInput(f"checkpoint {path} has version {data.get('version')}, wanted {version}: train again")
    if key is not None and data.get("key") != key:
        raise BadInput(f"checkpoint {path} was trained on other tasks or settings: delete it and train again")
    return _checked(data, path)


def _checked(data: dict[str, Any], path: Path) -> Checkpoint:
    try:
        found = Checkpoint(
            kind=data["kind"],
            version=data["version"],
            key=data["key"],
            facts=json.loads(data["facts"]),
            tensors=data["tensors"],
        )
        intact = found.digest == data["digest"]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"checkpoint {path} lacks a part ({reason}): delete it and train again") from error
    if not intact:
        raise BadInput(f"checkpoint {path} does not match its own digest: delete it and train again")
    return found


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def network_tensors(networks: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Give weights by name, for a checkpoint."""
    return {f"{NET}{name}": value for name, value in networks.state_dict().items()}


def put_networks(networks: torch.nn.Module, found: Checkpoint) -> None:
    """Set weights from a checkpoint; raises BadInput where its layers are others."""
    try:
        networks.load_state_dict(_under(NET, found.tensors))
    except RuntimeError as error:
        raise BadInput(f"checkpoint {found.kind}-{found.key} has other layers: delete it and train again") from error


def adam_tensors(adam: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Give the state of an optimizer by parameter number and field, for a checkpoint."""
    state = adam.state_dict()["state"]
    return {f"{ADAM}{number}.{field}": value for number, fields in state.items() for field, value in fields.items()}


def put_adam(adam: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set the optimizer's state from a checkpoint's tensors; its settings stay."""
    state = adam.state_dict()
    state["state"] = {}
    for name, value in _under(ADAM, tensors).items():
        number, _, field = name.partition(".")
        state["state"].setdefault(int(number), {})[field] = value
    adam.load_state_dict(state)
