"""The best plan for one's own tables on one's own machine: strategies asked in turn, within a budget, judged alike.

A plan that came late ranks with the others: it is as good, and it is there. Of plans that are not told apart and nearly
as short as the shortest, the answer is the simplest.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, to_json
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.collectives import EXCHANGES
from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.model.constraints import Constraints, sharding_type
from shardbench.model.machine import Machine, Topology
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Move, Role, Strategy
from shardbench.model.table import Optimizer, Precision, StepSchedule
from shardbench.model.validate import memory_said
from shardbench.runs.asking import YOURS, Asking, Tried
from shardbench.runs.discovery import missing_modules, strategies
from shardbench.runs.evaluate import Answer
from shardbench.runs.planning import learns
from shardbench.runs.simulate import CountedQuestion, Simulation
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

COMPARED = 5
"""Best plans that are told apart from the best one."""
TIE = 0.01
"""A plan may be predicted this much longer and yet be the answer, where it is simpler and not told apart."""


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
    over_profile_bound_pct: float | None
    """The same under the profiles by which plans are made, where no single test bag is unusually long."""
    phases_ms: dict[str, float]
    sharding_types: dict[str, int]
    """How many tables are sharded how."""
    hbm_used_bytes: tuple[int, ...]
    hbm_room_bytes: tuple[int, ...]
    """HBM of each device that is left for tables."""
    placed_anew: int
    """Tables that the strategy had placed against a constraint."""
    simpler_than: str = ""
    """The plan of a shorter predicted step that is not told apart and has more calls or parts, in words; else empty."""


@dataclass(frozen=True, kw_only=True)
class Yours:
    """The user's own plan beside the best one."""

    step_ms: float
    less_pct: float | None
    """How much less the best one takes; negative where it takes more, None where there is no other plan."""
    sure: bool | None
    """Whether what is known of the machine tells them apart; None where it states no errors or there is no other."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A valid plan, as a race takes it."""

    name: str
    """The strategy's name; with a number behind it (``joint-2``) for a runner-up, and ``yours`` for the user's own."""
    plan: Plan
    step_ms: float
    """The step that the cost model predicts."""


@dataclass(frozen=True, kw_only=True)
class PlanSearch:
    """All that was tried, best first; ``best`` is None where nothing has a plan."""

    problem: Problem
    best: Best | None
    tried: tuple[Tried, ...]
    took_s: float
    candidates: tuple[Candidate, ...] = ()
    """The distinct plans, the shortest predicted step first."""
    yours: Yours | None = None
    """The user's own plan; None where none was given."""
    asked_s: float = 0.0
    """Wall seconds until the last of them had answered, judging its plan included."""
    memory: str = ""
    """What all tables need and what there is, in words."""


def default_strategies() -> list[Strategy]:
    """Installed competitors of device moves or caches that learn nothing and see profiles and the machine alone.

    What they require can be imported here.
    """
    return [
        found
        for found in strategies().values()
        if found.role is Role.COMPETITOR
        and found.moves <= DEVICE_MOVES | {Move.CACHE}
        and not (learns(found) or Sees.INPUTS in found.sees or missing_modules(found))
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
    against: Plan | None = None,
) -> PlanSearch:
    """Ask all strategies within ``budget_s`` seconds of planning and judge their plans on a test batch.

    ``against`` is the user's own plan, judged alike. Raises BadInput for constraints that name no table
    of these or leave no memory, for strategies that cannot be imported here or are not there, and for
    a plan of the user's that is none of these tables on this machine, or breaks a constraint.
    """
    kept = constraints or Constraints()
    kept.check_names(workload.tables)
    start = time.perf_counter()
    training = {"precision": precision, "optimizer": optimizer, "exchange": exchange, "schedule": schedule}
    problem = _problem(workload, machine, asked, training)
    question = CountedQuestion(kept.applied(problem), DrawnBatches(workload), workload.dense)
    asking = Asking(question, constraints, budget_s, seed, on_tried)
    yours = asking.given(against, kept) if against is not None else None
    asking.ask(asked)
    asked_s, answers = time.perf_counter() - asking.begun, asking.answers
    steps = {name: answer.judged.step_ms for name, answer in answers.items()}
    ranked = sorted(answers, key=lambda name: steps[name])
    compared = [*ranked[:COMPARED], *([YOURS] if yours is not None else [])]
    if yours is not None:
        answers, steps = {YOURS: yours, **answers}, {YOURS: yours.judged.step_ms, **steps}
    drawn = {name: answers[name].judged.draws(question.problem, workload.dense) for name in compared}
    draws = {name: found.step_ms for name, found in drawn.items() if found is not None}
    found = PlanSearch(
        problem=problem,
        best=None,
        tried=tuple(asking.tried),
        took_s=time.perf_counter() - start,
        candidates=_candidates(answers),
        yours=Yours(step_ms=steps[YOURS], less_pct=None, sure=None) if yours is not None else None,
        asked_s=asked_s,
        memory=memory_said(question.problem),
    )
    if not ranked:
        return found
    near = [name for name in ranked[:COMPARED] if _near(name, ranked[0], steps, draws, machine)]
    first = min(near, key=lambda name: (*_complexity(answers[name]), steps[name]))
    told = [replace(one, ties=_ties(one.strategy, first, steps, draws)) for one in asking.tried]
    told.sort(key=lambda one: (one.strategy != first, one.step_ms is None, one.step_ms or 0.0))
    band_ms = band([draws[first]]) if first in draws else None
    best = _best(answers[first], first, kept, question, topology=problem.topology, band_ms=band_ms)
    if first != ranked[0]:
        best = replace(best, simpler_than=_simpler(answers[first], answers[ranked[0]], ranked[0]))
    beside = _beside(first, steps, draws) if yours is not None else None
    return replace(found, best=best, tried=tuple(told), yours=beside, took_s=time.perf_counter() - start)


