"""Counts hot rows, accesses and inputs under a budget and a sample rate, on held-out inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardbench.base.arrays import Bools, Ints
from shardbench.datasets.criteo_like import CriteoLike, CriteoLikeConfig
from shardbench.datasets.sequence import SequenceConfig
from shardbench.model.table import DenseShape
from shardbench.studies.study import Row
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.hotness import HotMask, hot_samples, join
from shardbench.workloads.profiling import AccessCounts, count_samples
from shardbench.workloads.trace import Bags, Split

from ..calibrator import HotChoice, calibrate, expected_hot_share

TEST_BATCHES = 16
BATCH = 4096
KAGGLE_DENSE = DenseShape(bottom=(512, 256, 64, 16), top=(512, 256, 1))
TERABYTE_DENSE = DenseShape(bottom=(512, 256, 64), top=(512, 512, 256, 1))
WORKLOADS = ("kaggle", "terabyte-one-hot", "terabyte-multi-hot", "taobao")
FORMS: dict[str, Literal["terabyte_one_hot", "terabyte_dcnv2"]] = {
    "terabyte-one-hot": "terabyte_one_hot", "terabyte-multi-hot": "terabyte_dcnv2"
}  # fmt: skip


def workload(
    name: str, *, batch_size: int = BATCH, logged: int = 65_536, seed: int = 0, test_batches: int = TEST_BATCHES
) -> DrawnWorkload:
    """Return one of WORKLOADS, all of them made up (deviation 10).

    ``logged`` train samples rank its rows and make its profiles.
    """
    shared: dict[str, Any] = {
        "batch_size": batch_size,
        "test_batches": test_batches,
        "profile_samples": logged,
        "seed": seed,
    }
    if name == "kaggle":
        return CriteoLike(CriteoLikeConfig(name=name, form="kaggle", dense=KAGGLE_DENSE, **shared))
    if name == "taobao":
        return SequenceConfig(name=name, form="taobao", **shared).build(Path())
    return CriteoLike(CriteoLikeConfig(name=name, form=FORMS[name], dim=64, dense=TERABYTE_DENSE, **shared))


@dataclass(frozen=True, kw_only=True, eq=False)
class AccessLog:
    """The calibrator's log of every table, and the inputs that it is judged on."""

    counts: tuple[AccessCounts, ...]
    test: tuple[Bags, ...]
    more: tuple[Bags, ...]
    """Train inputs after those that were logged from, as the strategy gets them."""
    row_bytes: tuple[int, ...]

    @classmethod
    def of(cls, source: DrawnWorkload, inputs: int, rate: float, seed: int) -> "AccessLog":
        """Log a share ``rate`` of the first ``inputs`` train samples, and join all test batches."""
        tables = range(len(source.tables))
        counts = [count_samples(source, i, samples=inputs, rates=(rate,), seed=seed)[0] for i in tables]
        test = [join([source.bags(Split.TEST, b, i) for b in range(source.test_batches)]) for i in tables]
        after = -(-inputs // source.batch_size)
        next_two = [join([source.bags(Split.TRAIN, b, i) for b in (after, after + 1)]) for i in tables]
        return cls(
            counts=tuple(counts),
            test=tuple(test),
            more=tuple(next_two),
            row_bytes=tuple(4 * t.dim for t in source.tables),
        )

    def shares(self, budget_bytes: int) -> Row:
        """Return the hot rows, bytes, accesses and inputs under a budget, the shares in percent."""
        profiles = [c.profile for c in self.counts]
        choice = calibrate(profiles, self.row_bytes, budget_bytes)
        hot = [HotMask(mask=hot_mask(counts, choice, rows)) for counts, rows in zip(self.counts, choice.rows)]
        accesses = sum(int(np.count_nonzero(rows(bags.values))) for rows, bags in zip(hot, self.test))
        lookups = sum(len(bags.values) for bags in self.test)
        test, more = (hot_samples(bags.__getitem__, hot, bags[0].batch_size) for bags in (self.test, self.more))
        return {
            "least_count": choice.least_count,
            "hot_rows": sum(choice.rows),
            "hot_rows_pct": 100.0 * sum(choice.rows) / sum(c.rows for c in self.counts),
            "hot_mib": choice.bytes / 2**20,
            "hot_accesses_pct": 100.0 * accesses / lookups,
            "hot_inputs_pct": 100.0 * float(test.mean()),
            "expected_hot_inputs_pct": 100.0 * float(more.mean()),
            "expected_by_columns_pct": 100.0 * expected_hot_share(profiles, choice),
        }


def hot_mask(counts: AccessCounts, choice: HotChoice, hot_rows: int) -> Bools:
    """Return the hot rows of a table, bool [rows]: all of them, or those logged often enough."""
    if hot_rows == counts.rows:
        return np.ones(counts.rows, dtype=np.bool_)
    mask = np.zeros(counts.rows, dtype=np.bool_)
    if hot_rows:
        mask[counts.ids[counts.counts >= choice.least_count]] = True
    return mask


def logged_counts(inputs: int, tables: Sequence[int], seed: int) -> list[Ints]:
    """Return the lookups of every row of some of Kaggle's tables, int64 [rows], over ``inputs`` train samples.

    The rows' own order is a seeded shuffle: ids here are ranks, which a hash table's rows are not.
    """
    source = CriteoLikeConfig(form="kaggle").build(Path())
    arrays = []
    for table in tables:
        counted = count_samples(source, table, samples=inputs)[0]
        everyone = np.zeros(counted.rows, dtype=np.int64)
        everyone[counted.ids] = counted.counts
        arrays.append(np.random.default_rng([seed, table]).permutation(everyone))
    return arrays
