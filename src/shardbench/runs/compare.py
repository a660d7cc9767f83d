"""One strategy on one problem, planned, validated, counted and timed by the cost model, in this process."""

import time
from dataclasses import dataclass, replace

import numpy as np

from shardbench.base.errors import BadInput, Infeasible
from shardbench.cost.costmodel import StepTime, step_time
from shardbench.cost.traffic import count
from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.table import Precision
from shardbench.model.validate import validate
from shardbench.records.record import TrafficTotals
from shardbench.runs.simulate import totals
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What the plan costs on test lookups."""

    plan: Plan
    plan_s: float
    """Wall seconds of fitting and planning."""
    time: StepTime
    totals: TrafficTotals
    hbm_memory_bytes: tuple[int, ...]
    """Per rank."""

    @property
    def slowest_ms(self) -> float:
        """Embedding time, forward and backward, of the slowest rank."""
        return float(self.time.embedding_ms.max())

    @property
    def spread_ms(self) -> float:
        """Standard deviation of the embedding time over ranks."""
        return float(np.std(self.time.embedding_ms))

    @property
    def off_hbm_share(self) -> float:
        """Share of the lookups that leave HBM."""
        return self.totals.off_hbm_lookups / self.totals.lookups


@dataclass(frozen=True, kw_only=True)
class Question:
    """A problem made from a workload's train split, and one batch of its test split."""

    problem: Problem
    workload: Workload
    batches: dict[int, Bags]
    """The test lookups, by table number."""

    @classmethod
    def of(cls, workload: Workload, machine: Machine, precision: Precision = Precision.FP32) -> "Question":
        """Profiles and the first test batch, both drawn once."""
        problem = Problem.of(
            workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size,
            precision=precision,
        )  # fmt: skip
        batches = {i: workload.bags(Split.TEST, 0, i) for i in range(len(workload.tables))}
        return cls(problem=problem, workload=workload, batches=batches)

    def on(self, machine: Machine) -> "Question":
        """The same on another machine."""
        return replace(self, problem=replace(self.problem, machine=machine, topology=machine.topology))

    def ask(self, strategy: str | Strategy, budget: Budget | None = None, seed: int = 0) -> Compared | str:
        """Plan with the named strategy and count; the reason where it finds the problem infeasible.

        Raises InvalidPlan for a plan that is none, and BadInput for an unknown strategy.
        """
        asked = get_strategy(strategy) if isinstance(strategy, str) else strategy
        seen = self.problem.restricted_to(asked.sees)
        limits = budget or Budget()
        start = time.perf_counter()
        try:
            asked.fit((seen,), limits, seed)
            plan = asked.plan(seen, limits, seed)
        except Infeasible as reason:
            return str(reason)
        plan_s = time.perf_counter() - start
        memory = validate(plan, self.problem, asked.moves)
        if plan.schedule is not None:
            raise BadInput(f"{asked.name}: a plan with a batch schedule has no single step to compare")
        traffic = count(plan, self.problem, self.batches.__getitem__, self.workload.dense)
        spent = step_time(
            traffic, self.problem.machine, self.workload.dense, self.problem.tables, self.problem.batch_size
        )
        return Compared(
            plan=plan,
            plan_s=plan_s,
            time=spent,
            totals=totals(traffic),
            hbm_memory_bytes=tuple(memory.hbm.tolist()),
        )
