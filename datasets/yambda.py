"""Yambda, which MLPerf's DLRMv4 trains on, from the folder that ``shardbench prepare`` writes.

A sample is one event: its user's latest events of three kinds before it are its history, the event is its candidate.
Samples are in the order of days; on a day they are user by user, in the order of time.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput
from shardbench.datasets.preparation import prepared
from shardbench.datasets.preparation.yambda_prepare import (
    EVENT_ARRAYS,
    MAPPINGS,
    RUNS,
    STARTS,
    Prepared,
    array_file,
)
from shardbench.datasets.yambda_like import (
    BLOCK,
    HISTORIES,
    ROWS,
    TRAINED_FROM,
    Events,
    HistoriesConfig,
    single_lookups,
)
from shardbench.model.table import Name
from shardbench.workloads.hotness import join
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.trace import Bags

_HOW = "download the three files of Yambda and prepare them into that folder: shardbench prepare yambda"


class YambdaConfig(HistoriesConfig, RecordedConfig):
    """The benchmark's tables; days are counted from 0, and what is before the first is history alone."""

    dataset: Literal["yambda"] = "yambda"
    name: Name = "yambda"
    prepared: str = "yambda"
    """Prepared folder, relative to the data folder."""
    first_day: NonNegativeInt | None = None
    """First day that trains; None: when the share of days is over that ``yambda_like`` assumes."""
    test_day: PositiveInt | None = None
    """First day that tests; None: the last one."""
    profile_samples: PositiveInt = 8_192

    def build(self, data: Path) -> "Yambda":
        """Map the prepared folder; raises BadInput that says how to prepare it."""
        return Yambda(self, data)


class Yambda(RecordedWorkload):
    """Histories are put together when a batch is read: written down they would be thousands of times the data."""

    _config: YambdaConfig

    def __init__(self, config: YambdaConfig, data: Path) -> None:
        super().__init__(config)
        folder = data / config.prepared
        self.prepared = prepared.read_model(Prepared, folder / prepared.NOTE, _HOW)
        self.tables = config.tables(ROWS)
        events, runs = (self.prepared.samples,), self.prepared.runs
        read = prepared.read_array
        self._events = {
            name: read(folder / array_file(name), kind, events, _HOW) for name, kind in EVENT_ARRAYS.items()
        }
        self._owners = {name: read(folder / array_file(name), np.int32, (ROWS["item_id"],), _HOW) for name in MAPPINGS}
        self._runs = read(folder / array_file(RUNS), np.int64, (runs, 3), _HOW)
        self._starts = read(folder / array_file(STARTS), np.int64, (runs + 1,), _HOW)
        by_day = self.prepared.samples_by_day
        test_day = len(by_day) - 1 if config.test_day is None else config.test_day
        first_day = int(TRAINED_FROM * test_day) if config.first_day is None else config.first_day
        if not first_day < test_day < len(by_day):
            raise BadInput(
                f"{self.name}: there are days 0 to {len(by_day) - 1}, of which none from {first_day} on trains and "
                f"none from {test_day} on tests: lower first_day or test_day"
            )
        self._first = sum(by_day[:first_day])
        self._split_samples(sum(by_day[first_day:]), sum(by_day[first_day:test_day]))

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        return self._taken(table, np.arange(start, stop))

    def _taken(self, table: int, samples: Ints) -> Bags:
        # In parts, since all that a user did before is looked at.
        parts = np.split(samples + self._first, range(BLOCK, len(samples), BLOCK))
        return join([self._lookups(table, part) for part in parts])

    def _lookups(self, table: int, samples: Ints) -> Bags:
        """Return the lookups of samples int64 [n], counted from the first day's first one."""
        name = self.tables[table].name
        run = np.searchsorted(self._starts, samples, side="right") - 1
        firsts, begins, users = np.asarray(self._runs[run]).T
        own = np.asarray(firsts + samples - self._starts[run])
        keys = {"uid": users, "hour": self._of_events("hours", own), "is_organic": self._of_events("organic", own)}
        if name not in HISTORIES:
            keys |= {key: self._rows(key, own) for key in HISTORIES}
            return single_lookups(name, keys, self.tables[table].rows, table)
        begins, user = np.unique(begins, return_inverse=True)
        counts = np.zeros(len(begins), dtype=np.int64)
        np.maximum.at(counts, user, own + 1 - begins[user])
        before = np.cumsum(counts) - counts
        at = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
        events = Events.of(
            {name: self._rows(name, at)},
            self._of_events("kinds", at),
            counts,
            run=user,
            own=own - (begins - before)[user],
            keys=keys,
            pool=self._config.pool,
        )
        return events.bags(name)

    def _rows(self, table: str, events: Ints) -> Ints:
        """Return the rows int64 [n] of events' items, or of their artists or albums."""
        items = self._of_events("items", events)
        return np.asarray(self._owners[table][items], dtype=np.int64) if table in self._owners else items

    def _of_events(self, array: str, events: Ints) -> Ints:
        return np.asarray(self._events[array][events], dtype=np.int64)

    def recipe(self) -> object:
        """Return the configuration and the prepared folder's description, checksums included."""
        return {"config": self._config.model_dump(mode="json"), "prepared": self.prepared.model_dump(mode="json")}


CONFIG = YambdaConfig
