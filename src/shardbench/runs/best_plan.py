"""The best plan for one's own tables on one's own machine: strategies asked in turn, within a budget, judged alike."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.model.constraints import Constraints, sharding_type
from shardbench.model.discovery import missing_modules, strategies
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Role, Strategy
from shardbench.model.table import Optimizer, Precision, StepSchedule
from shardbench.records.trial import Failure
from shardbench.runs.constrained import evaluate_under
from shardbench.runs.evaluate import Answer, evaluate
from shardbench.runs.planning import learns
from shardbench.runs.simulate import CountedQuestion, Simulation
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

FIRST_SHARE = 0.5
"""Share of the budget for the strategies with all device moves, which use what they get."""
SLACK = 2.0
"""Times its share that a strategy may take."""
COMPARED = 5
"""Best plans that are told apart from the best one."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What asking a strategy came to; ``step_ms`` is None where it has no plan, and ``cause`` says why."""

    strategy: str
    plan_s: float
    step_ms: float | None = None
    ties: bool = False
    """Whether its step and the best one's are not told apart by what is known of the machine."""
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The plan of the shortest predicted step, and how sure and how good it is."""

    strategy: str
    plan: Plan
    step_ms: float
    band_ms: tuple[float, float] | None
    """95 % of what the step may be by the errors of the machine's constants; None where it states none."""
    bound_ms: float | None
    """Which no plan of device moves can beat, in the memory that plans were made for."""
    over_bound_pct: float | None
    phases_ms: dict[str, float]
    sharding_types: dict[str, int]
    """How many tables are sharded how."""
    hbm_used_bytes: tuple[int, ...]
    hbm_room_bytes: tuple[int, ...]
    """HBM of each device that is left for tables."""
    placed_anew: int
    """Tables that the strategy had placed against a constraint."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A valid plan, as a race takes it."""

    name: str
    """The strategy's name; with a number behind it (``joint-2``) for a runner-up, and ``yours`` for the user's own."""
    plan: Plan
    step_ms: float
    """Predicted."""


@dataclass(frozen=True, kw_only=True)
class PlanSearch:
    """All that was tried, best first; ``best`` is None where nothing has a plan."""

    problem: Problem
    best: Best | None
    tried: tuple[Tried, ...]
    took_s: float
    candidates: tuple[Candidate, ...] = ()
    """The distinct plans, the shortest predicted step first."""


def default_strategies() -> list[Strategy]:
    """Installed competitors of device moves that learn nothing and need nothing but profiles and the machine."""
    return [
        found
        for found in strategies().values()
        if found.role is Role.COMPETITOR
        and found.moves <= DEVICE_MOVES
        and not (learns(found) or found.requires or Sees.INPUTS in found.sees)
    ]


def best_plan(
    workload: Workload,
    machine: Machine,
    asked: Sequence[Strategy],
    *,
    constraints: Constraints | None = None,
    budget_s: float = 30.0,
    seed: int = 0,
    precision: Precision = Precision.FP32,
    optimizer: Optimizer = Optimizer.SGD,
    exchange: Precision = Precision.FP32,
    schedule: StepSchedule = StepSchedule.SEQUENTIAL,
    on_tried: Callable[[Tried], None] | None = None,
) -> PlanSearch:
    """Ask all strategies within ``budget_s`` seconds of planning and judge their plans on a test batch.

    Raises BadInput for constraints that name no table of these or leave no memory, and for
    strategies that cannot be imported here or are not there.
    """
    kept = constraints or Constraints()
    kept.check_names(workload.tables)
    start = time.perf_counter()
    training = {"precision": precision, "optimizer": optimizer, "exchange": exchange, "schedule": schedule}
    problem = _problem(workload, machine, asked, training)
    question = CountedQuestion(kept.applied(problem), DrawnBatches(workload), workload.dense)
    tried: list[Tried] = []
    answers: dict[str, Answer[Simulation]] = {}
    left = budget_s
    general = [strategy for strategy in asked if strategy.moves >= DEVICE_MOVES]
    order = [*general, *(strategy for strategy in asked if strategy not in general)]
    for number, strategy in enumerate(order):
        first = strategy in general and len(order) > len(general)
        share = FIRST_SHARE * budget_s / len(general) if first else left / (len(order) - number)
        one, answer = _ask(question, strategy, constraints, Budget(plan_s=share, fit_s=share), seed)
        if answer is not None:
            answers[one.strategy] = answer
        left = max(left - one.plan_s, 1e-3 * budget_s)
        tried.append(one)
        if on_tried is not None:
            on_tried(one)
    if not answers:
        return PlanSearch(problem=problem, best=None, tried=tuple(tried), took_s=time.perf_counter() - start)
    steps = {name: answer.judged.step_ms for name, answer in answers.items()}
    ranked = sorted(answers, key=lambda name: steps[name])
    drawn = {name: answers[name].judged.draws(question.problem, workload.dense) for name in ranked[:COMPARED]}
    draws = {name: found.step_ms for name, found in drawn.items() if found is not None}
    told = [replace(one, ties=_ties(one.strategy, ranked[0], steps, draws)) for one in tried]
    told.sort(key=lambda one: (one.step_ms is None, one.step_ms or 0.0))
    band_ms = band([draws[ranked[0]]]) if ranked[0] in draws else None
    best = _best(answers[ranked[0]], ranked[0], kept, problem, band_ms)
    took_s = time.perf_counter() - start
    candidates = _candidates({name: answers[name] for name in ranked})
    return PlanSearch(problem=problem, best=best, tried=tuple(told), took_s=took_s, candidates=candidates)


