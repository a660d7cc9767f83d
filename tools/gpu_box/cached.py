"""FBGEMM's cache in HBM of rows in host memory: what each batch of a stream meets in it, and the times it takes.

FBGEMM's own counts stand beside those of the project's simulation of the same cache, batch by batch. They come from its
table of which row each slot holds, read before and after the batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from box import Box
from cases import BEHIND, IDLE, OPTIMIZERS, Case, Lookups, Stopwatch, counted, draw, predicted_ms, traffic_of
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm

from shardbench.base.arrays import Ids, Ints
from shardbench.calibrate.kernels import fused_tables
from shardbench.cost.cache import EMPTY, Cache, CacheStep
from shardbench.cost.caching import CacheCounts
from shardbench.model.caching import WAYS, slots_of
from shardbench.model.plan import Tier


@dataclass(frozen=True)
class Batch:
    """A batch of the stream: its lookups, its distinct rows as the cache numbers them, and what it meets."""

    number: int
    lookups: Lookups
    rows: Ids
    """The rows, in ascending order."""
    counts: Ints
    step: CacheStep


class Stream:
    """The batches of a case one after the other, with the simulated cache that they go through."""

    def __init__(self, box: Box, case: Case) -> None:
        self.box, self.case = box, case
        self.sets = slots_of(case.tables * case.rows * (case.cache_ratio or 0.0)) // WAYS
        self.number = 0
        self.empty()

    def empty(self) -> None:
        """Begin with an empty cache."""
        self.simulated = Cache(self.sets)

    def next(self) -> Batch:
        """Draw the next batch and let it go through the simulated cache."""
        number, case = self.number, self.case
        self.number += 1
        lookups = draw(self.box, case, number)
        linear = np.concatenate([bags.values + table * case.rows for table, bags in enumerate(lookups.bags)])
        rows, counts = np.unique(linear, return_counts=True)
        return Batch(number, lookups, rows, counts, self.simulated.step(rows))

    def met(self, batch: Batch) -> list[CacheCounts]:
        """Return what a batch meets in the simulated cache, by table."""
        case, step = self.case, batch.step

        def by_table(rows: Ids, weights: Ints | None = None) -> Any:
            return np.bincount(rows // case.rows, weights, minlength=case.tables).astype(np.float64)

        conflict = step.conflict
        of_tables = zip(
            by_table(batch.rows[step.inserted]), by_table(batch.rows[conflict]),
            by_table(batch.rows[conflict], batch.counts[conflict]), by_table(step.evicted),
        )  # fmt: skip
        return [CacheCounts(*(np.array([number]) for number in numbers)) for numbers in of_tables]


def measure_cached(box: Box, stopwatch: Stopwatch, case: Case) -> None:
    """Count a stream batch by batch from an empty cache, then time it on, warm, then batches in an empty cache."""
    counted_batches, warm, cold = (2, 2, 2) if box.cpu else (10, 6, 4)
    stream, tables = Stream(box, case), None
    if box.cpu:
        box.skip(f"FBGEMM's cache, {_name(case)}", "FBGEMM has no cache on CPUs: only the simulation runs")
    else:
        tables = _tables(box, case)
    for _ in range(counted_batches):
        if box.over(1.0):
            return
        _compare(box, case, stream, tables)
    if tables is not None:
        # Two batches whose times do not count: memory is made, and kernels are loaded.
        for how in (IDLE, BEHIND):
            stopwatch.times(tables, stream.next().lookups, how=how, apart=how == BEHIND)
    _time(box, stopwatch, stream, tables, state="warm", batches=warm)
    _time(box, stopwatch, stream, tables, state="cold", batches=cold)


def _tables(box: Box, case: Case) -> Any:
    return fused_tables(
        box.device, [(case.rows, case.dim)] * case.tables, tier=Tier.CACHED, optimizer=OPTIMIZERS[case.optimizer],
        pooled=not case.unpooled, cache_algorithm=CacheAlgorithm.LRU,
        cache_load_factor=case.cache_ratio,
    )  # fmt: skip


def _name(case: Case) -> str:
    return f"LRU of {case.cache_ratio:g} of the rows"


def _compare(box: Box, case: Case, stream: Stream, tables: Any) -> None:
    """Keep the counts of the next batch: simulated ones as the prediction, FBGEMM's own as what is measured."""
    batch = stream.next()
    own = {} if tables is None else _own_counts(box, case, batch, tables)
    step = batch.step
    simulated = _numbers(batch, step.hit, step.inserted, len(step.evicted))
    missed = [own["fbgemm_inserted"] + own["fbgemm_conflict"]] if "fbgemm_inserted" in own else []
    box.add(
        "kernels", missed, simulated["inserted"] + simulated["conflict"], unit="rows", phase="counts of a batch",
        of="distinct rows that the cache lacks", number=batch.number, sets=stream.sets, **case.what(),
        lookups=int(batch.counts.sum()), distinct=len(batch.rows),
        **{f"simulated_{name}": number for name, number in simulated.items()}, **own,
    )  # fmt: skip


def _own_counts(box: Box, case: Case, batch: Batch, tables: Any) -> dict[str, Any]:
    """Look a batch up, and return what FBGEMM's cache says of it; what it does not say is skipped."""
    with box.attempt(f"FBGEMM's slots around a batch, {_name(case)}"):
        before = _rows_by_slot(tables)
        with torch.no_grad():
            tables(batch.lookups.ids, batch.lookups.offsets)
        return _slots_say(batch, before, _rows_by_slot(tables))
    return {}


def _rows_by_slot(tables: Any) -> Ids:
    """Return the row that each slot of FBGEMM's cache holds, int64 [sets, ways]; EMPTY where none."""
    return np.asarray(tables.lxu_cache_state.cpu().numpy())


def _slots_say(batch: Batch, before: Ids, after: Ids) -> dict[str, float]:
    was, stays = np.isin(batch.rows, before), np.isin(batch.rows, after)
    evicted = np.setdiff1d(before[before != EMPTY], after[after != EMPTY], assume_unique=True)
    numbers = _numbers(batch, was & stays, ~was & stays, len(evicted))
    return {f"fbgemm_{name}": number for name, number in numbers.items()}


def _numbers(batch: Batch, hit: Any, inserted: Any, evicted: int) -> dict[str, float]:
    conflict = ~(hit | inserted)
    return {
        "hit": int(hit.sum()), "inserted": int(inserted.sum()), "conflict": int(conflict.sum()),
        "conflict_lookups": int(batch.counts[conflict].sum()), "evicted": evicted,
    }  # fmt: skip


def _time(box: Box, stopwatch: Stopwatch, stream: Stream, tables: Any, *, state: str, batches: int) -> None:
    """Time batches: every other one whole and from idle, the others behind other work, the cache filled apart."""
    for turn in range(batches):
        if state == "cold":
            stream.empty()
            if tables is not None:
                tables.flush()
                tables.reset_cache_states()
        batch = stream.next()
        traffic = traffic_of(stream.case, box.whole_machine, batch.lookups, stream.met(batch))
        predicted = predicted_ms(traffic.load, box.whole_machine, traffic.caching)
        how = BEHIND if turn % 2 else IDLE
        times: dict[str, list[float]] = {}
        if tables is not None:
            times = stopwatch.times(tables, batch.lookups, how=how, apart=how == BEHIND)
        what = stream.case.what() | counted(traffic) | stopwatch.marks(times)
        for phase in ("populate", "lookup", "backward") if turn % 2 else ("forward", "backward"):
            what |= {"phase": phase, "how": how, "state": state, "number": batch.number}
            box.add("kernels", times.get(phase, []), predicted[phase, how], **what)
