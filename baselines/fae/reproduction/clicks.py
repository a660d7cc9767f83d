"""A click model that can be learned: Criteo-like inputs labelled by a hidden teacher, or real ones where prepared.

The teacher is a logistic model over the dense features and the rows: an effect of its own for every
row, and pairwise interactions through a hidden vector of every row (a factorisation machine).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats, Floats32, Ints, Words
from shardbench.base.errors import BadInput
from shardbench.datasets.criteo_kaggle import TRAIN_SHARE, bags_of, read_array, read_column, read_note
from shardbench.datasets.criteo_like import CriteoLikeConfig
from shardbench.datasets.preparation.criteo_prepare import CATEGORIES, INTEGERS, category_file
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Table
from shardbench.workloads.hotness import join, take
from shardbench.workloads.trace import Bags, Ranking, Split, check_rows

from .. import SAMPLE_RATE

DIM = 8
FEATURES = 4
VECTOR = 4
"""The width of the teacher's hidden vectors."""
EFFECT_STD, PAIR_STD, DENSE_STD, BIAS = 1.0, 0.6, 0.5, -1.3
"""Spread of the logit's parts; about a quarter of the inputs are clicked."""
BATCH = 4096
FOLDER = Path("data") / "criteo_kaggle"
"""The folder that ``shardbench prepare`` and the commands' --data use by default; studies are told no other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClickInputs:
    """Samples with their labels: bags of every table, dense float32 [n, features], labels float32 [n]."""

    tables: tuple[Bags, ...]
    dense: Floats32
    labels: Floats32

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, samples: Ints) -> "ClickInputs":
        """Return some of the samples, in that order."""
        return ClickInputs(
            tables=tuple(take(bags, samples) for bags in self.tables),
            dense=self.dense[samples],
            labels=self.labels[samples],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ClickData:
    """Inputs to train on and to test with, and the calibrator's log of the former.

    Rows are numbered by the log's frequency order (never-logged ones last). Rows that no train
    input asks for are one row, the last: nothing is learned about any of them.
    """

    tables: tuple[Table, ...]
    profiles: tuple[AccessProfile, ...]
    train: ClickInputs
    test: ClickInputs


@lru_cache(maxsize=1)
def click_data(seed: int, train: int, test: int) -> ClickData:
    """Draw Kaggle-like inputs and clicks; ``train`` and ``test`` are numbers of samples, multiples of 4,096."""
    tables, inputs = drawn_clicks(seed, train, test)
    return order_by_log(tables, inputs[Split.TRAIN], inputs[Split.TEST], seed)


def order_by_log(tables: tuple[Table, ...], train: ClickInputs, test: ClickInputs, seed: int) -> ClickData:
    """Return the data with rows in the order of a log of SAMPLE_RATE of the train inputs, and that log's profiles.

    Raises BadInput where the log is empty.
    """
    samples = np.flatnonzero(np.random.default_rng([seed, 4]).random(len(train)) < SAMPLE_RATE)
    if not len(samples):
        raise BadInput(f"a log of {100.0 * SAMPLE_RATE:g} % of {len(train)} inputs is empty: give more inputs")
    profiles, ranked_train, ranked_test = [], [], []
    for table, of_train, of_test in zip(tables, train.tables, test.tables):
        log = take(of_train, samples)
        ranking = Ranking(log.values, table.rows)
        present = int(np.count_nonzero(log.lengths))
        profiles.append(
            AccessProfile.from_counts(ranking.counts, rows=table.rows, samples=len(samples), present=present)
        )
        ranked_train.append(Bags(values=ranking(of_train.values), offsets=of_train.offsets))
        ranked_test.append(Bags(values=ranking(of_test.values), offsets=of_test.offsets))
    return ClickData(
        tables=tables,
        profiles=tuple(profiles),
        train=replace(train, tables=tuple(ranked_train)),
        test=replace(test, tables=tuple(ranked_test)),
    )


def drawn_clicks(seed: int, train: int, test: int) -> tuple[tuple[Table, ...], dict[Split, ClickInputs]]:
    """Return tables and the inputs of both splits, rows by their frequency among all train inputs."""
    # Columns are independent: few inputs are then hot.
    workload = CriteoLikeConfig(batch_size=BATCH, seed=seed, profile_samples=train, column_dependence=0.0).build(Path())
    seen_rows = [profile.seen_rows for profile in workload.profiles]
    bags = {
        split: [
            join([workload.bags(split, batch, i) for batch in range(samples // BATCH)])
            for i in range(len(workload.tables))
        ]
        for split, samples in ((Split.TRAIN, train), (Split.TEST, test))
    }
    tables = tuple(Table(name=t.name, rows=n + 1, dim=DIM) for t, n in zip(workload.tables, seen_rows))
    return tables, {split: _label(seed, split, bags[split], seen_rows) for split in bags}


def _label(seed: int, split: Split, tables: list[Bags], seen_rows: list[int]) -> ClickInputs:
    rng = np.random.default_rng([seed, 1, split is Split.TEST])
    samples = tables[0].batch_size
    dense = rng.standard_normal((samples, FEATURES), dtype=np.float32)
    labels = (rng.random(samples) < _sigmoid(teacher_logits(seed, tables, dense))).astype(np.float32)
    bags = [Bags(values=np.minimum(b.values, n), offsets=b.offsets) for b, n in zip(tables, seen_rows)]
    return ClickInputs(tables=tuple(bags), dense=dense, labels=labels)


def teacher_logits(seed: int, tables: list[Bags], dense: Floats32) -> Floats:
    """Return the teacher's logits, float64 [samples]; ids are the workload's, so unseen rows differ, too."""
    samples = len(dense)
    effect = np.zeros(samples)
    summed, squares = np.zeros((samples, VECTOR)), np.zeros(samples)
    for i, bags in enumerate(tables):
        sample = np.repeat(np.arange(samples), bags.lengths)
        hidden = row_normals(seed, i, bags.values, 1 + VECTOR)
        effect += np.bincount(sample, weights=hidden[:, 0], minlength=samples)
        for j in range(VECTOR):
            summed[:, j] += np.bincount(sample, weights=hidden[:, 1 + j], minlength=samples)
        squares += np.bincount(sample, weights=(hidden[:, 1:] ** 2).sum(axis=1), minlength=samples)
    pairs = ((summed**2).sum(axis=1) - squares) / 2.0
    weights = np.random.default_rng([seed, 2]).standard_normal(FEATURES)
    return np.asarray(
        BIAS
        + EFFECT_STD * effect / np.sqrt(len(tables))
        + PAIR_STD * pairs / np.sqrt(VECTOR * len(tables) * (len(tables) - 1) / 2.0)
        + DENSE_STD * (dense @ weights) / np.sqrt(FEATURES)
    )


def row_normals(seed: int, table: int, rows: Ints, columns: int) -> Floats:
    """Return standard normals of rows, float64 [rows, columns], that depend on seed, table, row and column alone.

    Two splitmix64 hashes of them, made normal by Box and Muller: no table of hidden rows is held.
    """
    start = np.random.SeedSequence([seed, table, 3]).generate_state(1, np.uint64)[0]
    cells = rows.astype(np.uint64)[:, None] * np.uint64(2 * columns) + np.arange(2 * columns, dtype=np.uint64)
    uniform = (_splitmix64(cells + start) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log1p(-uniform[:, :columns]))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform[:, columns:]))


def _splitmix64(state: Words) -> Words:
    """Apply Steele, Lea and Flood's mixer to the state after one step."""
    mixed = state * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


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


def auc(logits: Floats, labels: Floats32) -> float:
    """Return the area under the ROC curve, ties counted half: the share of (click, no click) pairs in the right order.

    NaN where only one label occurs.
    """
    clicked = labels > 0.5
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        return float("nan")
    from scipy.stats import rankdata  # noqa: PLC0415 - takes a second to import, and every page imports all studies

    ranks = rankdata(logits)
    return float((ranks[clicked].sum() - clicks * (clicks + 1) / 2.0) / (clicks * others))


def log_loss(logits: Floats, labels: Floats32) -> float:
    """Return the mean binary cross-entropy in nats."""
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))
