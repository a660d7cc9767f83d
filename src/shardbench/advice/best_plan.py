"""The best plan for one's own tables on one's own machine: strategies asked in turn, within a budget, judged alike.

A plan that came late ranks with the others: it is as good, and it is there. One whose predicted peak does not fit comes
behind all that do. Of plans that are not told apart and nearly as short as the shortest, the answer is the simplest.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from shardbench.advice.asking import YOURS, Asking, Attempt, Clock
from shardbench.advice.peak import BatchLeft, DeviceMemory
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash, to_json
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.collectives import EXCHANGES
from shardbench.cost.memory.fullest import Peak, device_bytes
from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.model.constraints import ANY_PLAN, Constraints, sharding_type
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move, Role, Strategy
from shardbench.model.table import Optimizer, Precision, StepSchedule, Table
from shardbench.model.validate import has_room, memory_text
from shardbench.records.trial import Outcome
from shardbench.trials.discovery import missing_modules, strategies
from shardbench.trials.evaluate import Answer
from shardbench.trials.planning import learns
from shardbench.trials.simulate import CountedQuestion, ExpectedQuestion, Simulation
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

COMPARED = 5
"""Best plans that are told apart from the best one."""
PROFILES_SHARE, PROFILES_S = 0.15, 1.0
"""Most of the budget that profiles may nominally take, and what they may take of any."""
LOOKUP_S, TABLE_S = 2.5e-8, 1.5e-4
"""Nominal seconds of a profile, by lookup and by table."""
LEAST_SAMPLES = 64
"""Samples of the quickest profiles."""
SURVEYED = 64
"""Tables, picked at random, that tell how many lookups a sample has."""
COUNTED_SHARE, COUNTED_S = 0.15, 1.5
"""Most of the budget that counting plans and their bound on a test batch may nominally take, and what it may of any."""
COUNT_S = 3e-7
"""Nominal seconds of that by lookup of the batch."""
MOST_COUNTED = 1 << 25
"""Lookups of a batch that is counted, whatever the budget is: they take about 1 GiB."""
ASKED_S = 1.0
"""Seconds after the budget until which strategies are asked."""
BATCH_SHARE = 0.07
"""Most of the budget that seeking the batch that fails may take."""
SPILL, SPILL_S = 0.15, 1.8
"""Share of the budget, and seconds, after which nothing is compared or bounded any more."""
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
    bound_ms: float | None = None
    """Which no plan of device moves can beat, in the memory that plans were made for."""
    over_bound_pct: float | None = None
    over_profile_bound_pct: float | None = None
    """The same under the profiles by which plans are made, where no single test bag is unusually long."""
    phases_ms: dict[str, float]
    host_ms: float
    """Time in which the host starts an eager TorchRec step, which takes no less whatever the plan; 0 on CPUs."""
    bound_by: str
    """What takes most of the step: host, kernels, exchange or dense."""
    sharding_types: dict[str, int]
    """How many tables are sharded how."""
    hbm_used_bytes: tuple[int, ...]
    hbm_room_bytes: tuple[int, ...]
    """HBM of each device that is left for tables."""
    peak: Peak | None
    """The most that the fullest device holds in a step, tables and all else; None where none is predicted."""
    batch_left: BatchLeft | None = None
    """The batch that it fails at; None where that is far, not known, or not sought for want of time."""
    placed_anew: int
    """Tables that the strategy had placed against a constraint."""
    unbounded: str = ""
    """Why there is no bound, in words; empty where there is one."""
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
    tried: tuple[Attempt, ...]
    took_s: float
    answers: Mapping[str, Answer[Simulation]] = field(default_factory=dict, repr=False)
    """The plans by strategy, and what they come to."""
    yours: Yours | None = None
    """The user's own plan; None where none was given."""
    asked_s: float = 0.0
    """Wall seconds until the last of them had answered, judging its plan included."""
    memory: str = ""
    """What all tables need and what there is, in words."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Wall seconds by what they went to: profiles, asking strategies, comparing their plans, the bound."""
    hurried: str = ""
    """What was done otherwise for want of time, in words; else empty."""
    interrupted: bool = False
    """Whether somebody stopped it, so that this is the best so far."""

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return one candidate a distinct plan, the shortest step first, named by the first strategy that has it."""
        by_hash: dict[str, Candidate] = {}
        for name, answer in self.answers.items():
            candidate = Candidate(name=name, plan=answer.plan, step_ms=answer.judged.step_ms)
            by_hash.setdefault(contents_hash(answer.plan), candidate)
        return tuple(sorted(by_hash.values(), key=lambda candidate: candidate.step_ms))


def default_strategies() -> list[Strategy]:
    """Installed competitors of device moves or caches that learn nothing and see profiles and the machine alone.

    What they require can be imported here.
    """
    return [
        strategy
        for strategy in strategies().values()
        if strategy.role is Role.COMPETITOR
        and strategy.moves <= DEVICE_MOVES | {Move.CACHE}
        and not (learns(strategy) or Sees.INPUTS in strategy.sees or missing_modules(strategy))
    ]


def best_plan(
    workload: Workload,
    machine: Machine,
    strategies: Sequence[Strategy],
    *,
    constraints: Constraints = ANY_PLAN,
    budget_s: float = 30.0,
    seed: int = 0,
    precision: Precision = Precision.FP32,
    optimizer: Optimizer = Optimizer.SGD,
    exchange: Precision = Precision.FP32,
    schedule: StepSchedule = StepSchedule.SEQUENTIAL,
    on_step: Callable[[str, float], None] = lambda name, step_ms: None,
    against: Plan | None = None,
) -> PlanSearch:
    """Ask all strategies within ``budget_s`` seconds of planning and judge their plans on a test batch.

    The budget holds for all of it. Where there are so many tables that the rest takes long too, profiles are of fewer
    samples, plans are judged by what these let expect, and the bound is left out where no time is left for it. What is
    done so follows from numbers of tables and lookups, never from how fast they go. ``on_step`` hears of every plan
    that is better than the one before, with its step in ms; an interruption from then on ends it with the best so far.

    ``against`` is the user's own plan, judged alike. Raises BadInput for constraints that name no table
    of these, contradict each other or leave no memory, for strategies that cannot be imported here or are not there,
    and for a plan of the user's that is none of these tables on this machine, or breaks a constraint.
    """
    constraints.check_tables(workload.tables)
    start = time.perf_counter()
    clock, later = Clock(start + budget_s + ASKED_S), Clock(start + (1.0 + SPILL) * budget_s + SPILL_S)
    training = {"precision": precision, "optimizer": optimizer, "exchange": exchange, "schedule": schedule}
    unasked = _problem(workload, tuple(map(_unknown, workload.tables)), machine, strategies, training)
    room_for = constraints.applied(unasked)
    if against is None and not any(has_room(room_for, strategy.moves) for strategy in strategies):
        return _too_large(unasked, strategies, memory_text(room_for), start)
    phases_s: dict[str, float] = {}
    with _phase(phases_s, "profiles"):
        profiled_workload = _profiled(workload, budget_s)
        problem = _problem(workload, profiled_workload.profiles, machine, strategies, training)
    is_counted = profiled_workload is workload and _is_quick(problem, budget_s)
    kind = CountedQuestion if is_counted else ExpectedQuestion
    question = kind(constraints.applied(problem), DrawnBatches(workload), workload.dense)
    asking = Asking(question, constraints, budget_s, seed, clock, on_step=on_step)
    yours = {YOURS: asking.judge_yours(against)} if against is not None else {}
    # Devices' memory where the constraints state it is for tables, as that of most machines is.
    there_bytes = None if constraints.device_hbm_bytes else device_bytes(machine)
    memory = DeviceMemory(problem=problem, dense=workload.stated_dense, there_bytes=there_bytes, limits=constraints)
    room = memory.room(strategy.moves for strategy in strategies)
    if room != constraints:
        asking.question = question = kind(room.applied(problem), DrawnBatches(workload), workload.dense)
    asking.ask(strategies)
    later.interrupted = clock.interrupted
    asked_s = phases_s["asking"] = time.perf_counter() - asking.start
    answers, best, tried = {**yours, **asking.answers}, None, asking.tried
    with _phase(phases_s, "comparing"):
        ranking = _ranking(answers, memory)
        draws = _draws({name: answers[name] for name in (*ranking[:COMPARED], *yours)}, question, later)
        first = _simplest(ranking, answers, draws, memory) if ranking else ""
    if first:
        tried = _compared(tried, first, answers, draws, memory)
        with _phase(phases_s, "bound"):
            known = _memory_fields(answers[first], memory, later, BATCH_SHARE * budget_s)
            known |= _bounds(answers[first], question, later)
        known["band_ms"] = band([draws[first]]) if first in draws else None
        known["simpler_than"] = _simpler(answers[first], answers[ranking[0]], ranking[0]) if first != ranking[0] else ""
        best = _best(answers[first], first, room, problem, known)
    return PlanSearch(
        problem=problem,
        best=best,
        tried=tuple(tried),
        took_s=time.perf_counter() - start,
        answers=answers,
        yours=_yours(first, answers, draws) if yours else None,
        asked_s=asked_s,
        memory=memory_text(question.problem) + ("; that is what a step leaves of it" if room != constraints else ""),
        phases_s=phases_s,
        hurried=_hurried_words(workload, profiled_workload, is_counted=is_counted),
        interrupted=later.interrupted,
    )


def _too_large(problem: Problem, strategies: Sequence[Strategy], memory: str, start: float) -> PlanSearch:
    """Return the answer where nothing is asked, since all memory together is too small."""
    cause = f"{Outcome.INFEASIBLE.value}: all memory together is too small"
    tried = tuple(Attempt(strategy=strategy.name, plan_s=0.0, cause=cause) for strategy in strategies)
    return PlanSearch(problem=problem, best=None, tried=tried, took_s=time.perf_counter() - start, memory=memory)


def _ranking(answers: Mapping[str, Answer[Simulation]], memory: DeviceMemory) -> list[str]:
    """Return the strategies, the shortest step first; but the shortest of a plan that fits before all others.

    No peaks are looked at of plans behind that one, but for the user's own.
    """
    if YOURS in answers:
        memory.peak(answers[YOURS])
    order = sorted((name for name in answers if name != YOURS), key=lambda name: answers[name].judged.step_ms)
    fitting = next((name for name in order if not memory.fails(answers[name])), None)
    return sorted(order, key=lambda name: name != fitting)


def contents_hash(plan: Plan) -> str:
    """Return the hash of where everything is: neither notes nor the order of segments count."""
    return content_hash(replace(plan, segments=tuple(sorted(plan.segments, key=to_json)), notes={}))


def tied_ms(step_ms: float, machine: Machine) -> float:
    """Return the longest step of a plan that may take the place of the shortest one."""
    pairs = machine.trust.pair_error if machine.trust is not None else None
    return step_ms * (1.0 + (TIE if pairs is None else min(TIE, pairs - 1.0)))


def _simplest(
    ranking: Sequence[str],
    answers: Mapping[str, Answer[Simulation]],
    draws: Mapping[str, tuple[float, ...]],
    memory: DeviceMemory,
) -> str:
    """Return the plan of fewest calls and parts among those that are a little longer than the best, and not told apart.

    It fits where the best one does.
    """
    best = ranking[0]
    most_ms, fails = tied_ms(answers[best].judged.step_ms, memory.problem.machine), memory.fails(answers[best])
    near = [one for one in ranking[:COMPARED] if answers[one].judged.step_ms <= most_ms]
    contenders = [one for one in near if _ties(one, best, answers, draws) and memory.fails(answers[one]) == fails]
    return min([best, *contenders], key=lambda name: (*_complexity(answers[name]), answers[name].judged.step_ms))


def _compared(
    tried: Sequence[Attempt],
    first: str,
    answers: Mapping[str, Answer[Simulation]],
    draws: Mapping[str, tuple[float, ...]],
    memory: DeviceMemory,
) -> list[Attempt]:
    """Return the attempts, the answer's and then the shortest step first, with what is known of them beside it."""
    failing = {name for name, one in answers.items() if one.planned.plan_hash in memory.peaks and memory.fails(one)}
    attempts = [
        replace(one, ties=_ties(one.strategy, first, answers, draws), fits=one.strategy not in failing) for one in tried
    ]
    return sorted(attempts, key=lambda one: (one.strategy != first, one.step_ms is None, one.step_ms or 0.0))


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