def _candidates(ranked: Mapping[str, Answer[Simulation]]) -> tuple[Candidate, ...]:
    """Return one candidate a distinct plan: of strategies with the same plan the first."""
    found: dict[str, Candidate] = {}
    for name, answer in ranked.items():
        one = Candidate(name=name, plan=answer.plan, step_ms=answer.judged.step_ms)
        found.setdefault(answer.planned.plan_hash, one)
    return tuple(found.values())


def _problem(workload: Workload, machine: Machine, asked: Sequence[Strategy], training: Mapping[str, Any]) -> Problem:
    if not asked:
        raise BadInput("no strategy is asked")
    for strategy in asked:
        if strategy.role is Role.OTHER_MODEL:
            raise BadInput(f"strategy {strategy.name} trains another model, so that its step is compared with no other")
        missing = missing_modules(strategy)
        if missing:
            raise BadInput(f"strategy {strategy.name} needs {', '.join(missing)}, which cannot be imported here")
    return Problem.of(
        workload.name,
        workload.tables,
        workload.profiles,
        machine,
        batch_size=workload.batch_size,
        **training,
        inputs=workload.input_sample if any(Sees.INPUTS in strategy.sees for strategy in asked) else None,
    )


def _ask(
    question: CountedQuestion, strategy: Strategy, constraints: Constraints | None, budget: Budget, seed: int
) -> tuple[Tried, Answer[Simulation] | None]:
    begun = time.perf_counter()
    # A strategy's own clock is coarse where its share is short: what counts is that the budget is kept in all.
    if constraints is None:
        answer = evaluate(question, strategy, budget, seed, sealed=False, slack=SLACK)
    else:
        answer = evaluate_under(constraints, question, strategy, budget, seed, slack=SLACK)
    if isinstance(answer, Failure):
        cause = f"{answer.outcome.value}: {answer.cause}"
        return Tried(strategy=strategy.name, plan_s=time.perf_counter() - begun, cause=cause), None
    spent = answer.spent.plan_s + answer.spent.fit_s
    return Tried(strategy=strategy.name, plan_s=spent, step_ms=answer.judged.step_ms), answer


def _ties(name: str, best: str, steps: dict[str, float], draws: dict[str, tuple[float, ...]]) -> bool:
    if name == best or name not in steps:
        return False
    if name not in draws or best not in draws:
        return steps[name] == steps[best]
    return not sure(p_larger([draws[name]], [draws[best]]))


def _best(
    answer: Answer[Simulation],
    name: str,
    constraints: Constraints,
    problem: Problem,
    band_ms: tuple[float, float] | None,
) -> Best:
    step_ms, bound = answer.judged.step_ms, answer.bounds.of_step(answer.plan)
    by_table = answer.plan.by_table()
    kinds = Counter(sharding_type(by_table[table.name], table, problem.topology) for table in problem.tables)
    return Best(
        strategy=name,
        plan=answer.plan,
        step_ms=step_ms,
        band_ms=band_ms,
        bound_ms=bound.ms if bound is not None else None,
        over_bound_pct=100.0 * (step_ms / bound.ms - 1.0) if bound is not None else None,
        phases_ms={str(phase): ms for phase, ms in answer.judged.timing(1).phases_ms.items()},
        sharding_types=dict(sorted(kinds.items())),
        hbm_used_bytes=answer.planned.hbm_memory_bytes,
        hbm_room_bytes=constraints.device_bytes(problem.topology),
        placed_anew=int(answer.plan.notes.get("placed_anew", 0)),
    )
