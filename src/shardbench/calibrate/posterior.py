"""A race corrects a machine file: its constants become their posterior, its values and errors being the prior."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash
from shardbench.calibrate.correction import Corrected, Correction
from shardbench.calibrate.raced import raced_plans
from shardbench.calibrate.write import CORRECTED_BY, Base, base_of_file, in_unit, refuse_overwriting, write_machine
from shardbench.model.calibrated import chip_of
from shardbench.model.machine import Machine
from shardbench.model.machine_file import _FIELDS
from shardbench.model.plan import Plan
from shardbench.records.record import Record
from shardbench.runs.simulate import CountedQuestion

_SHOWN = 6
"""Constants that a line names; how many more moved is said."""
_WIDTH = 79

Trials = Sequence[tuple[Plan, Record]]
"""Plans with a measured trial each; a plan that was measured several times is there as often."""


def corrected(machine: Machine, question: CountedQuestion, raced: Trials, *, chip: str | None = None) -> Corrected:
    """Return the machine with its constants' posterior after a race of plans for ``question``.

    Ranks ran on ``chip``, these processors by default. A constant that was measured on others is a guess about them:
    its error is a factor of 2 or more then, and dense models that were measured there are forgotten. Raises BadInput
    for a machine of another shape than the race's, for one that does not state its constants' errors, and for trials
    that are not of the question, not all of one environment, or none that ended well.
    """
    asked = question.problem.machine
    if (machine.device, _shape(machine)) != (asked.device, _shape(asked)):
        raise BadInput(f"machine {machine.name} has not the device or the ranks of the race: correct the one raced on")
    if not machine.errors:
        raise BadInput(f"machine {machine.name} does not say how well its constants are known: state their errors")
    here = chip if chip is not None else chip_of(Environment.here(), machine.device)
    return Correction(machine, raced_plans(question, raced), here).result()


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
    found = corrected(base.machine, question, raced)
    named = found.machine if in_place else replace(found.machine, name=out.name.removesuffix(".toml"))
    sources = {name: source + _from(base, name) for name, source in found.sources.items()}
    of = found.machine.trust.source.partition(";")[0] if found.machine.trust is not None else ""
    errors = f"{of}: posterior, no surer than plans left out, from"
    judged = {one.name: f"{errors} {one.error_before:g}" for one in found.moved if one.error_after != one.error_before}
    write_machine(out, base, named, sources, by=CORRECTED_BY, judged=judged)
    return [*lines(found), f"machine file: {out}"]


def lines(found: Corrected) -> list[str]:
    """Say what a race changed, in lines of at most 79 columns."""
    plans = len(found.after_ms)
    said = [
        f"corrected by {plans} plans in {found.trials} trials",
        f"whole steps: {mape(found.before_ms):.1f} % off before, {mape(found.after_ms):.1f} % after (in sample)",
    ]
    trust = found.machine.trust
    if trust is not None:
        off = 100.0 * (trust.step_error - 1.0)
        said.append(f"each plan as predicted by the others alone: {off:.0f} % off (root mean square)")
    changed = [f"{group} x{factor:.2f}" for group, factor in found.factors.items()]
    said.append(f"times in common: {', '.join(changed)}")
    beyond = sorted((one for one in found.moved if one.beyond), key=lambda one: -one.distance)
    names = {name: key for key, (name, _) in _FIELDS.items()}
    said += [
        f"moved beyond its error: {names[one.name]} x{one.after / one.before:.2f} (error was {one.error_before:g})"
        for one in beyond[:_SHOWN]
    ]
    if len(beyond) > _SHOWN:
        said.append(f"and {len(beyond) - _SHOWN} constants more")
    if not beyond:
        said.append("no constant moved beyond its error")
    return [line[:_WIDTH] for line in (*said, *found.skipped)]


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


def _from(base: Base, name: str) -> str:
    """Return the words that say which value a source's constant had before; none for measured dense models."""
    for field, dimension in _FIELDS.values():
        if field == name:
            value, unit = in_unit(getattr(base.machine.constants, field), dimension)
            return f", from {value} {unit}"
    return ""
