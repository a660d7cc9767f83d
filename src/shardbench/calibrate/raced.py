"""What a race measured of each plan, beside what the cost model says of the same plan under any constants."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.base.statistics import pooled_noise
from shardbench.calibrate.fit import STEP, Residual, in_step
from shardbench.cost.costmodel import StepTime, step_time
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.cost.traffic import Traffic
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.table import StepSchedule
from shardbench.records.record import Record
from shardbench.records.trial import TRAINING, Backend
from shardbench.report.prediction.against_measured import IDLE_MS
from shardbench.trials.simulate import CountedQuestion

_RANKS = {StepPhase.DENSE: max} | dict.fromkeys(EXCHANGE_PHASES, min)
"""Which rank tells how long a phase takes that is one for all: in an exchange the one that waits least."""


@dataclass(frozen=True, kw_only=True)
class RacedPlan:
    """A plan that a race measured: its mean traffic, and its times over the trials."""

    plan_hash: str
    traffic: Traffic
    times: dict[tuple[str, int | None], tuple[float, ...]]
    """Measured milliseconds by phase, or ``STEP``, and rank (None: one for all), one number a trial."""

    @property
    def trials(self) -> int:
        """Return the number of trials."""
        return len(self.times[STEP, None])

    def measured_ms(self, key: tuple[str, int | None]) -> float:
        """Return the geometric mean over trials."""
        return float(np.exp(np.mean(np.log(self.times[key]))))


@dataclass(frozen=True, kw_only=True)
class Raced:
    """All that a race tells of one question: plans whose times count, and what does not count and why."""

    question: CountedQuestion
    plans: tuple[RacedPlan, ...]
    skipped: tuple[str, ...]

    @property
    def trials(self) -> int:
        """Return the number of trials of all plans."""
        return sum(plan.trials for plan in self.plans)

    def step_time(self, plan: RacedPlan, machine: Machine) -> StepTime:
        """Return what the cost model says of a plan under a machine's constants."""
        problem = self.question.problem
        return step_time(
            plan.traffic, machine, self.question.dense, problem.tables, problem.batch_size, schedule=problem.schedule
        )

    def steps_ms(self, machine: Machine) -> tuple[tuple[float, float], ...]:
        """Return the (predicted, measured) step of each plan, in ms."""
        return tuple((self.step_time(plan, machine).step_ms, plan.measured_ms((STEP, None))) for plan in self.plans)

    def residuals(self) -> list[Residual]:
        """Return the times of all plans, named by the plan's hash, beside what the cost model says of them."""
        world = self.question.problem.topology.world_size
        return [
            time
            for plan in self.plans
            for time in in_step(
                plan.plan_hash, {key: plan.measured_ms(key) for key in plan.times}, partial(self.step_time, plan), world
            )
        ]

    def noise(self) -> float:
        """Return how far steps of one plan differ: a deviation of logarithms, 0 where nothing was repeated."""
        noise = pooled_noise([plan.times[STEP, None] for plan in self.plans])
        return noise.deviation if noise is not None else 0.0


def raced_plans(question: CountedQuestion, raced: Sequence[tuple[Plan, Record]]) -> Raced:
    """Put each plan's trials together and count the plan once; failed trials and batch schedules are skipped.

    Raises BadInput for trials that are not of the question or not all of one environment, and where none is left.
    """
    measured: dict[str, tuple[Plan, list[Record]]] = {}
    failed = schedules = 0
    for plan, record in raced:
        if record.failure is not None or record.timing is None:
            failed += 1
        elif plan.schedule is not None:
            schedules += 1
        else:
            _check(question, plan, record)
            measured.setdefault(content_hash(plan), (plan, []))[1].append(record)
    skipped = [f"{failed} trials did not end well: left out"] if failed else []
    skipped += [f"{schedules} trials of batch schedules, whose steps are of two kinds: left out"] if schedules else []
    if not measured:
        raise BadInput("no trial of the race ended well, so it tells nothing of the machine: race again")
    if len({record.environment for _, records in measured.values() for record in records}) > 1:
        raise BadInput("the trials were measured in several environments: correct one machine by the trials of one")
    plans = tuple(_plan(question, key, *trials) for key, trials in measured.items())
    return Raced(question=question, plans=plans, skipped=tuple(skipped))


