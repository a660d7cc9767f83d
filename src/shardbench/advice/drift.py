"""Whether a plan of earlier days still serves newer lookups, what a new one would save, and when it pays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardbench.advice.best_plan import Best, best_plan
from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.cost.memory.fullest import Peak, device_bytes, predicted_peak
from shardbench.cost.resharding import Resharding, resharding
from shardbench.cost.uncertainty import p_larger, sure
from shardbench.model.constraints import ANY_PLAN, Constraints
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move, Strategy
from shardbench.model.validate import validate
from shardbench.trials.simulate import Simulation, simulate
from shardbench.workloads.drift import LaterBatches
from shardbench.workloads.materialise import BatchSource
from shardbench.workloads.recorded import RecordedWorkload


@dataclass(frozen=True, kw_only=True)
class Change:
    """A new plan, and what going over to it takes and gives."""

    best: Best
    resharding: Resharding
    reshard_s: float
    saved_ms: float
    """What a step on the newer lookups is shorter by; not positive where the old plan is as good."""
    pays_after_steps: int | None
    """Steps that save as much time as the change takes; None where nothing is saved."""
    p_saves: float | None
    """Share of the draws of the machine's constants and the model's form in which the old plan is the slower one;
    None where the machine states no errors."""

    @property
    def is_sure(self) -> bool | None:
        """Say whether the cost model can tell that the new plan is the faster one; None where no error is stated."""
        return None if self.p_saves is None else sure(self.p_saves)


@dataclass(frozen=True, kw_only=True)
class PlanDrift:
    """What has become of a plan; times are predicted steps on a test batch of each log."""

    problem: Problem
    made_for_ms: float
    now_ms: float
    made_for_peak: Peak | None
    """The peak that the older lookups let expect; None for plans whose peaks are not predicted."""
    now_peak: Peak | None
    """The same of the newer lookups."""
    change: Change | None
    """The best new plan; None where no strategy has one for the newer profile."""

    @property
    def lost_pct(self) -> float:
        """Return how much slower the plan is on the newer lookups than on those that it was made for."""
        return 100.0 * (self.now_ms / self.made_for_ms - 1.0)


def judge_drift(
    plan: Plan,
    older: RecordedWorkload,
    newer: RecordedWorkload,
    machine: Machine,
    strategies: Sequence[Strategy],
    *,
    constraints: Constraints = ANY_PLAN,
    budget_s: float = 30.0,
    seed: int = 0,
    **training: Any,
) -> PlanDrift:
    """Judge a plan, made on the profile of ``older``, on the lookups of ``newer``, and beside the best new plan.

    Both have the same tables and number their rows alike. ``training`` are fields of the problem, such as the
    optimiser. Raises BadInput for a plan that is none of these tables on this machine.
    """
    problem = older.problem(machine, **training)
    check_drifting(plan, problem)
    made_for = simulate(plan, problem, LaterBatches(older, older), older.dense, 1)
    now = simulate(plan, problem, LaterBatches(newer, older), newer.dense, 1)
    search = best_plan(newer, machine, strategies, constraints=constraints, budget_s=budget_s, seed=seed, **training)
    new_problem, change = newer.problem(machine, **training), None
    if search.best is not None:
        change = _change(plan, search.best, now, new_problem, (older, newer))
    made_for_peak, now_peak = (
        predicted_peak(plan, asked, newer.stated_dense, device_bytes(machine)) for asked in (problem, new_problem)
    )
    return PlanDrift(
        problem=problem, made_for_ms=made_for.step_ms, now_ms=now.step_ms, made_for_peak=made_for_peak,
        now_peak=now_peak, change=change,
    )  # fmt: skip


def check_drifting(plan: Plan, problem: Problem) -> None:
    """Raise BadInput for a plan that is none of the problem, or that trains another model than new plans do."""
    if plan.sync_every > 1:
        raise BadInput(
            f"the plan averages copies every {plan.sync_every} steps: it trains another model than new plans do"
        )
    try:
        validate(plan, problem, frozenset(Move))
    except InvalidPlan as error:
        raise BadInput(f"the plan is none of {problem.name} on {problem.machine.name}: {error}") from error


def _change(
    plan: Plan, best: Best, now: Simulation, problem: Problem, logs: tuple[RecordedWorkload, RecordedWorkload]
) -> Change:
    older, newer = logs
    batches: BatchSource = LaterBatches(newer, newer)
    renewed = simulate(best.plan, problem, batches, newer.dense, 1)
    transfer = resharding(plan, best.plan, problem, older.ranking, newer.ranking)
    seconds, saved_ms = transfer.seconds(problem.machine), now.step_ms - renewed.step_ms
    draws = now.draws(problem, newer.dense), renewed.draws(problem, newer.dense)
    return Change(
        best=best,
        resharding=transfer,
        reshard_s=seconds,
        saved_ms=saved_ms,
        pays_after_steps=math.ceil(1e3 * seconds / saved_ms) if saved_ms > 0.0 else None,
        p_saves=p_larger([draws[0].step_ms], [draws[1].step_ms]) if draws[0] and draws[1] else None,
    )
