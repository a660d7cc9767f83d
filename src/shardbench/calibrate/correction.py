"""A race corrects a machine file: its plans' times are fitted, with the file's values and errors as the prior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash
from shardbench.calibrate.calibration import kind_of, least_log
from shardbench.calibrate.fit import CPU_START, STEP, refit
from shardbench.calibrate.raced import Raced, raced_plans
from shardbench.calibrate.write import (
    CORRECTED_BY,
    GUESSED_ERROR,
    RACED,
    base_of_file,
    in_unit,
    refuse_overwriting,
    write_machine,
)
from shardbench.cost.phases import StepPhase
from shardbench.cost.uncertainty import HeldOutStep, trust
from shardbench.model.calibrated import chip_behind, chip_of, raced_on
from shardbench.model.machine import Constants, Machine, Trust, dense_key
from shardbench.model.machine_file import _FIELDS
from shardbench.model.plan import Plan
from shardbench.records.record import Record
from shardbench.trials.simulate import CountedQuestion

_NOTHING = "nothing is charged"
"""How the source of a placeholder ends, which no factor makes a constant."""
_SAME_CPU = {"host_launch_s": "launch_s", "host_table_s": "table_s"}
_SAME_LINK = {"intra_bytes_per_s": "inter_bytes_per_s", "intra_latency_s": "inter_latency_s"}
_LONGEST_LIST = 6
"""Constants that a line names; how many more moved is said."""
_WIDTH = 79

Trials = Sequence[tuple[Plan, Record]]
"""Plans with a measured trial each; a plan that was measured several times is there as often."""


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A machine after a race, and the race."""

    machine: Machine
    sources: dict[str, str]
    """The source of every constant with a new value, by field name, and of the measured dense model, by key."""
    race: Raced


def corrected(machine: Machine, question: CountedQuestion, raced: Trials, *, chip: str | None = None) -> Corrected:
    """Return the machine with its constants fitted to a race of plans for ``question``, as far as their errors allow.

    Ranks ran on ``chip``, these processors by default. A constant that was measured on others is a guess about them:
    it moves as if its error were a factor of 2 or more, and dense models that were measured there are forgotten. Raises
    BadInput for a machine of another shape than the race's, for one that does not state its constants' errors, and for
    trials that are not of the question, not all of one environment, or none that ended well.
    """
    raced_machine = question.problem.machine
    if (machine.device, _shape(machine)) != (raced_machine.device, _shape(raced_machine)):
        raise BadInput(f"machine {machine.name} has not the device or the ranks of the race: correct the one raced on")
    if not machine.errors:
        raise BadInput(f"machine {machine.name} does not say how well its constants are known: state their errors")
    here = chip if chip is not None else chip_of(Environment.here(), machine.device)
    race = raced_plans(question, raced)
    guesses = _uncharged(machine)
    # A measured dense model hides what constants predict of it, and other tables have another one.
    start = replace(machine, constants=replace(machine.constants, **guesses), dense_steps={})
    elsewhere = {name for name in machine.errors if chip_behind(machine, name) not in (None, here)}
    errors = {
        name: max(error, GUESSED_ERROR) if name in guesses or name in elsewhere else error
        for name, error in machine.errors.items()
        if error > 1.0 or name in guesses
    }
    new_fit, without = refit(start, errors, race.residuals(), partial(_tied, start))
    # A guess of which the race tells nothing stays what the file charges.
    silent = {name: getattr(machine.constants, name) for name in guesses if name not in new_fit.fitted}
    constants = replace(new_fit.machine.constants, **silent)
    names = [field.name for field in fields(Constants)]
    moved = [name for name in names if getattr(constants, name) != getattr(machine.constants, name)]
    # The raced tables are few: agreement on them makes no constant surer than its file says.
    quality = new_fit.held_out
    judged = {name: max(machine.errors[name], round(quality[kind_of(name, quality)].factor, 3)) for name in moved}
    of = f"{raced_on(here)}: {question.problem.name}, {len(race.plans)} plans in {race.trials} trials"
    dense = _dense_step(race)
    sources = {name: f"{of}, from {_stated(machine, name)}" for name in moved} | dict.fromkeys(dense, of)
    after = replace(
        machine,
        constants=constants,
        errors=machine.errors | judged,
        dense_steps={**({} if "dense_flop_per_s" in elsewhere else machine.dense_steps), **dense},
        sources=machine.sources | sources,
        trust=_trust(race, without, of),
    )
    return Corrected(machine=after, sources=sources, race=race)


def _trust(race: Raced, without: Mapping[str, Machine], of: str) -> Trust:
    """Return how far the steps of plans are off what the machines ``without`` them predict."""
    steps = [
        HeldOutStep(
            tables=race.question.problem.name,
            predicted_ms=race.step_time(plan, without[plan.plan_hash]).step_ms,
            measured_ms=plan.measured_ms((STEP, None)),
        )
        for plan in race.plans
    ]
    noise = race.noise() / math.sqrt(race.trials / len(race.plans))
    foreseen = "whole steps of each half of the plans, as predicted after a correction by the other half"
    return trust(steps, least_log(noise), f"{of}; {foreseen}")


def step_errors(machine: Machine, question: CountedQuestion, raced: Trials) -> tuple[tuple[float, float], ...]:
    """Return the (predicted, measured) step in ms of each distinct plan that was measured for ``question``.

    Predictions are those of ``machine``, of which dense models that were measured are no part where the question is
    another one: so a correction is judged by tables that took no part in it.
    """
    return raced_plans(question, raced).steps_ms(machine)


def mape(steps: Sequence[tuple[float, float]]) -> float:
    """Return the mean of |predicted / measured - 1| in percent, of (predicted, measured) steps; nan without a step."""
    return 100.0 * float(np.mean([abs(predicted / measured - 1.0) for predicted, measured in steps]))