def _candidates(answers: Mapping[str, Answer[Simulation]]) -> tuple[Candidate, ...]:
    """Return one candidate a distinct plan, whatever is noted of it: of strategies with the same plan the first."""
    found: dict[str, Candidate] = {}
    for name, answer in answers.items():
        one = Candidate(name=name, plan=answer.plan, step_ms=answer.judged.step_ms)
        found.setdefault(contents_hash(answer.plan), one)
    return tuple(sorted(found.values(), key=lambda one: one.step_ms))


def contents_hash(plan: Plan) -> str:
    """Return the hash of where everything is: neither notes nor the order of segments count."""
    return content_hash(replace(plan, segments=tuple(sorted(plan.segments, key=to_json)), notes={}))


def _near(
    name: str, best: str, steps: Mapping[str, float], draws: Mapping[str, tuple[float, ...]], machine: Machine
) -> bool:
    """Tell whether a plan may take the place of the shortest: it is a little longer, and not told apart from it."""
    pairs = machine.trust.pair_error if machine.trust is not None else None
    share = min(TIE, pairs - 1.0) if pairs is not None else TIE
    return name == best or (steps[name] <= (1.0 + share) * steps[best] and _ties(name, best, steps, draws))


def _complexity(answer: Answer[Simulation]) -> tuple[float, int]:
    """Return the calls of a step's exchanges, and the parts that tables are in."""
    exchanged = (answer.judged.traffic.collectives[name] for name in EXCHANGES)
    # The last number is not one of calls.
    calls = sum(sum(one.calls[:-1]) for one in exchanged if one.sent.any())
    return round(calls, 6), len(answer.plan.segments)


def _simpler(answer: Answer[Simulation], shorter: Answer[Simulation], name: str) -> str:
    (calls, parts), (more_calls, more_parts) = _complexity(answer), _complexity(shorter)
    return (
        f"{name} is predicted {shorter.judged.step_ms:.4g} ms, which the model cannot tell apart, with "
        f"{more_calls:g} exchange calls and {more_parts} parts, against {calls:g} and {parts}"
    )


def _beside(best: str, steps: Mapping[str, float], draws: Mapping[str, tuple[float, ...]]) -> Yours:
    known = None
    if YOURS in draws and best in draws:
        known = sure(p_larger([draws[YOURS]], [draws[best]]))
    return Yours(step_ms=steps[YOURS], less_pct=100.0 * (1.0 - steps[best] / steps[YOURS]), sure=known)


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


def _ties(name: str, best: str, steps: Mapping[str, float], draws: Mapping[str, tuple[float, ...]]) -> bool:
    if name == best or name not in steps:
        return False
    if name not in draws or best not in draws:
        return steps[name] == steps[best]
    return not sure(p_larger([draws[name]], [draws[best]]))


def _best(
    answer: Answer[Simulation],
    name: str,
    constraints: Constraints,
    question: CountedQuestion,
    *,
    topology: Topology,
    band_ms: tuple[float, float] | None,
) -> Best:
    step_ms, bound = answer.judged.step_ms, answer.bounds.of_step(answer.plan)
    by_table = answer.plan.by_table()
    kinds = Counter(sharding_type(by_table[table.name], table, topology) for table in question.problem.tables)
    return Best(
        strategy=name,
        plan=answer.plan,
        step_ms=step_ms,
        band_ms=band_ms,
        bound_ms=bound.ms if bound is not None else None,
        over_bound_pct=100.0 * (step_ms / bound.ms - 1.0) if bound is not None else None,
        over_profile_bound_pct=question.over_profile_bound_pct(answer.plan) if bound is not None else None,
        phases_ms={str(phase): ms for phase, ms in answer.judged.timing(1).phases_ms.items()},
        sharding_types=dict(sorted(kinds.items())),
        hbm_used_bytes=answer.planned.hbm_memory_bytes,
        hbm_room_bytes=constraints.device_bytes(topology),
        placed_anew=int(answer.plan.notes.get("placed_anew", 0)),
    )
