"""Tables larger than the HBM that they may take: whole training steps under plans that use host memory, or a cache.

RecShard's claim on real tiers. The tables take about 10 GB and plans may put a stated share of that in HBM: what is in
host memory is there by the plan's choice, and the card has room for the yardstick, everything in HBM, too. Steps of all
plans are on the same batches. Those of plans with a cache come after as many other batches as the model takes a cache
to have seen (twice the profile's), and each is of a batch that the cache has not met: ``filled`` rows are those that
were not in the cache before. The model has no term for the phase ``update``.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from box import Box
from drawing import draw
from steps import Bench, plan_key, release, time_steps

from shardbench.base.host import cores
from shardbench.datasets.synthetic import SyntheticConfig
from shardbench.engine.contenders import PlanOnRank
from shardbench.engine.heap import keep_freed_memory
from shardbench.model.caching import is_cached
from shardbench.model.plan import OnRank, Plan, Tier, whole_table
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape
from shardbench.model.validate import validate

SETTLING = 3
"""Steps of a plan without a cache that do not count."""
CACHE_RATIO = 0.2
"""TorchRec's own load factor."""
UVM, HBM, CACHED = "everything in UVM", "everything in HBM", "everything cached"
PLANS = (
    (50, "recshard"), (50, "greedy-size"), (50, UVM), (50, "joint"), (50, "torchrec-fused"), (50, CACHED), (100, HBM),
    (50, "greedy-size-lookup"), (25, "recshard"), (25, "greedy-size"), (25, "joint"), (25, CACHED), (75, "recshard"),
    (75, "greedy-size"), (75, "joint"), (25, "torchrec-fused"), (75, "torchrec-fused"), (75, CACHED),
    (25, "greedy-size-lookup"), (50, "greedy-lookup"), (50, "recshard-unseen"), (75, "greedy-size-lookup"),
)  # fmt: skip
"""Percent of the tables' bytes that a plan may put in HBM, and whose plan: the most telling first."""
FEW_PLANS = ((50, "recshard"), (50, UVM), (50, CACHED))


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the tables are, and how long is planned and measured."""

    config: SyntheticConfig
    timed: int
    rounds: int
    plan_s: float
    first_s: float
    """What the first plan may take in all."""


def size_of(box: Box) -> Size:
    """Return the sizes for this machine.

    Of each number of tables the seed is the first with about the wanted bytes and lookups whose largest table has at
    most a quarter of the rows, and a fifth of the lookups on GPUs, so that no single table decides.
    """
    if box.cpu:
        config = config_of(tables=3, seed=12632, dim=16, batch=128, profile=1024, batches=6)
        return Size(config=config, timed=2, rounds=1, plan_s=0.05, first_s=0.0)
    config = config_of(tables=20, seed=5043, dim=64, batch=16384, profile=262144, batches=40)
    return Size(config=config, timed=8, rounds=3, plan_s=4.0, first_s=12.0)


def config_of(*, tables: int, seed: int, dim: int, batch: int, profile: int, batches: int) -> SyntheticConfig:
    """Return a workload of so many of the papers' tables."""
    return SyntheticConfig(
        name=f"synthetic-{tables}",
        tables=tables,
        subset_seed=seed,
        dims=(dim,),
        batch_size=batch,
        profile_samples=profile,
        test_batches=batches,
        # A CPU's dense model of the usual size takes nearly all of the step.
        dense=DenseShape(bottom=(dim,), top=(16, 1)) if dim < 64 else DenseShape(),
    )


def measure(box: Box) -> None:
    """Measure plan after plan, as far as the time lasts."""
    size = size_of(box)
    start_s = time.perf_counter()
    workload = draw(size.config, processes=1 if box.cpu else min(cores(), len(PLANS)))
    bench = Bench(box, "tiers", workload, size.timed)
    box.note(drawing_s=time.perf_counter() - start_s)
    took_s, names = list[float](), dict[str, str]()
    for percent, name in FEW_PLANS if box.cpu else PLANS:
        needed_s = 1.1 * max(took_s, default=size.first_s)
        if box.over(needed_s):
            box.skip(f"{name}, {percent} %", f"{box.left_s():.0f} s are left, a plan takes {needed_s:.0f}")
            continue
        start_s = time.perf_counter()
        with box.attempt(f"{name}, {percent} %"):
            _measure_plan(bench, size, percent, name, names)
        release(box)
        took_s.append(time.perf_counter() - start_s)


