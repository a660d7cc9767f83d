"""FAE's hot and cold mini-batches on one GPU and its host's cores, against the cores alone and against the hybrid.

FAE's paper says 2.3 times the speed of training on CPUs alone and 1.52 times that of tables on CPUs with the dense
model on GPUs, with 1K inputs a GPU. Steps of all three take turns in blocks where their tables fit into the host's
memory together; a step of FAE is the mean one of its schedule, copies between its phases included. What CPUs do is done
by all cores. The committed model has no term for the phase ``update``, and none for a dense model on a GPU's host where
the machine file does not state its CPUs: ``cpu-only`` is not predicted there, nor a ratio to it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from box import Box
from drawing import KeptWorkload, draw
from steps import Bench, PlanCase, release, time_steps
from tiers import config_of

from shardbench.base.host import cores
from shardbench.base.memory import free_memory_bytes
from shardbench.datasets.criteo_like import CriteoLikeConfig
from shardbench.engine.contenders import PlanOnRank
from shardbench.engine.heap import keep_freed_memory
from shardbench.model.plan import PhaseKind
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape
from shardbench.workloads.workload import WorkloadConfig

STRATEGIES = ("fae", "cpu-only", "hybrid")
PAPER = {"cpu-only": 2.3, "hybrid": 1.52}
SETTLING = 3
"""Steps of a plan that do not count; one more is left out of every block, in which caches held another plan's rows."""
WIDTHS = (64, 32, 16)
"""Columns of the Terabyte form: the widest that there is time and memory for; FAE's have 64."""
TERABYTE, TERABYTE_ROWS = "criteo-terabyte-one-hot-like", 204_184_588
DRAWING_S, STEPS_S = 5.0, 2.0
"""Seconds to draw it, and of a plan's steps."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    config: WorkloadConfig
    batches: tuple[int, ...]
    timed: int
    rounds: int
    block: int
    plan_s: float
    first_s: float
    """What the first shape may take in a batch size."""


def measure(box: Box) -> None:
    """Compare on Criteo Kaggle's shape in both batch sizes, then on Terabyte's."""
    size, processes = size_of(box), 1 if box.cpu else min(cores(), 16)
    workload = _draw(box, size.config, processes)
    rates = [_measure_batch(box, size, workload, samples, size.first_s) for samples in size.batches]
    made_bytes_per_s = max((rate for rate in rates if rate is not None), default=0.0)
    if box.cpu or not made_bytes_per_s:
        box.skip(TERABYTE, "a rehearsal has no time for its tables" if box.cpu else "no tables could be made")
        return
    width = _width(box, made_bytes_per_s)
    if width is None:
        box.skip(TERABYTE, f"no time or memory for its tables, {box.left_s():.0f} s are left")
        return
    dense = DenseShape(bottom=(512, 256, width), top=(512, 512, 256, 1))
    workload = _draw(box, criteo(TERABYTE, "terabyte_one_hot", dense), processes)
    for samples in size.batches:
        _measure_batch(box, size, workload, samples, _terabyte_s(width, made_bytes_per_s))


def size_of(box: Box) -> Size:
    """Return the sizes for this machine; on a GPU those of the suite ``fae``, its log of 5 % of an epoch included."""
    config: WorkloadConfig
    if box.cpu:
        config = config_of(tables=3, seed=12632, dim=16, batch=128, profile=1024, batches=4)
        return Size(config=config, batches=(128, 64), timed=2, rounds=1, block=1, plan_s=0.1, first_s=0.0)
    config = criteo("criteo-kaggle-like", "kaggle", DenseShape(bottom=(512, 256, 64, 16), top=(512, 256, 1)))
    return Size(config=config, batches=(4096, 1024), timed=16, rounds=4, block=5, plan_s=5.0, first_s=12.0)


def criteo(name: str, form: str, dense: DenseShape) -> CriteoLikeConfig:
    """Return one of Criteo's shapes in tables as wide as the dense model asks for."""
    return CriteoLikeConfig(
        name=name, form=form, dim=dense.bottom[-1], batch_size=4096, profile_samples=1964598, test_batches=16,
        dense=dense,
    )  # fmt: skip


def _draw(box: Box, config: WorkloadConfig, processes: int) -> KeptWorkload:
    start_s = time.perf_counter()
    workload = draw(config, processes=processes, inputs=True)
    box.note(workload=config.name, drawing_s=time.perf_counter() - start_s)
    return workload


def _width(box: Box, made_bytes_per_s: float) -> int | None:
    """Return the widest tables of Terabyte's shape that there is time and memory for; None where there are none."""
    for width in WIDTHS:
        fits = 1.5 * 4 * width * TERABYTE_ROWS < free_memory_bytes()
        if fits and not box.over(_terabyte_s(width, made_bytes_per_s) + DRAWING_S):
            return width
    return None


def _terabyte_s(width: int, made_bytes_per_s: float) -> float:
    """Return the seconds of three plans on tables of so many columns, made one after another."""
    # Giving the memory back takes half as long again.
    return len(STRATEGIES) * (1.5 * 4 * width * TERABYTE_ROWS / made_bytes_per_s + STEPS_S)


