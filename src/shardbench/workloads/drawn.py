"""What workloads share whose lookups are drawn from known laws."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.base.memory import free_memory_bytes
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Seed
from shardbench.workloads.held_out import measure_held_out
from shardbench.workloads.hotness import join
from shardbench.workloads.ranking_cache import CompactRanking, Survey
from shardbench.workloads.trace import Bags, Split, access_runs
from shardbench.workloads.workload import Workload, WorkloadConfig, rng

ProfileSamples = Annotated[int, Field(ge=1, le=1 << 26)]
"""Samples that are drawn and counted, table by table."""
_MANY = 1 << 26
"""Lookups from which on it is worth asking whether there is memory for them."""
_BYTES = 32
"""Memory of a lookup while it is drawn, ranked and counted."""


class DrawnConfig(WorkloadConfig):
    """Parameters of a workload whose lookups are drawn; its tables do not depend on the seed."""

    seed: Seed = 0
    """Seed of the lookups."""
    profile_samples: ProfileSamples = 65_536
    """Train samples that profiles are counted over."""


class DrawnWorkload(Workload):
    """A workload in which every (split, batch, table) is an independent seeded draw.

    Profiles are counted from the first ``profile_samples`` train samples, and ids are ranks in
    the frequency order of these same samples: what is drawn (ranks of the true law) is ranked by
    them, table by table, when a table is first asked for. So rows [0, k) are those that the
    profile counts as the hottest k, not those that the law makes so, which no trainer knows.
    """

    drawn = True
    seed: int
    _is_quick = False
    _kept: Any
    """What several tables are drawn from, by split and number; each copy draws its own."""

    def __init__(self, config: DrawnConfig) -> None:
        self._configure(config)
        self.seed = config.seed
        self.profile_samples = config.profile_samples
        self._kept = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}

    def recipe(self) -> object:
        """Return the configuration; parameters that are no part of it show in the fingerprint's first lookups."""
        return self._config.model_dump(mode="json")

    def quicker(self, samples: int) -> Self:
        """Return the same tables with other draws of so many train samples, in even batches: none is drawn in vain."""
        quick = super().quicker(samples)
        quick.batch_size = -(-samples // -(-samples // self.batch_size))
        quick._is_quick = True
        return quick

    def profile(self, table: int) -> AccessProfile:
        """Return the training profile of one table; a quicker workload ranks no rows for it, which few ask for."""
        if not self._is_quick:
            return super().profile(table)
        ids, present = self._train_ids(table)
        return self._profile_of(table, access_runs(ids, self.tables[table].rows), present, None)

    @abstractmethod
    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        """Draw the ``batch_size`` bags of one table in one batch, with ids as the law numbers them."""

    def _train(self, table: int) -> Iterator[Bags]:
        """Yield the train samples from the first on, without end, so many at a time as are drawn at once."""
        return (self._draw(Split.TRAIN, batch, table) for batch in count())

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        bags = self._draw(split, batch, table)
        return replace(bags, values=self.ranking(table)(bags.values))

    def _unprofiled(self, table: int, inputs: int) -> Bags | None:
        first = -(-self.profile_samples // self.batch_size)
        batches = range(first, first + -(-inputs // self.batch_size))
        return join([self._bags(Split.TRAIN, batch, table) for batch in batches]).samples(0, inputs)

    def _generator(self, split: Split, batch: int, stream: int) -> np.random.Generator:
        return rng(self.seed, split, batch, stream)

    def _survey(self, table: int) -> Survey:
        ids, present = self._train_ids(table)
        ranking = CompactRanking(ids, self.tables[table].rows)
        return ranking, self._profile_of(table, ranking.runs, present, measure_held_out(ids, ranking))

    def _train_ids(self, table: int) -> tuple[NDArray[np.integer], int]:
        """Return the rows of all profiled lookups, as the law numbers them, and how many samples have some."""
        rows = self.tables[table].rows
        ids: list[NDArray[np.integer]] = []
        present = 0
        samples_left = self.profile_samples
        for train in self._train(table):
            bags = train.samples(0, samples_left) if samples_left < train.batch_size else train
            samples_left -= bags.batch_size
            present += int(np.count_nonzero(bags.sample_lengths))
            ids.append(bags.values.astype(np.int32) if rows < 1 << 31 else bags.values)
            if not samples_left:
                break
        return np.concatenate(ids), present


def bag_lengths(generator: np.random.Generator, samples: int, pooling: float, coverage: float) -> Ints:
    """Draw bag lengths int64 [samples]: 0 with probability 1 - ``coverage``, else spread evenly over 1..2 pooling.

    floor(1 + 2 (pooling - 1) u + v) of two uniform draws has mean ``pooling`` exactly; bags are
    bounded, as lists cut at a fixed length are. Draws that decide nothing are passed over: what is drawn next is the
    same. Raises BadInput where the lookups do not fit into memory.
    """
    lookups = samples * pooling * coverage
    if lookups > _MANY and _BYTES * lookups > free_memory_bytes():
        raise BadInput(
            f"{samples} bags of {pooling:g} lookups are too many for the memory: lower batch_size or profile_samples"
        )
    if pooling == 1.0:
        _pass_over(generator, 2 * samples)
        bag_sizes = np.ones(samples, dtype=np.int64)
    else:
        lengths = generator.random(samples)
        lengths *= 2.0 * (pooling - 1.0)
        lengths += generator.random(samples)
        lengths += 1.0
        bag_sizes = lengths.astype(np.int64)
    if coverage >= 1.0:
        _pass_over(generator, samples)
    else:
        bag_sizes *= generator.random(samples) < coverage
    return bag_sizes


def _pass_over(generator: np.random.Generator, draws: int) -> None:
    """Bring a generator to where it is after ``draws`` uniform numbers."""
    bits = generator.bit_generator
    if isinstance(bits, np.random.PCG64):
        bits.advance(draws)
    else:
        generator.random(draws)
