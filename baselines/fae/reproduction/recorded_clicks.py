"""Reads real clicks: Criteo Kaggle's labels, where the user has prepared them."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.datasets.criteo_kaggle import TRAIN_SHARE, bags_of, read_array, read_column, read_note
from shardbench.datasets.preparation.criteo_prepare import CATEGORIES, INTEGERS, category_file
from shardbench.model.table import Table
from shardbench.workloads.trace import Bags, Ranking, check_rows

from .clicks import DIM, ClickData, ClickInputs, order_by_log

FOLDER = Path("data") / "criteo_kaggle"
"""The folder that ``shardbench prepare`` and the commands' --data use by default; studies are told no other."""


@lru_cache(maxsize=1)
def recorded_clicks(folder: Path, train: int, test: int, seed: int) -> ClickData:
    """Read the last ``train`` inputs of the first six days and the ``test`` inputs after them, with their real labels.

    Integers become log(1 + x), empty and negative ones 0; an empty category is an empty bag. ``seed``
    draws the log. Raises BadInput for a folder that is not prepared, or too few inputs in it.
    """
    prepared = read_note(folder)
    cut = int(prepared.samples * TRAIN_SHARE)
    if not 0 < train <= cut or not 0 < test <= prepared.samples - cut:
        raise BadInput(
            f"{folder} has {cut} inputs to train on and {prepared.samples - cut} to test with, "
            f"not {train} and {test}: ask for fewer"
        )
    labels = read_array(folder / "label.npy", np.int8, (prepared.samples,))
    integers = read_array(folder / "dense.npy", np.float32, (prepared.samples, INTEGERS))
    parts = slice(cut - train, cut), slice(cut, cut + test)
    tables, bags = [], []
    for c in range(CATEGORIES):
        column = read_column(folder, c, prepared)
        of_train, of_test = (bags_of(column[part]) for part in parts)
        for of_part in (of_train, of_test):
            check_rows(of_part.values, prepared.rows[c], str(folder / category_file(c)))
        ranking = Ranking(of_train.values, prepared.rows[c])
        seen = len(ranking.counts)
        # Rows that no train input asks for are one, the last.
        bags.append([Bags(values=np.minimum(ranking(b.values), seen), offsets=b.offsets) for b in (of_train, of_test)])
        tables.append(Table(name=f"C{c + 1}", rows=seen + 1, dim=DIM))
    inputs = [
        ClickInputs(
            tables=tuple(of_table[i] for of_table in bags),
            dense=np.log1p(np.maximum(np.nan_to_num(integers[part], nan=0.0), 0.0)),
            labels=labels[part].astype(np.float32),
        )
        for i, part in enumerate(parts)
    ]
    return order_by_log(tuple(tables), inputs[0], inputs[1], seed)
