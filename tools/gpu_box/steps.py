"""Whole training steps of plans on one rank: planned, predicted, built and timed one after another on the same batches.

Each plan is kept as JSON with its workload, so that another version of the model can predict the same steps again; a
row names its plan by a hash. The model has no term for the phase ``update`` of a step.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from box import Box
from cases import memory_of
from drawing import KeptWorkload
from torchrec_loop import ALONE, join_alone

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import content_hash
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.phases import StepPhase
from shardbench.cost.published.gpus import shared
from shardbench.cost.traffic import counted_lookups
from shardbench.engine.clock import Contender, take_turns
from shardbench.engine.contenders import PlanOnRank, build
from shardbench.engine.heap import give_freed_memory_back
from shardbench.engine.measure import rank_job
from shardbench.engine.modules import Groups
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan, tier_of
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.trials.planning import plan_here
from shardbench.trials.simulate import Simulation, simulate
from shardbench.workloads.materialise import Batches, materialise
from shardbench.workloads.trace import closed_test_split

DRAWS, FEW_DRAWS = 40, 5
"""Draws of the constants that a prediction's range is of, and in a rehearsal."""
_GROUPS: list[Groups] = []
"""The process groups of this rank, made once: every group has a communicator and threads of its own."""


@dataclass(frozen=True, kw_only=True)
class PlanCase:
    """A plan of a problem, what it took to make, and what the model predicts of its steps, if it can."""

    strategy: str
    plan: Plan
    problem: Problem
    plan_s: float
    predicted: Simulation | None

    @property
    def key(self) -> str:
        """Return the hash by which rows name the plan."""
        return plan_key(self.plan)


def plan_key(plan: Plan) -> str:
    """Return the hash of a plan without its notes."""
    return content_hash(replace(plan, notes={}))


