"""Trained networks on disk, in torch's files, which are read without pickled code."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from shardbench.base.atomic import whole_file
from shardbench.base.errors import BadInput, one_line


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain data, whole or not at all."""
    with whole_file(path) as file:
        torch.save({**state, "name": path.name}, file)


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """Give what ``save`` wrote to a block that puts it where it belongs.

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
