"""A race corrects a machine file: whole steps of its plans are fitted, with the file's values and errors as the prior.

The fit is that of ``doctor --calibrate``. A raced plan is one more time for it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash
from shardbench.base.statistics import log_mean, pooled_noise
from shardbench.calibrate.calibration import least_log, with_ties
from shardbench.calibrate.fit import STEP, STEP_WEIGHT, Residual, fit_times, weights_of
from shardbench.calibrate.write import (
    GUESSED_ERROR,
    base_of_file,
    in_unit,
    refuse_overwriting,
    write_machine,
)
from shardbench.cost.costmodel import step_time
from shardbench.cost.uncertainty import trust
from shardbench.model.calibrated import chip_behind, chip_of, raced_on
from shardbench.model.machine import Constants, Machine
from shardbench.model.machine_file import KEY_OF, KEYS
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.records.record import Record
from shardbench.trials.simulate import CountedQuestion
from shardbench.trials.suite import Job
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

Trials = Sequence[tuple[Plan, Record]]
"""Plans with a measured trial each; a plan that was measured several times is there as often."""


@dataclass(frozen=True, kw_only=True)
class RacedPlan:
    """A plan that a race measured."""

    steps_s: tuple[float, ...]
    """The median step of each of its trials, in seconds."""
    step: Residual
    """Their geometric mean, beside what the cost model says of it."""


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A machine after a race, and the plans of the race."""

    machine: Machine
    sources: dict[str, str]
    """The source of every constant with a new value, by field name."""
    plans: tuple[RacedPlan, ...]


def question_of(workload: Workload, job: Job) -> CountedQuestion:
    """Return the question that a job's plans answer, on the test batches of its iterations."""
    problem = Problem.of(
        workload.name, workload.tables, workload.profiles, job.load_machine(), batch_size=workload.batch_size,
        **job.training,
    )  # fmt: skip
    batches = DrawnBatches(workload, min(job.iterations, workload.test_batches))
    return CountedQuestion(problem, batches, workload.dense, job.iterations)


def raced_plans(question: CountedQuestion, trials: Trials) -> tuple[RacedPlan, ...]:
    """Put each plan's trials for the question together; a plan with a batch schedule has steps of two kinds: left out.

    Raises BadInput where no plan is left.
    """
    steps_s: dict[str, list[float]] = {}
    plans: dict[str, Plan] = {}
    for plan, record in trials:
        if plan.schedule is None and record.timing is not None:
            key = content_hash(plan)
            plans[key] = plan
            steps_s.setdefault(key, []).append(1e-3 * median(record.timing.step_ms))
    if not plans:
        raise BadInput("no trial of the race ended well, so it tells nothing of the machine: race again")
    return tuple(_raced_plan(question, plan, steps_s[key]) for key, plan in plans.items())


def _raced_plan(question: CountedQuestion, plan: Plan, steps_s: Sequence[float]) -> RacedPlan:
    problem, traffic = question.problem, question.judge(plan).traffic

    def predicted_s(machine: Machine) -> float:
        tables, schedule = problem.tables, problem.schedule
        time = step_time(traffic, machine, question.dense, tables, problem.batch_size, schedule=schedule)
        return 1e-3 * time.step_ms

    measured_s = log_mean(steps_s).value
    step = Residual(what=STEP, name=problem.name, measured_s=measured_s, predicted_s=predicted_s, weight=STEP_WEIGHT)
    return RacedPlan(steps_s=tuple(steps_s), step=step)


def off_pct(plans: Iterable[RacedPlan], machine: Machine) -> float:
    """Return the mean of |predicted / measured - 1| of plans' steps on a machine, in percent."""
    return 100.0 * float(np.mean([abs(math.expm1(plan.step.log_error(machine))) for plan in plans]))