class Bench:
    """The test batches of one workload, on disk, and the plans of it that are measured on them.

    The first ``timed`` batches are those whose steps are predicted; ``everything`` holds the others, too, which fill
    caches.
    """

    def __init__(self, box: Box, table: str, workload: KeptWorkload, timed: int) -> None:
        self.box, self.table, self.workload = box, table, workload
        self._folder = box.data / f"{table}-{workload.name}-{workload.batch_size}"
        self.timed = materialise(workload, self._folder / "timed", range(timed))
        self._lookups_of: dict[tuple[int, int], CountedLookups] = {}
        self.facts: dict[str, Any] = {"workload": workload.name, "batch": workload.batch_size}
        box.note(
            workload=workload.name,
            batch=workload.batch_size,
            batches=workload.test_batches,
            timed=timed,
            config=workload.config.model_dump_json(),
            fingerprint=workload.fingerprint,
        )

    def everything(self) -> Batches:
        """Return all test batches, written when they are first asked for."""
        folder = self._folder / "all"
        if (folder / "batches.json").is_file():
            return Batches(folder)
        return materialise(self.workload, folder, range(self.workload.test_batches))

    def problem(self, machine: Machine) -> Problem:
        """Pose the workload on a machine of one device."""
        own = self.workload
        return Problem.of(
            own.name, own.tables, own.table_profiles, machine, batch_size=own.batch_size, inputs=own.input_sample
        )

    def plan(self, strategy: str, problem: Problem, plan_s: float) -> tuple[Plan, float]:
        """Let a strategy plan in this process, seeing what it declares; return its plan and the seconds that it took.

        Raises what its planning raises.
        """
        planner = get_strategy(strategy)
        with closed_test_split():
            text, spent = plan_here(planner, problem, Budget(plan_s=plan_s), 0, fitted=False)
        plan = Plan.from_json(text)
        validate(plan, problem, planner.moves)
        return plan, spent.plan_s

    def judge(self, name: str, plan: Plan, problem: Problem, plan_s: float) -> PlanCase:
        """Predict a plan's steps on the timed batches, and keep the plan with what it is predicted from."""
        predicted, lookups, unpredicted = None, partial(self._lookups, problem), dict[str, str]()
        dense, batches, topology = self.workload.dense, self.timed, problem.topology
        try:
            predicted = simulate(plan, problem, batches, dense, len(batches.numbers), lookups=lookups)
        except (BadInput, Unsupported) as error:
            unpredicted = {"unpredicted": str(error)}
        case = PlanCase(strategy=name, plan=plan, problem=problem, plan_s=plan_s, predicted=predicted)
        self.box.note(
            plan=case.key, strategy=name, **self.facts, plan_s=plan_s, hbm_bytes=topology.hbm_bytes,
            uvm_bytes=topology.uvm_bytes, host_bytes=topology.host_bytes, machine=self.box.machine_name,
            json=plan.to_json(), **unpredicted,
        )  # fmt: skip
        return case

    def _lookups(self, problem: Problem, batch: int, table: int) -> CountedLookups:
        """Return a table's lookups of a batch, with what several plans ask of them."""
        key = batch, table
        if key not in self._lookups_of:
            self._lookups_of[key] = counted_lookups(self.timed.bags(batch, table), problem, table)
        return self._lookups_of[key]

    def build(self, case: PlanCase, batches: Batches, threads: int) -> PlanOnRank:
        """Build a plan with these batches; CPU kernels of its steps have so many threads.

        Whoever holds the last plan no more has its memory back before.
        """
        job = rank_job(
            case.plan, case.problem, self.workload.dense, batches.folder,
            warmup=0, iterations=len(batches.numbers), seed=0, timeout_s=120.0,
        )  # fmt: skip
        groups = groups_of(self.box)
        with on_threads(threads):
            on_rank = build(job, case.plan, (0, 1, self.box.device), self.box.clock, groups=groups)
        on_rank.contender = Contender(
            step=OnThreads(on_rank.contender.step, threads), batches=on_rank.contender.batches
        )
        self.box.clock.settle()
        return on_rank

    def add(self, case: PlanCase, ms: dict[str, list[float]], **what: object) -> None:
        """Keep a plan's steps and their phases beside what is predicted of them.

        The prediction knows no host's time; what published steps add of it stands beside it.
        """
        tiers = {tier_of(segment.placement) for segment in case.plan.segments}
        own = self.facts | {"strategy": case.strategy, "plan": case.key} | memory_of(tiers) | what
        step_ms, phases_ms, whole = None, {}, dict(own)
        if not self.box.cpu:
            whole["host_step_ms"] = 1e3 * shared()["host_step_s"]
        if case.predicted is not None:
            step_ms, totals = case.predicted.step_ms, case.predicted.totals
            phases_ms = case.predicted.timing(1).phases_ms
            whole |= {"lookups": totals.lookups, "off_hbm_lookups": totals.off_hbm_lookups}
            whole |= self._range(case)
        self.box.add(self.table, ms["step"], step_ms, phase="step", **whole)
        for phase in StepPhase:
            if phase in ms:
                self.box.add(self.table, ms[phase], phases_ms.get(phase), phase=str(phase), **own)

    def _range(self, case: PlanCase) -> dict[str, float]:
        """Return the 5th and 95th percentile of the predicted step under draws of the constants."""
        if case.predicted is None:
            return {}
        draws = case.predicted.draws(case.problem, self.workload.dense, FEW_DRAWS if self.box.cpu else DRAWS)
        if draws is None:
            return {}
        low, high = np.percentile(draws.step_ms, [5, 95])
        return {"predicted_low": float(low), "predicted_high": float(high)}


def time_steps(box: Box, on_rank: PlanOnRank, numbers: Sequence[int]) -> dict[str, list[float]]:
    """Return the milliseconds by phase of one step on each of these batches, in their order."""
    own = on_rank.contender
    turns = Contender(step=own.step, batches=[own.batches[number % len(own.batches)] for number in numbers])
    (times,) = take_turns([turns], len(numbers), box.clock)
    return times.ms


def release(box: Box) -> None:
    """Give back what plans held that nobody holds any more; what steps free goes back to the kernel again."""
    gc.collect()
    box.free()
    give_freed_memory_back()


def groups_of(box: Box) -> Groups:
    """Return the process groups of this one rank, which joins when they are first asked for."""
    join_alone(box)
    if not _GROUPS:
        # What was imported is looked through no more, whenever memory is given back.
        gc.collect()
        gc.freeze()
        _GROUPS.append(Groups(ALONE))
    return _GROUPS[0]


class OnThreads:
    """A step whose CPU kernels have so many threads: a rank has one otherwise."""

    def __init__(self, step: Any, threads: int) -> None:
        self.step, self.threads = step, threads

    def __call__(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Train on a batch; return what the step returns."""
        with on_threads(self.threads):
            logits, stamps = self.step(batch)
        return logits, stamps


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let CPU kernels of this thread have so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