def _check(question: CountedQuestion, plan: Plan, record: Record) -> None:
    spec, problem = record.spec, question.problem
    if spec.backend is not Backend.MEASURED:
        raise BadInput(f"{spec.text} was simulated: only measured trials correct a machine")
    if record.planned is None or record.planned.plan_hash != content_hash(plan):
        raise BadInput(f"{spec.text} is not a trial of the plan that it is given with")
    for name in ("batch_size", *TRAINING):
        measured, in_question = getattr(spec, name), getattr(problem, name)
        if measured != in_question:
            raise BadInput(f"{spec.text} was measured with {name} {measured}, the question has {in_question}")
    timing = record.timing
    if timing is not None and len(timing.embedding_ms) != problem.topology.world_size:
        ranks = len(timing.embedding_ms)
        raise BadInput(f"{spec.text} was measured on {ranks} ranks, the question has {problem.topology.world_size}")


def _plan(question: CountedQuestion, plan_hash: str, plan: Plan, records: Sequence[Record]) -> RacedPlan:
    traffic = question.judge(plan).traffic
    trials = [_measured(record, question, traffic, parts=plan.sync_every == 1) for record in records]
    times = {key: tuple(trial[key] for trial in trials) for key in trials[0] if all(key in trial for trial in trials)}
    return RacedPlan(plan_hash=plan_hash, traffic=traffic, times=times)


def _measured(
    record: Record, question: CountedQuestion, traffic: Traffic, *, parts: bool
) -> dict[tuple[str, int | None], float]:
    """Return a trial's times in ms that tell of constants: wall time, as whole steps are, of ranks that do not idle.

    Without ``parts`` it is the step alone: copies that are averaged every few steps are in a phase of their own choice.
    """
    timing = record.timing
    if timing is None:
        return {}
    times: dict[tuple[str, int | None], float] = {(STEP, None): float(np.median(timing.step_ms))}
    ranks = [rank.phases_ms for rank in timing.ranks or ()] if parts else []
    bags = traffic.load.bags.copy()
    if question.problem.machine.device == "cpu":
        bags[:: question.problem.topology.devices_per_node] += traffic.host.bags
    for rank, phases in enumerate(ranks):
        # A rank without a bag calls empty modules; its time tells of no constant.
        times |= {(kind, rank): phases[kind] for kind in KERNELS if bags[rank] > 0 and kind in phases}
    exchanges: tuple[StepPhase, ...] = EXCHANGE_PHASES if len(ranks) > 1 else ()
    if question.problem.schedule is not StepSchedule.SEQUENTIAL:
        exchanges = tuple(phase for phase in exchanges if phase is not StepPhase.INPUT)  # Beside other phases.
    for kind in (*exchanges, StepPhase.DENSE):
        more = StepPhase.UPDATE if kind is StepPhase.DENSE else None
        several = [phases[kind] + (phases.get(more, 0.0) if more else 0.0) for phases in ranks if kind in phases]
        if several:
            times[kind, None] = _RANKS[kind](several)
    if record.shares_cores:
        _fill(times)
    return {key: ms for key, ms in times.items() if ms > IDLE_MS}


def _fill(times: dict[tuple[str, int | None], float]) -> None:
    """Let the exchanges take what is left of the step: a rank that shares its core waits for it in all phases."""
    exchanges = [key for key in times if key[0] in EXCHANGE_PHASES]
    kernels = sum(max((ms for (kind, _), ms in times.items() if kind == one), default=0.0) for one in KERNELS)
    remainder_ms = times[STEP, None] - kernels - times.get((StepPhase.DENSE, None), 0.0)
    exchanges_ms = sum(times[key] for key in exchanges)
    for key in exchanges:
        times[key] *= max(1.0, remainder_ms / exchanges_ms)