def _yours(best: str, answers: Mapping[str, Answer[Simulation]], draws: Mapping[str, tuple[float, ...]]) -> Yours:
    """Return the user's own plan beside the best one, whose name is empty where there is none."""
    step_ms = answers[YOURS].judged.step_ms
    less_pct = 100.0 * (1.0 - answers[best].judged.step_ms / step_ms) if best else None
    return Yours(step_ms=step_ms, less_pct=less_pct, sure=_is_slower(YOURS, best, draws))


@contextmanager
def _phase(phases_s: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    phases_s[name] = time.perf_counter() - start


def _profiled(workload: Workload, budget_s: float) -> Workload:
    """Return the workload, with profiles of fewer samples where its own would nominally take too long."""
    tables = len(workload.tables)
    lookups = float(sum(table.features for table in workload.tables))
    if workload.drawn:
        # Tables at even distances would mislead where the lookups of a list go up and down as regularly.
        few, count = workload.quicker(LEAST_SAMPLES), min(SURVEYED, tables)
        some = np.random.default_rng(0).choice(tables, count, replace=False).tolist()
        lookups = tables * sum(few.profile(table).mean_pooling for table in some) / count
    left_s = max(PROFILES_SHARE * budget_s, PROFILES_S) - TABLE_S * tables
    samples = max(int(left_s / (LOOKUP_S * max(lookups, 1.0))), LEAST_SAMPLES)
    return workload if samples >= workload.profile_samples else workload.quicker(samples)


def _is_quick(problem: Problem, budget_s: float) -> bool:
    """Tell whether plans and their bound are counted on a test batch in the time that there is for that."""
    lookups = problem.batch_size * sum(profile.mean_pooling for profile in problem.profiles)
    return COUNT_S * lookups <= max(COUNTED_SHARE * budget_s, COUNTED_S) and lookups <= MOST_COUNTED


def _unknown(table: Table) -> AccessProfile:
    """Return the profile of a table of which nothing was seen."""
    return AccessProfile(rows=table.rows, samples=1, present=0, counts=(), row_counts=())


def _hurried_words(workload: Workload, profiled_workload: Workload, *, is_counted: bool) -> str:
    if is_counted:
        return ""
    few = f"profiles are of {profiled_workload.profile_samples} samples, not of {workload.profile_samples}, and "
    fewer = few if profiled_workload is not workload else ""
    return f"for want of time or memory {fewer}plans are judged by what profiles let expect, not on a test batch"


def _draws(
    answers: Mapping[str, Answer[Simulation]], question: CountedQuestion, clock: Clock
) -> dict[str, tuple[float, ...]]:
    """Return the steps of plans under draws, of as many plans as there is time for."""
    steps = {}
    for name, answer in answers.items():
        with suppress(TimeoutError):
            draws = clock.call(partial(answer.judged.draws, question.problem, question.dense))
            if draws is not None:
                steps[name] = draws.step_ms
    return steps


def _memory_fields(answer: Answer[Simulation], memory: DeviceMemory, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Return the peak, and the batch that is left unless seeking it takes longer than that, as fields of ``Best``."""
    fields: dict[str, Any] = {"peak": memory.peak(answer)}
    with suppress(TimeoutError):
        fields["batch_left"] = clock.call(partial(memory.batch_left, answer), max(clock.left_s - limit_s, 0.0))
    return fields


def _bounds(answer: Answer[Simulation], question: CountedQuestion, clock: Clock) -> dict[str, Any]:
    """Return the bound and the distances to it, or why there is none, as fields of ``Best``."""

    def prove() -> dict[str, Any]:
        bound = answer.bounds.of_step(answer.plan)
        if bound is None:
            return {"unbounded": "no bound is proven for plans with hosts, batch schedules or caches"}
        return {
            "bound_ms": bound.ms,
            "over_bound_pct": 100.0 * (answer.judged.step_ms / bound.ms - 1.0),
            "over_profile_bound_pct": question.over_profile_bound_pct(answer.plan),
        }

    try:
        return clock.call(prove)
    except TimeoutError:
        return {"unbounded": "the bound is left out: there was no time left to prove it"}


def _problem(
    workload: Workload,
    profiles: tuple[AccessProfile, ...],
    machine: Machine,
    strategies: Sequence[Strategy],
    training: Mapping[str, Any],
) -> Problem:
    if not strategies:
        raise BadInput("no strategy is asked")
    for strategy in strategies:
        if strategy.role is Role.OTHER_MODEL:
            raise BadInput(f"strategy {strategy.name} trains another model, so that its step is compared with no other")
        missing = missing_modules(strategy)
        if missing:
            raise BadInput(f"strategy {strategy.name} needs {', '.join(missing)}, which cannot be imported here")
    inputs = workload.input_sample if any(Sees.INPUTS in strategy.sees for strategy in strategies) else None
    return workload.problem(machine, profiles=profiles, **training, inputs=inputs)


def _is_slower(name: str, best: str, draws: Mapping[str, tuple[float, ...]]) -> bool | None:
    """Tell whether a plan is surely slower than the best by what is known of the machine; None where nothing is."""
    return sure(p_larger([draws[name]], [draws[best]])) if name in draws and best in draws else None


def _ties(
    name: str, best: str, answers: Mapping[str, Answer[Simulation]], draws: Mapping[str, tuple[float, ...]]
) -> bool:
    if name == best or name not in answers:
        return False
    is_slower = _is_slower(name, best, draws)
    return answers[name].judged.step_ms == answers[best].judged.step_ms if is_slower is None else not is_slower


def _best(
    answer: Answer[Simulation], name: str, constraints: Constraints, problem: Problem, known: Mapping[str, Any]
) -> Best:
    """Return the answer with what its plan and its step tell, beside the other fields that are ``known``."""
    by_table, topology = answer.plan.by_table(), problem.topology
    kinds = Counter(sharding_type(by_table[table.name], table, topology) for table in problem.tables)
    return Best(
        strategy=name,
        plan=answer.plan,
        step_ms=answer.judged.step_ms,
        phases_ms={str(phase): ms for phase, ms in answer.judged.timing(1).phases_ms.items()},
        host_ms=answer.judged.host_ms,
        bound_by=answer.judged.bound_by,
        sharding_types=dict(sorted(kinds.items())),
        hbm_used_bytes=answer.planned.hbm_memory_bytes,
        hbm_room_bytes=constraints.device_bytes(topology),
        placed_anew=int(answer.plan.notes.get("placed_anew", 0)),
        **known,
    )
