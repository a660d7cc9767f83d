"""Cases of FBGEMM's kernels: their lookups, drawn on the device, what the cost model predicts of them, and their times.

A kernel is timed in two ways. From idle, as a calibration does it: the device waits for the host's call, so that a
short kernel takes as long as that call. Behind other work: the host is ahead of the device, and the time is the
device's alone; there the model's dispatch counts nothing.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from box import Box
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from shardbench.calibrate.cases import KernelCase, on_one_device, problem_of
from shardbench.calibrate.kernels import kernel_ms, time_backward
from shardbench.cost.caching import CacheCounts, CacheWork
from shardbench.cost.costmodel import backward_s, caching_s, forward_s
from shardbench.cost.load import Load
from shardbench.cost.published.gpus import shared
from shardbench.cost.traffic import Traffic, count
from shardbench.model.machine import Machine
from shardbench.model.plan import OnRank, Plan, Tier, whole_table
from shardbench.model.table import DenseShape, Optimizer
from shardbench.workloads.trace import Bags

OPTIMIZERS = {
    Optimizer.SGD: EmbOptimType.EXACT_SGD,
    Optimizer.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}
IDLE, BEHIND = "from idle", "behind other work"
EVICTED_BYTES = 2**28
"""Written before every kernel, so that none finds the rows of the last one in the cache."""
WRITES, MOST_WRITES = 6, 48
"""Such writes before a kernel that is timed behind other work: a millisecond, in which the host gets ahead.

Twice as many from then on where it did not.
"""
OVERTAKEN = "overtaken"
"""How often the device reached a kernel before the host had launched all of it: no time behind other work then."""


def memory_of(tiers: Iterable[Tier]) -> dict[str, str]:
    """Return how host memory is made, where tables are in it: box.py has it mapped, FBGEMM's default is managed."""
    return {} if all(tier is Tier.HBM for tier in tiers) else {"memory": "host-mapped"}


@dataclass(frozen=True, kw_only=True)
class Case(KernelCase):
    """A kernel point with its optimizer and, where its rows are cached, the share of them that the cache holds."""

    optimizer: Optimizer = Optimizer.SGD
    cache_ratio: float | None = None

    def what(self) -> dict[str, Any]:
        """Return what the case is of, as a row of numbers states it."""
        cached = {} if self.cache_ratio is None else {"cache_ratio": self.cache_ratio, "algorithm": "lru"}
        return {
            "tables": self.tables, "rows": self.rows, "dim": self.dim, "batch": self.batch, "pooling": self.pooling,
            "skew": self.skew, "tier": self.tier.value, "pooled": "none" if self.unpooled else "sum",
            "optimizer": self.optimizer.value, **cached, **memory_of([self.tier]),
        }  # fmt: skip

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the vectors that the kernel writes, about."""
        return 4 * self.dim * self.tables * self.batch * (self.pooling if self.unpooled else 1)


@dataclass(frozen=True)
class Lookups:
    """One batch of a case, on the device and, for the count, in the host's memory."""

    ids: torch.Tensor
    offsets: torch.Tensor
    bags: tuple[Bags, ...]
    """The lookups of each table."""