def update_file(machine: str, out: Path, question: CountedQuestion, raced: Trials) -> list[str]:
    """Correct a machine, by name or path, by a race, write the file ``out`` and say in a few lines what changed.

    ``out`` may be the file itself; another one that exists is refused. The trials must have been measured in this
    environment and predicted by the machine as it is now: so no trial corrects a machine twice.
    Raises BadInput where that is not so, before anything is written, and where ``corrected`` does.
    """
    in_place = machine.endswith(".toml") and out.exists() and out.resolve() == Path(machine).resolve()
    if not in_place and out.exists():
        raise BadInput(f"{out} exists and is not the machine's own file: name another one for --update")
    refuse_overwriting(out, force=True)
    base = base_of_file(machine)
    _refuse_others(base.machine, raced)
    correction = corrected(base.machine, question, raced)
    new_machine = correction.machine if in_place else replace(correction.machine, name=out.name.removesuffix(".toml"))
    write_machine(out, base, new_machine, correction.sources, by=CORRECTED_BY, judged=RACED)
    return [*lines(base.machine, correction), f"machine file: {out}"]


def lines(before: Machine, correction: Corrected) -> list[str]:
    """Say what a race changed of the machine ``before``, in lines of at most 79 columns."""
    race, after = correction.race, correction.machine
    off, now = (mape(race.steps_ms(machine)) for machine in (before, after))
    report = [
        f"corrected by {len(race.plans)} plans in {race.trials} trials",
        f"whole steps: {off:.1f} % off before, {now:.1f} % after (in sample)",
    ]
    if after.trust is not None:
        foreseen = 100.0 * (after.trust.step_error - 1.0)
        report.append(f"half of the plans as predicted by the other half: {foreseen:.0f} % off (RMS)")
    changes = [
        (key, name) for key, (name, _) in _FIELDS.items() if name in correction.sources.keys() - _uncharged(before)
    ]
    factors = {key: getattr(after.constants, name) / getattr(before.constants, name) for key, name in changes}
    beyond = [
        f"moved beyond its error: {key} x{factors[key]:.2f} (error was {before.errors[name]:g})"
        for key, name in sorted(changes, key=lambda one: -abs(math.log(factors[one[0]])))
        if abs(math.log(factors[key])) > math.log(before.errors[name])
    ]
    report += beyond[:_LONGEST_LIST] or ["no constant moved beyond its error"]
    if len(beyond) > _LONGEST_LIST:
        report.append(f"and {len(beyond) - _LONGEST_LIST} constants more")
    return [line[:_WIDTH] for line in (*report, *race.skipped)]


def _uncharged(machine: Machine) -> dict[str, float]:
    """Return guesses of the constants of a CPU machine for which its file charges nothing until they are known."""
    if machine.device != "cpu":
        return {}
    return {name: value for name, value in CPU_START.items() if machine.sources.get(name, "").endswith(_NOTHING)}


def _tied(start: Machine, machine: Machine) -> Machine:
    """Return the machine with what a calibration ties to other constants moved as they are, from ``start``."""
    old, new = start.constants, machine.constants
    tied = {}
    if start.device == "cpu" and start.host is None:
        # The tiers of a CPU are one memory, its hosts the ranks' own CPUs.
        faster = new.hbm_bytes_per_s * new.gather_efficiency_ratio
        faster /= old.hbm_bytes_per_s * old.gather_efficiency_ratio
        tied = {name: getattr(old, name) * faster for name in ("uvm_bytes_per_s", "host_bytes_per_s")}
        tied |= {
            name: getattr(old, name) * getattr(new, lead) / getattr(old, lead)
            for name, lead in _SAME_CPU.items()
            if getattr(old, lead) > 0
        }
    if start.device == "cpu" and start.topology.nodes > 1:
        # Emulated nodes have one link.
        tied |= {
            name: getattr(new, lead) for name, lead in _SAME_LINK.items() if getattr(old, name) == getattr(old, lead)
        }
    constants = replace(new, **tied)
    inter_bytes_per_s = min(constants.inter_bytes_per_s, constants.intra_bytes_per_s)
    inter_latency_s = max(constants.inter_latency_s, constants.intra_latency_s)
    return replace(
        machine, constants=replace(constants, inter_bytes_per_s=inter_bytes_per_s, inter_latency_s=inter_latency_s)
    )


def _dense_step(race: Raced) -> dict[str, float]:
    """Return the typical seconds of the raced workload's dense model, by its key, where the ranks' clocks tell them."""
    key = (StepPhase.DENSE, None)
    times = [plan.measured_ms(key) for plan in race.plans if key in plan.times]
    problem = race.question.problem
    of = dense_key(race.question.dense, problem.tables, problem.batch_size, problem.world_size)
    return {of: 1e-3 * float(np.median(times))} if times else {}


def _stated(machine: Machine, constant: str) -> str:
    """Return a constant's value and unit."""
    dimension = next(dimension for name, dimension in _FIELDS.values() if name == constant)
    return " ".join(in_unit(getattr(machine.constants, constant), dimension))


def _shape(machine: Machine) -> tuple[int, int]:
    return machine.topology.nodes, machine.topology.devices_per_node


def _refuse_others(machine: Machine, raced: Trials) -> None:
    """Raise BadInput for trials of another environment than this one, and of another version of the machine."""
    measured, here = {record.environment for _, record in raced}, Environment.here().hash
    if measured - {here}:
        raise BadInput("the race was measured in another environment than this one: update the machine file there")
    now = content_hash(machine)
    if any(record.spec.machine_hash != now for _, record in raced):
        raise BadInput(
            f"the race was predicted by another version of machine {machine.name}, one that it may have corrected "
            "already: race again"
        )