def _measure_batch(box: Box, size: Size, workload: KeptWorkload, samples: int, needed_s: float) -> float | None:
    """Measure the strategies in batches of so many samples; return the bytes of tables made a second, or None."""
    own = workload if samples == workload.batch_size else workload.cut(samples)
    if box.over(needed_s):
        box.skip(f"{own.name}, {samples}", f"{box.left_s():.0f} s are left, it takes {needed_s:.0f}")
        return None
    rate = None
    with box.attempt(f"{own.name}, {samples}"):
        rate = Comparison(box, size, own).measure()
    release(box)
    return rate


class Comparison:
    """The steps of the strategies on one workload in one batch size."""

    def __init__(self, box: Box, size: Size, workload: KeptWorkload) -> None:
        self.box, self.size = box, size
        self.bench = Bench(box, "fae", workload, size.timed)
        self.bytes = sum(4 * table.rows * table.dim for table in workload.tables)
        self.threads = 1 if box.cpu else cores()
        # Predictions are of a whole machine's host; a machine that is lent may have a part of one.
        host_gb_per_s = 1e-9 * box.whole_machine.constants.host_bytes_per_s
        self.host: dict[str, object] = {"threads": self.threads, "predicted_host_gb_per_s": host_gb_per_s}
        self.cases: dict[str, PlanCase] = {}
        self.ms: dict[str, dict[str, list[float]]] = {}
        self.made_s: list[float] = []

    def measure(self) -> float | None:
        """Measure all strategies, together where there is memory; return the bytes of tables made a second."""
        problem = self._problem()
        for strategy in STRATEGIES:
            with self.box.attempt(f"planning by {strategy}"):
                plan, plan_s = self.bench.plan(strategy, problem, self.size.plan_s)
                self.cases[strategy] = self.bench.judge(strategy, plan, problem, plan_s)
        together = 2 * len(self.cases) * self.bytes < free_memory_bytes()
        names = list(self.cases)
        longest_s = 0.0
        for group in [names] if together else [[name] for name in names]:
            if self.box.over(longest_s):
                self.box.skip(f"steps of {', '.join(group)}", f"{self.box.left_s():.0f} s are left")
                continue
            start_s = time.perf_counter()
            with self.box.attempt(f"steps of {', '.join(group)}"):
                self._time(group)
            release(self.box)
            longest_s = max(longest_s, time.perf_counter() - start_s)
            for name in group:
                self._add(name, together=together)
        for name in PAPER:
            self._add_ratio(name)
        return self.bytes / float(np.median(self.made_s)) if self.made_s else None

    def _problem(self) -> Problem:
        free = self.bytes if self.box.cpu else torch.cuda.mem_get_info()[0] // 2
        machine = self.box.machine(hbm_bytes=free, uvm_bytes=0, host_bytes=2 * self.bytes)
        return self.bench.problem(machine)

    def _time(self, names: Sequence[str]) -> None:
        """Build the plans and let blocks of their steps take turns, as many rounds as there is time for."""
        plans: dict[str, PlanOnRank] = {}
        for name in names:
            with self.box.attempt(f"{name} built"):
                start_s = time.perf_counter()
                plans[name] = self.bench.build(self.cases[name], self.bench.timed, self.threads)
                self.made_s.append(time.perf_counter() - start_s)
        keep_freed_memory()
        for name in list(plans):
            self._step(plans, name, range(-SETTLING, 0))
        for number in range(self.size.rounds):
            start_s = time.perf_counter()
            first = number * self.size.block
            for name in list(plans):
                for phase, values in self._step(plans, name, range(first - 1, first + self.size.block)).items():
                    self.ms.setdefault(name, {}).setdefault(phase, []).extend(values[1:])
            if self.box.over(time.perf_counter() - start_s):
                return

    def _step(self, plans: dict[str, PlanOnRank], name: str, numbers: range) -> dict[str, list[float]]:
        """Return the milliseconds of a plan's steps by phase; one that fails is held no more."""
        with self.box.attempt(f"steps of {name}"):
            return time_steps(self.box, plans[name], numbers)
        del plans[name]
        return {}

    def _add(self, name: str, *, together: bool) -> None:
        if name not in self.ms:
            return
        case, what = self.cases[name], {}
        if case.predicted is not None and case.predicted.kinds:
            what["hot_share"] = case.predicted.share(PhaseKind.HOT)
        order = "in turns" if together else "one after another"
        self.bench.add(case, self.ms[name], order=order, plan_s=case.plan_s, **self.host, **what)

    def _add_ratio(self, other: str) -> None:
        """Keep how much longer another strategy's step is than FAE's."""
        if "fae" not in self.ms or other not in self.ms:
            self.box.skip(f"ratio of {other} to fae", "one of them was not measured")
            return
        own, beside = (float(np.median(self.ms[name]["step"])) for name in ("fae", other))
        predicted = [self.cases[name].predicted for name in (other, "fae")]
        steps = [one.step_ms for one in predicted if one is not None]
        ratio = steps[0] / steps[1] if len(steps) == len(predicted) else None
        self.box.add(
            "fae", [beside / own], ratio, unit="ratio", of=other, to="fae", paper=PAPER[other],
            plan=self.cases["fae"].key, other_plan=self.cases[other].key, **self.host, **self.bench.facts,
        )  # fmt: skip