def draw(box: Box, case: Case, number: int = 0) -> Lookups:
    """Draw a batch of a case, always the same: row ids are ``rows * u ** skew``, lengths of bags Poisson."""
    seed = zlib.crc32(repr((case.tables, case.rows, case.batch, case.pooling, case.skew, number)).encode())
    generator = torch.Generator(device=box.device).manual_seed(seed)
    number_of_bags = case.tables * case.batch
    means = torch.full((number_of_bags,), float(case.pooling), device=box.device)
    lengths = means.long() if case.pooling == 1 else torch.poisson(means, generator=generator).long()
    offsets = torch.zeros(number_of_bags + 1, dtype=torch.int64, device=box.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    uniform = torch.rand(int(offsets[-1]), dtype=torch.float64, device=box.device, generator=generator)
    # A product may be rounded up to the number of rows.
    ids = (uniform**case.skew * case.rows).long().clamp_(max=case.rows - 1)
    values, ends = ids.cpu().numpy(), offsets.cpu().numpy()
    bags = []
    for first in range(0, number_of_bags, case.batch):
        own = ends[first : first + case.batch + 1]
        bags.append(Bags(values=values[own[0] : own[-1]], offsets=own - own[0]))
    return Lookups(ids, offsets, tuple(bags))


def traffic_of(case: Case, machine: Machine, lookups: Lookups, met: Sequence[CacheCounts] = ()) -> Traffic:
    """Count what a batch does on one device; ``met`` is what it meets in the cache, by table."""
    problem = replace(problem_of(case, on_one_device(machine)), optimizer=case.optimizer)
    place = OnRank(rank=0, tier=case.tier, cache_ratio=case.cache_ratio)
    segments = tuple(whole_table(table, place) for table in problem.tables)
    plan = Plan(world_size=1, segments=segments)
    caches = dict(zip(segments, met)) if met else None
    return count(plan, problem, lambda table: lookups.bags[table], DenseShape(), caches=caches)


def predicted_ms(load: Load, machine: Machine, caching: CacheWork | None = None) -> dict[tuple[str, str], float]:
    """Return what the committed model predicts of each phase and way of timing it; a cached forward is also parted."""
    constants, cache_s = machine.constants, 0.0
    times = {}
    if caching is not None:
        cache_s = float(caching_s(caching, constants, shared()["cache_directory_s"])[0])
        times["populate", BEHIND] = 1e3 * cache_s
        launched = replace(constants, dispatch_s=0.0)
        times["lookup", BEHIND] = 1e3 * float(forward_s(load, launched)[0])
    for how, dispatch_s in ((IDLE, constants.dispatch_s), (BEHIND, 0.0)):
        own = replace(constants, dispatch_s=dispatch_s)
        times["forward", how] = 1e3 * float(forward_s(load, own, cache_s)[0])
        times["backward", how] = 1e3 * float(backward_s(load, own)[0])
    return times


def counted(traffic: Traffic) -> dict[str, Any]:
    """Return the numbers of a batch from which, with its case, the load can be made again."""
    load = traffic.load
    numbers = {
        "lookups": float(load.all_lookups[0]), "distinct": float((load.distinct + load.uvm.distinct)[0]),
        "bags": float(load.bags[0]), "chain": float(load.chain[0]),
    }  # fmt: skip
    if traffic.caching is not None:
        numbers |= {"filled": float(traffic.caching.filled[0]), "evicted": float(traffic.caching.evicted[0])}
        numbers |= {"conflict": float(load.uvm.distinct[0]), "conflict_lookups": float(load.uvm.lookups[0])}
    return numbers


def even_bags(box: Box, tables: int, rows: int, batch: int, pooling: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw uniform ids [tables x batch x pooling] and the offsets of their bags, on the device."""
    draw = torch.Generator(device=box.device).manual_seed(tables * 1_000_003 + batch)
    bags = tables * batch
    ids = torch.randint(0, rows, (bags * pooling,), device=box.device, generator=draw)
    offsets = torch.arange(0, bags * pooling + 1, pooling, device=box.device)
    return ids, offsets


class Stopwatch:
    """Times kernels with what they need in the caches of the device written over."""

    def __init__(self, box: Box) -> None:
        self.box, self.clock, self._writes = box, box.clock, WRITES
        size = 2**20 if box.cpu else EVICTED_BYTES
        self._evicted = torch.zeros(size // 4, device=box.device)

    def times(
        self,
        tables: SplitTableBatchedEmbeddingBagsCodegen,
        lookups: Lookups,
        *,
        how: str,
        warmups: int = 0,
        runs: int = 1,
        apart: bool = False,
    ) -> dict[str, list[float]]:
        """Return the ms of each forward and of its backward by phase.

        With ``apart`` the cache is filled by a call of its own. Behind other work, OVERTAKEN is among the phases.
        """
        times: dict[str, list[float]] = {}
        for number in range(warmups + runs):
            for phase, ms in self._forward_and_backward(tables, lookups, how=how, apart=apart).items():
                times.setdefault(phase, []).extend([ms] if number >= warmups else [])
        return times

    def _forward_and_backward(
        self, tables: SplitTableBatchedEmbeddingBagsCodegen, lookups: Lookups, *, how: str, apart: bool
    ) -> dict[str, float]:
        self.begin(how)
        stamps = [self.clock.now()]
        if apart:
            tables.prefetch(lookups.ids, lookups.offsets)
            stamps.append(self.clock.now())
        vectors = tables(lookups.ids, lookups.offsets)
        stamps.append(self.clock.now())
        overtaken = self._overtaken(stamps[0]) if how == BEHIND else 0
        gradient = torch.ones_like(vectors)
        self.begin(how)
        backward = time_backward(vectors, self.clock) if how == IDLE else []
        start = self.clock.now()
        vectors.backward(gradient)
        if how == BEHIND:
            backward.append((start, self.clock.now()))
            overtaken += self._overtaken(start)
        self.clock.settle()
        parts = ("populate", "lookup") if apart else ("forward",)
        times = {part: kernel_ms(self.clock, a, b) for part, a, b in zip(parts, stamps, stamps[1:])}
        times["backward"] = sum(kernel_ms(self.clock, a, b) for a, b in backward)
        return times | ({OVERTAKEN: float(overtaken)} if how == BEHIND else {})

    def _overtaken(self, start: Any) -> int:
        """Say by 1 or 0 whether the device is past a stamp, of a kernel whose last launch just was."""
        overtaken = bool(start.query())
        if overtaken:
            self._writes = min(2 * self._writes, MOST_WRITES)
        return int(overtaken)

    def begin(self, how: str) -> None:
        """Write over the device's caches, and wait for it unless the kernel is timed behind that."""
        for _ in range(self._writes if how == BEHIND else 1):
            self._evicted.add_(1.0)
        if how == IDLE:
            self.clock.settle()

    def of(
        self, work: Callable[[], object], *, how: str, warmups: int, runs: int
    ) -> tuple[list[float], dict[str, Any]]:
        """Return the ms of single calls and, behind other work, OVERTAKEN."""
        times, overtaken = [], 0
        for number in range(warmups + runs):
            self.begin(how)
            start = self.clock.now()
            work()
            stop = self.clock.now()
            early = self._overtaken(start) if how == BEHIND else 0
            self.clock.settle()
            if number >= warmups:
                times.append(kernel_ms(self.clock, start, stop))
                overtaken += early
        return times, {OVERTAKEN: overtaken} if how == BEHIND else {}

    @staticmethod
    def marks(times: dict[str, list[float]]) -> dict[str, Any]:
        """Return how often several forwards and backwards were OVERTAKEN, as a row of numbers states it."""
        return {OVERTAKEN: sum(times[OVERTAKEN])} if OVERTAKEN in times else {}
