"""What workloads over recorded samples share: a first part of the samples trains, the rest tests."""

from abc import abstractmethod
from dataclasses import replace

import numpy as np
from pydantic import Field, PositiveInt

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.workloads.held_out import measure_held_out
from shardbench.workloads.hotness import take
from shardbench.workloads.ranking_cache import Survey
from shardbench.workloads.trace import Bags, Ranking, Split, assert_readable, check_rows
from shardbench.workloads.workload import Workload, WorkloadConfig


class RecordedConfig(WorkloadConfig):
    """Parameters of a workload over recorded samples."""

    profile_samples: PositiveInt | None = Field(default=None, exclude_if=lambda samples: samples is None)
    """Train samples, evenly spread, that profiles are counted over; None: all."""


class RecordedWorkload(Workload):
    """A workload of samples [0, train_samples), the train split, and [train_samples, samples), the test split.

    Batch i of a split is its i-th run of ``batch_size`` consecutive samples, modulo the whole
    batches there are. Ids are re-ranked by the train split's counts, table by table, when a
    table is first asked for.
    """

    samples: int
    train_samples: int
    _config: RecordedConfig

    def __init__(self, config: RecordedConfig) -> None:
        self._configure(config)

    @abstractmethod
    def _raw(self, table: int, start: int, stop: int) -> Bags:
        """Return the bags of samples [start, stop) with the ids as recorded."""

    def _taken(self, table: int, samples: Ints) -> Bags:
        """Return the bags of some train samples int64 [n], ascending, with the ids as recorded."""
        return take(self._raw(table, 0, self.train_samples), samples)

    def _split_samples(self, samples: int, train_samples: int) -> None:
        """Set where the splits meet; raises BadInput where one is too short for the batches or profiles asked for."""
        self.samples = samples
        self.train_samples = train_samples
        test = samples - self.train_samples
        if self.train_samples < self.batch_size:
            raise BadInput(
                f"{self.name}: {self.train_samples} train samples do not fill one batch of {self.batch_size}: "
                "lower batch_size or raise train_share"
            )
        if test < self.test_batches * self.batch_size:
            raise BadInput(
                f"{self.name}: {test} test samples do not fill {self.test_batches} batches of {self.batch_size}: "
                "lower batch_size, test_batches or train_share"
            )
        profile_samples = self._config.profile_samples
        self.profile_samples = self.train_samples if profile_samples is None else profile_samples
        if self.profile_samples > self.train_samples:
            raise BadInput(
                f"{self.name}: {self.train_samples} train samples, not the {self.profile_samples} to be profiled: "
                "lower profile_samples or raise train_share"
            )

    def _survey(self, table: int) -> Survey:
        shape = self.tables[table]
        if self.profile_samples < self.train_samples:
            train = self._taken(table, _spread(self.train_samples, self.profile_samples))
        else:
            train = self._raw(table, 0, self.train_samples)
        check_rows(train.values, shape.rows, f"{self.name}/{shape.name}")
        ranking = Ranking(train.values, shape.rows)
        present = int(np.count_nonzero(train.sample_lengths))
        return ranking, self._profile_of(table, ranking.runs, present, measure_held_out(train.values, ranking))

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        raw = self.recorded(split, batch, table)
        return replace(raw, values=self.ranking(table)(raw.values))

    def recorded(self, split: Split, batch: int, table: int) -> Bags:
        """Return the lookups of one table in one global batch, with the ids as recorded."""
        assert_readable(split)
        if split is Split.TRAIN:
            start = batch % (self.train_samples // self.batch_size) * self.batch_size
        else:
            start = self.train_samples + batch * self.batch_size
        return self._raw(table, start, start + self.batch_size)

    def _unprofiled(self, table: int, inputs: int) -> Bags | None:
        some = self.profile_samples if self.profile_samples < self.train_samples else 0
        profiled = _spread(self.train_samples, some)
        left = self.train_samples - len(profiled)
        samples = _spread(left, min(inputs, left))
        # The others, counted without a list of all: each comes after the profiled ones that have a smaller number.
        samples = samples + np.searchsorted(profiled - np.arange(len(profiled)), samples, side="right")
        raw = self._taken(table, samples)
        return replace(raw, values=self.ranking(table)(raw.values))


def _spread(samples: int, count: int) -> Ints:
    """Return ``count`` of the numbers 0 .. samples - 1, int64 [count], ascending, evenly spread."""
    return np.arange(count, dtype=np.int64) * samples // count
