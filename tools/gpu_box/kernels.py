"""FBGEMM's forward and backward apart, in HBM, in host memory, and behind a cache, against the committed cost model.

One base case first, in each tier; then cases that differ from it in one thing or two, in an order drawn once, with
cached streams between them; then a random sample of the grid for as long as there is time. So the numbers are balanced
wherever they end. Tables in host memory (``uvm``) are host-mapped: this programme asks for no managed memory. On a CPU
every table is in its memory, and what needs another one is skipped.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from box import Box
from cached import measure_cached
from cases import BEHIND, IDLE, OPTIMIZERS, Case, Stopwatch, counted, draw, predicted_ms, traffic_of
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from shardbench.calibrate.kernels import fused_tables
from shardbench.model.plan import Tier
from shardbench.model.table import Optimizer

SEED = 20_260_101
"""Draws the order of the cases, and the sample of the grid."""
BASE = Case(tables=10, rows=200_000, dim=64, batch=4096, pooling=10)
CHANGES: tuple[dict[str, Any], ...] = (
    {"dim": 16}, {"dim": 32}, {"dim": 128}, {"dim": 256}, {"dim": 512},
    {"batch": 10}, {"batch": 100}, {"batch": 1000}, {"batch": 10_000}, {"batch": 30_000},
    {"batch": 40_960, "pooling": 1}, {"batch": 1024, "pooling": 40}, {"batch": 205, "pooling": 200},
    {"skew": 2.0}, {"skew": 4.0}, {"skew": 8.0}, {"rows": 1000}, {"rows": 20_000}, {"rows": 2_000_000},
    {"tables": 1, "rows": 2_000_000, "batch": 40_960}, {"tables": 100, "rows": 20_000, "batch": 410},
    {"tables": 400, "rows": 5000, "batch": 102},
    {"unpooled": True}, {"unpooled": True, "skew": 4.0}, {"unpooled": True, "batch": 100},
    {"unpooled": True, "dim": 256}, {"unpooled": True, "rows": 1000},
    {"dim": 16, "skew": 4.0}, {"dim": 256, "skew": 4.0}, {"dim": 256, "batch": 100}, {"dim": 256, "batch": 10_000},
    {"tables": 100, "rows": 20_000, "batch": 410, "dim": 256},
)  # fmt: skip
"""What cases differ in from the base, one thing or two: width, lookups, length of bags, reuse, tables, pooling."""
AXES = ((Tier.HBM, Optimizer.SGD), (Tier.UVM, Optimizer.SGD), (Tier.HBM, Optimizer.ROWWISE_ADAGRAD))
BASES = (*AXES, (Tier.UVM, Optimizer.ROWWISE_ADAGRAD))
HOST_DIMS = (16, 32, 128, 256)
"""Widths of rows in host memory that come with the base cases: reads of it decide about plans that use it."""
CACHED = Case(
    tables=4, rows=100_000, dim=128, batch=1024, pooling=20, skew=4.0, tier=Tier.CACHED, cache_ratio=0.2
)  # fmt: skip
CACHED_CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"cache_ratio": 0.05}, {"cache_ratio": 0.4}, {"cache_ratio": 0.1},
    {"rows": 1_000_000, "dim": 64, "batch": 4096}, {"skew": 2.0}, {"unpooled": True},
    {"optimizer": Optimizer.ROWWISE_ADAGRAD},
)  # fmt: skip
BETWEEN = 6
"""Cases after which a cached one has its turn."""
WARMUPS, RUNS, BEHIND_RUNS = 2, 5, 6
MOST_S = 1.5
"""Predicted seconds of a case's runs, of which there are fewer where they take longer."""


def measure(box: Box) -> None:
    """Measure the cases in their order until the time is over."""
    bench = Bench(box)
    for case in _order(box):
        if box.over(bench.needed_s(case)):
            if case.tier is Tier.CACHED:
                continue  # there may be time for a shorter one
            return
        with box.attempt(str(case.what())):
            if case.tier is Tier.CACHED:
                bench.drop()
                measure_cached(box, bench.stopwatch, case)
            else:
                bench.measure(case)


