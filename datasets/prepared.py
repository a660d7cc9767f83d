"""Folders of prepared samples: a note that says what was prepared and how, and arrays, mapped and held against it."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json, to_json
from shardbench.datasets.array_file import mapped

NOTE = "prepared.json"


class Note(pydantic.BaseModel):
    """What a folder's note says, whatever was prepared."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    samples: PositiveInt
    seed: NonNegativeInt
    checksums: dict[str, str]
    """SHA-256 of every array's bytes, by file name."""


N = TypeVar("N", bound=pydantic.BaseModel)


def write_model(path: Path, model: pydantic.BaseModel) -> None:
    """Writes a file of a folder that is being prepared."""
    path.write_text(to_json(model) + "\n")


def read_model(kind: type[N], path: Path, how: str) -> N:
    """What such a file says; raises BadInput that says ``how`` to prepare the folder where it is not there."""
    if not path.is_file():
        raise BadInput(f"no file {path}: {how}")
    return from_json(kind, path.read_bytes(), str(path))


def read_array(path: Path, kind: type[np.generic], shape: tuple[int, ...], how: str) -> NDArray[Any]:
    """A prepared array, mapped; raises BadInput where it is none of this kind and shape."""
    try:
        array = mapped(path)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): {how}") from error
    if array.shape != shape or not np.issubdtype(array.dtype, kind):
        raise BadInput(f"{path} has {array.dtype} {array.shape}, expected {kind.__name__} {shape}: {how}")
    return array
