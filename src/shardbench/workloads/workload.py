"""A workload: tables, their training profiles, and seeded batches of lookups."""

import copy
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pydantic
from pydantic import Field

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile, HeldOut, InputSample
from shardbench.model.table import BatchSize, DenseShape, Name, Table
from shardbench.workloads.ranking_cache import RecentRankings, Survey
from shardbench.workloads.trace import Bags, Ranking, Split, assert_readable, check_rows, last_rows

SAMPLED_INPUTS = 8192
"""Inputs in a sample: a share of a half is known to 0.6 %."""
_SAMPLED_NUMBERS = 1 << 18
"""Inputs times tables that a sample may have."""
FIRST_IDS = 1000
"""Lookups of a table that a fingerprint is made of."""
MISSING = -1
"""Row of an input that asks a table for none."""


class Workload(ABC):
    """Batches are made on demand, table by table, so that nothing large is ever held whole.

    Subclasses give ``tables``, ``_bags`` and ``_survey``. All ids are ranks in the frequency
    order of the train split.
    """

    name: str
    tables: tuple[Table, ...]
    dense: DenseShape
    batch_size: int
    test_batches: int
    """How many distinct test batches exist; iteration i uses batch i modulo this."""
    profile_samples: int
    """Train samples that profiles are counted over."""
    train_samples: int | None = None
    """Samples of the train split that are on record; None where they are drawn, without end."""
    drawn: ClassVar[bool] = False
    """Whether the test batches of any numbers can be drawn, beside those that trials are judged on."""
    stated_dense: DenseShape | None = None
    """The dense model where somebody stated it: memory is not held against one that is only assumed."""
    _config: "WorkloadConfig"

    def _configure(self, config: "WorkloadConfig") -> None:
        """Take over what every configuration states; the tables are the subclass's."""
        self._config = config
        self.name = config.name
        self.dense = config.dense
        self.stated_dense = config.dense if "dense" in config.model_fields_set else None
        self.batch_size = config.batch_size
        self.test_batches = config.test_batches

    @abstractmethod
    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        """Return the lookups of table number ``table`` in global batch ``batch``; same arguments, same lookups."""

    @abstractmethod
    def _survey(self, table: int) -> Survey:
        """Make ranking and profile of a table in one pass over the train samples."""

    @abstractmethod
    def recipe(self) -> object:
        """Return plain data that determines this workload (parameters, checksums of its files)."""

    def bags(self, split: Split, iteration: int, table: int, *, first: int = 0) -> Bags:
        """Return lookups of one table in one global batch: ids in [0, rows), ``batch_size`` samples of its features.

        ``first`` is the number of the first test batch; another one than 0 names batches beside those that trials are
        judged on, and raises BadInput where the lookups are on record.
        """
        assert_readable(split)
        if first and not self.drawn:
            raise BadInput(f"{self.name}: its lookups are on record, there are no others to hold out")
        batch = first + iteration % self.test_batches if split is Split.TEST else iteration
        bags = self._bags(split, batch, table)
        shape = self.tables[table]
        if bags.batch_size != self.batch_size:
            raise BadInput(f"{self.name}/{shape.name}: {bags.batch_size} bags in a batch of {self.batch_size}")
        if bags.features != shape.features:
            raise BadInput(
                f"{self.name}/{shape.name}: bags of {bags.features} features, the table has {shape.features}"
            )
        check_rows(bags.values, shape.rows, f"{self.name}/{shape.name}")
        return bags

    @cached_property
    def _surveys(self) -> RecentRankings:
        return RecentRankings(self._survey)

    def ranking(self, table: int) -> Ranking:
        """Return the bijection from a table's ids, as recorded or drawn, to frequency ranks."""
        return self._surveys[table][0]

    @cached_property
    def profiles(self) -> tuple[AccessProfile, ...]:
        """Return the training profile of every table."""
        return tuple(self.profile(i) for i in range(len(self.tables)))

    def profile(self, table: int) -> AccessProfile:
        """Return the training profile of one table."""
        return self._surveys.profile(table)

    def _profile_of(self, table: int, runs: tuple[Ints, Ints], present: int, held_out: HeldOut | None) -> AccessProfile:
        """Return the profile of a table, of which ``runs`` are those of its ranking."""
        counts, row_counts = (tuple(numbers.tolist()) for numbers in runs)
        return AccessProfile(
            rows=self.tables[table].rows, samples=self.profile_samples, present=present, counts=counts,
            row_counts=row_counts, held_out=held_out,
        )  # fmt: skip

    def problem(self, machine: Machine, profiles: tuple[AccessProfile, ...] | None = None, **rest: Any) -> Problem:
        """Pose the problem of placing the tables on a machine; ``profiles`` are its own where none are given."""
        return Problem.of(
            self.name,
            self.tables,
            profiles or self.profiles,
            machine,
            batch_size=self.batch_size,
            dense=self.dense,
            **rest,
        )

    def quicker(self, samples: int) -> Self:
        """Return the same tables with profiles of ``samples`` train samples, for who has no time for all of them."""
        quick = copy.copy(self)
        for name in ("_surveys", "profiles", "input_sample", "fingerprint"):
            quick.__dict__.pop(name, None)
        quick.profile_samples = samples
        return quick

    @cached_property
    def input_sample(self) -> InputSample | None:
        """Return train inputs beside those that the profiles count; None where the workload has none to tell of."""
        count = min(SAMPLED_INPUTS, max(1, _SAMPLED_NUMBERS // len(self.tables)))
        parts = [self._unprofiled(i, count) for i in range(len(self.tables))]
        coldest = [last_rows(bags) for bags in parts if bags is not None]
        if len(coldest) < len(parts):
            return None
        return InputSample(coldest=tuple(tuple(rows.tolist()) for rows in coldest), train_inputs=self.train_samples)

    def _unprofiled(self, table: int, inputs: int) -> Bags | None:
        """Return the bags of at most ``inputs`` train inputs, the same ones for every table; ids as in ``bags``."""
        return None

    def _first_ids(self, table: int) -> Ints:
        """Return the first lookups of the first test batch, as ``bags`` has them."""
        return self._bags(Split.TEST, 0, table).values[:FIRST_IDS]

    @cached_property
    def fingerprint(self) -> str:
        """Return the hash of the recipe, the tables and the first lookups really generated."""
        # A generator that changes its draws must change the fingerprint, even if its recipe does not.
        some = range(0, len(self.tables), max(1, len(self.tables) // 4))
        ids = [self._first_ids(i) for i in some]
        return content_hash(self.recipe(), *self.tables, self.dense, self.batch_size, self.test_batches, *ids)


class WorkloadConfig(pydantic.BaseModel):
    """Parameters of a workload as a suite states them; each dataset module subclasses it.

    ``dataset`` names the module's kind (a Literal with a default in the subclass).
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dataset: str
    name: Name
    batch_size: BatchSize
    test_batches: Annotated[int, Field(ge=1, le=1 << 16)] = 4
    dense: DenseShape = DenseShape()

    @abstractmethod
    def build(self, data: Path) -> Workload:
        """Return the workload; ``data`` is the folder with files the user brought or prepared.

        Raises BadInput that says what to download or prepare where a file is missing.
        """


def rng(seed: int, split: Split, batch: int, table: int) -> np.random.Generator:
    """Return the generator of one (split, batch, table), independent of all others: no two splits share draws."""
    key = (0 if split is Split.TRAIN else 1, batch, table)
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))


def one_hot_values(source: Workload, split: Split, batch: int) -> Ints:
    """Return the row that each input of a batch asks for, int64 [batch_size, tables]; MISSING where a bag is empty.

    Raises BadInput for bags of several lookups.
    """
    values = np.full((source.batch_size, len(source.tables)), MISSING, dtype=np.int64)
    for table in range(len(source.tables)):
        bags = source.bags(split, batch, table)
        if len(bags.values) and int(bags.lengths.max()) > 1:
            raise BadInput(f"{source.name}/{source.tables[table].name} has bags of several lookups, not one value")
        values[bags.lengths > 0, table] = bags.values
    return values
