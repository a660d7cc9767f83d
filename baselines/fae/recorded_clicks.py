"""Real clicks: Criteo Kaggle's labels, where the user has prepared them."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardbench.datasets.criteo_prepare import CATEGORIES, INTEGERS, Prepared, category_file
from shardbench.errors import BadInput
from shardbench.serialise import from_json
from shardbench.table import Table
from shardbench.trace import Bags, Ranking, check_rows

from .clicks import DIM, ClickData, Inputs, logged

FOLDER = Path("data") / "criteo_kaggle"
"""Where ``shardbench prepare`` and the commands' --data have it by default; studies are told no other folder."""
TRAIN_SHARE = 6.0 / 7.0
"""The file is seven days; six of them train."""
NOTE = "prepared.json"


@lru_cache(maxsize=1)
def recorded_clicks(folder: Path, train: int, test: int, seed: int) -> ClickData:
    """The last ``train`` inputs of the first six days and the ``test`` inputs after them, with their real labels.

    Integers become log(1 + x), empty and negative ones 0; an empty category is an empty bag. ``seed``
    draws the log. Raises BadInput for a folder that is not prepared, or too few inputs in it.
    """
    note = folder / NOTE
    if not note.is_file():
        raise BadInput(f"no file {note}: prepare Criteo Kaggle's train.txt into {folder}: shardbench prepare")
    prepared = from_json(Prepared, note.read_bytes(), str(note))
    cut = int(prepared.samples * TRAIN_SHARE)
    if not 0 < train <= cut or not 0 < test <= prepared.samples - cut:
        raise BadInput(
            f"{folder} has {cut} inputs to train on and {prepared.samples - cut} to test with, "
            f"not {train} and {test}: ask for fewer"
        )
    labels = _array(folder / "label.npy", np.int8, (prepared.samples,))
    integers = _array(folder / "dense.npy", np.float32, (prepared.samples, INTEGERS))
    parts = slice(cut - train, cut), slice(cut, cut + test)
    tables, bags = [], []
    for c in range(CATEGORIES):
        path = folder / category_file(c)
        column = _array(path, np.int32, (prepared.samples,))
        of_train, of_test = (_bags(column[part]) for part in parts)
        for of_part in (of_train, of_test):
            check_rows(of_part.values, prepared.rows[c], str(path))
        ranking = Ranking(of_train.values, prepared.rows[c])
        seen = len(ranking.counts)
        # Rows that no train input asks for are one, the last.
        bags.append([Bags(values=np.minimum(ranking(b.values), seen), offsets=b.offsets) for b in (of_train, of_test)])
        tables.append(Table(name=f"C{c + 1}", rows=seen + 1, dim=DIM))
    inputs = [
        Inputs(
            tables=tuple(of_table[i] for of_table in bags),
            dense=np.log1p(np.maximum(np.nan_to_num(integers[part], nan=0.0), 0.0)),
            labels=labels[part].astype(np.float32),
        )
        for i, part in enumerate(parts)
    ]
    return logged(tuple(tables), inputs[0], inputs[1], seed)


def _bags(column: NDArray[Any]) -> Bags:
    there = column >= 0
    offsets = np.concatenate([[0], np.cumsum(there, dtype=np.int64)])
    return Bags(values=column[there].astype(np.int64), offsets=offsets)


def _array(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}): prepare the folder again") from error
    if array.shape != shape or array.dtype != kind:
        raise BadInput(f"{path} has {array.dtype} {array.shape}, expected {np.dtype(kind)} {shape}: prepare it again")
    return array