def corrected(machine: Machine, question: CountedQuestion, trials: Trials, *, chip: str | None = None) -> Corrected:
    """Return the machine with its constants fitted to a race of plans for ``question``, as far as their errors allow.

    Ranks ran on ``chip``, these processors by default. A constant that was measured on others is a guess about them:
    it moves as if its error were a factor of 2 or more, and dense models that were measured there are forgotten. The
    stated errors stay: the raced tables are few, and agreement on them makes no constant surer. Raises BadInput for a
    machine that does not state the errors of its constants, and where no trial counts.
    """
    if not machine.errors:
        raise BadInput(f"machine {machine.name} does not say how well its constants are known: state their errors")
    here = chip if chip is not None else chip_of(Environment.here(), machine.device)
    plans = raced_plans(question, trials)
    elsewhere = {name for name in machine.errors if chip_behind(machine, name) not in (None, here)}
    guessed = {name: max(machine.errors[name], GUESSED_ERROR) for name in elsewhere if machine.errors[name] > 1.0}
    weights = weights_of(machine.errors | guessed)
    start = replace(machine, dense_steps={}) if "dense_flop_per_s" in elsewhere else machine

    def fitted(some: Sequence[RacedPlan]) -> Machine:
        return with_ties(fit_times(start, weights, [plan.step for plan in some]).machine)

    # Every second plan is held out from the fit that predicts it, and so are the others.
    held_out = [
        plan.step.held_out(other)
        for half, others in ((plans[::2], plans[1::2]), (plans[1::2], plans[::2]))
        for other in [fitted(others)]
        for plan in half
    ]
    after = fitted(plans)
    count = sum(len(plan.steps_s) for plan in plans)
    of = f"{raced_on(here)}: {question.problem.name}, {len(plans)} plans in {count} trials"
    names = [one.name for one in fields(Constants)]
    moved = [name for name in names if getattr(after.constants, name) != getattr(machine.constants, name)]
    sources = {name: f"{of}, from {_stated(machine, name)}" for name in moved}
    noise = pooled_noise([plan.steps_s for plan in plans])
    deviation = noise.deviation / math.sqrt(count / len(plans)) if noise is not None else 0.0
    by = f"{of}; whole steps of each half of the plans, as predicted after a correction by the other half"
    after = replace(after, sources=machine.sources | sources, trust=trust(held_out, least_log(deviation), by))
    return Corrected(machine=after, sources=sources, plans=plans)


def _stated(machine: Machine, constant: str) -> str:
    """Return a constant's value and unit."""
    return " ".join(in_unit(getattr(machine.constants, constant), KEYS[KEY_OF[constant]].dimension))


def update_file(machine: str, out: Path, question: CountedQuestion, trials: Trials) -> list[str]:
    """Correct a machine, by name or path, by a race, write the file ``out`` and say how far off steps are.

    ``out`` may be the file itself; another one that exists is refused. The trials must have been measured in this
    environment and predicted by the machine as it is now: so no trial corrects a machine twice.
    Raises BadInput where that is not so, before anything is written, and where ``corrected`` does.
    """
    in_place = machine.endswith(".toml") and out.exists() and out.resolve() == Path(machine).resolve()
    if not in_place and out.exists():
        raise BadInput(f"{out} exists and is not the machine's own file: name another one for --update")
    refuse_overwriting(out, force=True)
    base = base_of_file(machine)
    _refuse_others(base.machine, trials)
    correction = corrected(base.machine, question, trials)
    after = correction.machine if in_place else replace(correction.machine, name=out.name.removesuffix(".toml"))
    write_machine(out, base, after, correction.sources, raced=True)
    plans = correction.plans
    before_pct, after_pct = off_pct(plans, base.machine), off_pct(plans, after)
    lines = [
        f"corrected by {len(plans)} plans in {sum(len(plan.steps_s) for plan in plans)} trials",
        f"whole steps: {before_pct:.1f} % off before, {after_pct:.1f} % after (in sample)",
    ]
    if after.trust is not None:
        foreseen = 100.0 * (after.trust.step_error - 1.0)
        lines.append(f"half of the plans as predicted by the other half: {foreseen:.0f} % off (RMS)")
    return [*lines, f"machine file: {out}"]


def _refuse_others(machine: Machine, trials: Trials) -> None:
    """Raise BadInput for trials of another environment than this one, and of another version of the machine."""
    if {record.environment for _, record in trials} - {Environment.here().hash}:
        raise BadInput("the race was measured in another environment than this one: update the machine file there")
    now = content_hash(machine)
    if any(record.spec.machine_hash != now for _, record in trials):
        raise BadInput(
            f"the race was predicted by another version of machine {machine.name}, one that it may have corrected "
            "already: race again"
        )