def _measure_plan(bench: Bench, size: Size, percent: int, name: str, names: dict[str, str]) -> None:
    """Plan, predict, build and time; a plan that was measured before is only named."""
    box = bench.box
    problem, plan, plan_s = _plan(bench, size, percent, name)
    key = plan_key(plan)
    if key in names:
        box.note(plan=key, strategy=name, hbm_percent=percent, plan_s=plan_s, same_as=names[key])
        return
    names[key] = f"{name}, {percent} %"
    case = bench.judge(name, plan, problem, plan_s)
    box.check_room(int(validate(plan, problem, frozenset(Move)).hbm.max()))
    cached = any(map(is_cached, case.plan.segments))
    start_s = time.perf_counter()
    on_rank = bench.build(case, bench.everything() if cached else bench.timed, threads=1)
    what: dict[str, Any] = {"hbm_percent": percent, "plan_s": case.plan_s, "build_s": time.perf_counter() - start_s}
    keep_freed_memory()
    if cached:
        ms, filled = _cached_steps(box, on_rank, size)
        caching = case.predicted.traffic.caching if case.predicted is not None else None
        rows = None if caching is None else float(caching.filled.sum())
        own = bench.facts | {"strategy": name, "plan": case.key, "hbm_percent": percent}
        box.add("tiers", filled, rows, unit="rows", phase="filled", **own)
        what |= {"state": "each batch new to the cache"}
    else:
        time_steps(box, on_rank, range(-SETTLING, 0))
        ms = time_steps(box, on_rank, list(range(size.timed)) * size.rounds)
    bench.add(case, ms, **what)


def _plan(bench: Bench, size: Size, percent: int, name: str) -> tuple[Problem, Plan, float]:
    tables = bench.workload.tables
    whole = sum(table.rows * table.dim * 4 for table in tables)
    problem = bench.problem(bench.box.machine(hbm_bytes=whole * percent // 100, uvm_bytes=whole))
    places = {
        UVM: OnRank(rank=0, tier=Tier.UVM),
        HBM: OnRank(rank=0),
        CACHED: OnRank(rank=0, tier=Tier.CACHED, cache_ratio=CACHE_RATIO),
    }
    if name not in places:
        return problem, *bench.plan(name, problem, size.plan_s)
    plan = Plan(world_size=1, segments=tuple(whole_table(table, places[name]) for table in tables))
    validate(plan, problem, frozenset(Move))
    return problem, plan, 0.0


def _cached_steps(box: Box, on_rank: PlanOnRank, size: Size) -> tuple[dict[str, list[float]], list[float]]:
    """Fill the caches with the batches that are not timed, then time the others once each.

    Return their times, and the rows that each brought into the caches.
    """
    start_s = time.perf_counter()
    for number in range(size.timed, size.config.test_batches):
        on_rank.contender.take(number)
    box.clock.settle()
    before = _cached_rows(on_rank)
    box.note(
        warming_steps=size.config.test_batches - size.timed,
        warming_s=time.perf_counter() - start_s,
        slots=sum(len(rows) for rows in before),
        slots_in_use=sum(int((rows >= 0).sum()) for rows in before),
    )
    ms: dict[str, list[float]] = {}
    filled = []
    for number in range(size.timed):
        for phase, values in time_steps(box, on_rank, [number]).items():
            ms.setdefault(phase, []).extend(values)
        after = _cached_rows(on_rank)
        new = [rows[(rows >= 0) & ~torch.isin(rows, old)] for rows, old in zip(after, before)]
        filled.append(float(sum(len(rows) for rows in new)))
        before = after
    return ms, filled


def _cached_rows(on_rank: PlanOnRank) -> list[torch.Tensor]:
    """Return which row every slot of each cache holds, int64 [slots]; -1 where it holds none."""
    caches = []
    for step in on_rank.steps:
        for module in step.modules:
            for lookup in getattr(getattr(module, "module", None), "_lookups", ()):
                kernels = [one.emb_module for one in getattr(lookup, "_emb_modules", ())]
                states = [getattr(kernel, "lxu_cache_state", None) for kernel in kernels]
                # A kernel without a cache has a state of one number.
                caches += [state.flatten().clone() for state in states if state is not None and state.dim() == 2]
    return caches