class Bench:
    """Keeps the tables of the last case, for the next one that has the same."""

    def __init__(self, box: Box) -> None:
        self.box, self.stopwatch = box, Stopwatch(box)
        self._tables: SplitTableBatchedEmbeddingBagsCodegen | None = None
        self._of: object = None

    def needed_s(self, case: Case) -> float:
        """Return about how long a case takes at most."""
        if case.tier is Tier.CACHED:
            return 8.0 if case.rows > CACHED.rows else 5.0
        return 2.0 + (2e-9 * case.weight_bytes if case.tier is Tier.UVM else 0.0)

    def drop(self) -> None:
        """Give the memory of the last tables back."""
        self._tables, self._of = None, None
        self.box.free()

    def measure(self, case: Case) -> None:
        """Time one case, and keep the numbers beside what is predicted of them."""
        box = self.box
        lookups = draw(box, case)
        traffic = traffic_of(case, box.whole_machine, lookups)
        predicted = predicted_ms(traffic.load, box.whole_machine)
        tables = self._tables_for(case)
        whole_s = 1e-3 * (predicted["forward", IDLE] + predicted["backward", IDLE])
        for how, warmups, runs in ((IDLE, WARMUPS, RUNS), (BEHIND, 1, BEHIND_RUNS)):
            if how == BEHIND and box.cpu:
                continue  # a CPU's host and device are one: it has no such time
            fewer = max(2, min(runs, int(MOST_S / 2.0 / whole_s) - warmups)) if whole_s else runs
            often = (1, 1) if box.cpu else (warmups if whole_s < MOST_S / 4.0 else 1, fewer)
            times = self.stopwatch.times(tables, lookups, how=how, warmups=often[0], runs=often[1])
            what = case.what() | counted(traffic) | self.stopwatch.marks(times)
            for phase in ("forward", "backward"):
                box.add("kernels", times[phase], predicted[phase, how], phase=phase, how=how, **what)

    def _tables_for(self, case: Case) -> SplitTableBatchedEmbeddingBagsCodegen:
        of = (case.kernel, case.optimizer)
        if self._tables is None or self._of != of:
            self.drop()
            self.box.check_room(case.weight_bytes if case.tier is Tier.HBM else 0)
            self._tables = fused_tables(
                self.box.device, [(case.rows, case.dim)] * case.tables, tier=case.tier,
                optimizer=OPTIMIZERS[case.optimizer], pooled=not case.unpooled,
            )  # fmt: skip
            self._of = of
        # Vectors, their gradients, and what the backward pass sorts.
        self.box.check_room(3 * case.output_bytes + 100 * case.tables * case.batch * case.pooling)
        return self._tables


def _order(box: Box) -> Iterator[Case]:
    tiers = (Tier.HBM,) if box.cpu else (Tier.HBM, Tier.UVM)
    if box.cpu:
        box.skip("tables in host memory", "a CPU has one memory")
    first = [replace(BASE, tier=tier, optimizer=optimizer) for tier, optimizer in BASES]
    first += [replace(BASE, tier=Tier.UVM, dim=dim) for dim in HOST_DIMS]
    bases = [_fit(box, case) for case in first if case.tier in tiers]
    streams = _cached_cases(box)
    yield from bases
    yield from islice(streams, 2)
    axes = [case for case in _axes(box, tiers) if case not in bases]
    for number, case in enumerate(axes, start=1):
        yield case
        if number % BETWEEN == 0:
            yield from islice(streams, 1)
    yield from streams
    yield from islice(_sample(box, tiers), 2 if box.cpu else None)


def _axes(box: Box, tiers: Sequence[Tier]) -> list[Case]:
    """Return the cases that differ from the base, those of the same tables together, in an order drawn once."""
    changes = ({}, {"tables": 3}, {"unpooled": True}) if box.cpu else CHANGES
    groups: dict[object, dict[Case, None]] = {}
    for tier, optimizer in AXES:
        if tier in tiers:
            for change in changes:
                case = _fit(box, replace(BASE, tier=tier, optimizer=optimizer, **change))
                groups.setdefault((case.kernel, optimizer), {})[case] = None
    keys = list(groups)
    random.Random(SEED).shuffle(keys)
    return [case for key in keys for case in groups[key]]


def _cached_cases(box: Box) -> Iterator[Case]:
    for change in CACHED_CHANGES[: 1 if box.cpu else None]:
        yield _fit(box, replace(CACHED, **change))


def _sample(box: Box, tiers: Sequence[Tier]) -> Iterator[Case]:
    """Draw cases of the grid without end: tables, then three loads for them."""
    draws = random.Random(SEED)
    while True:
        tables, dim = draws.choice((1, 10, 100, 400)), draws.choice((16, 32, 64, 128, 256, 512))
        rows = max(10, draws.choice((10_000, 1_000_000, 10_000_000)) // tables)
        tier, optimizer, unpooled = draws.choice(tiers), draws.choice(list(OPTIMIZERS)), draws.random() < 0.25
        for _ in range(3):
            pooling, lookups = draws.choice((1, 5, 20, 100)), draws.choice((1e3, 1e4, 1e5, 1e6, 3e6))
            case = Case(
                tables=tables, rows=rows, dim=dim, batch=max(1, round(lookups / (tables * pooling))), pooling=pooling,
                skew=draws.choice((1.0, 2.0, 4.0, 8.0)), tier=tier, unpooled=unpooled, optimizer=optimizer,
            )  # fmt: skip
            yield _fit(box, case)


def _fit(box: Box, case: Case) -> Case:
    """Return the case with fewer rows or bags where its weights, its vectors or its reads of host memory are too large.

    In a rehearsal they are small, and there are at most four tables.
    """
    tables, batch = case.tables, case.batch
    weights, vectors = (2**29 if case.tier is Tier.UVM else 2**32), 2**31
    if box.cpu:
        weights, vectors, tables, batch = 2**20, 2**18, min(tables, 4), max(1, batch // 256)
    rows = max(10, min(case.rows, weights // (4 * tables * case.dim)))
    of_bag = case.pooling if case.unpooled else 1
    batch = min(batch, max(1, vectors // (4 * tables * case.dim * of_bag)))
    if case.tier is Tier.UVM:
        batch = min(batch, max(1, 2**29 // (4 * tables * case.dim * case.pooling)))
    return replace(case, tables=tables, rows=rows, batch=batch)
