"""The posterior of a machine's constants after a race, with the file's values and errors as the prior.

Constants are those of kernels, of exchanges, of putting lookups in place and of the dense model. All times and rates of
such a group have a common factor, as ranks that share cores take longer in all that they compute; beside it each
constant moves by its own error (``hierarchy``; ``docs/costmodel.md``, section 4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.calibrate.calibration import APART, IN_STEP_KINDS
from shardbench.calibrate.fit import CPU_START
from shardbench.calibrate.hierarchy import Prior, Times, learned, solved
from shardbench.calibrate.raced import KINDS, STEP, Raced, logs
from shardbench.calibrate.write import GUESSED_ERROR
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.cost.uncertainty import EXCHANGE_FORM, KERNEL_FORM, HeldOutStep, trust
from shardbench.model.calibrated import chip_behind, raced_on
from shardbench.model.machine import Constants, Machine, dense_key
from shardbench.model.machine_file import scaled

KERNEL_GROUP, EXCHANGE_GROUP, INPUT_GROUP, DENSE_GROUP = GROUPS = ("kernels", "exchanges", "input", "dense model")
"""Groups of constants with a common factor."""
_GROUP_OF = {"output in step": EXCHANGE_GROUP, "input in step": INPUT_GROUP, "dense in step": DENSE_GROUP}
_TOLD_BY = {
    KERNEL_GROUP: KERNELS,
    EXCHANGE_GROUP: (StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD),
    INPUT_GROUP: (StepPhase.INPUT,),
    DENSE_GROUP: (StepPhase.DENSE,),
}
"""The kinds of times that tell how well the constants of a group are known."""
_FORM = {kind: math.log(EXCHANGE_FORM if kind in EXCHANGE_PHASES else KERNEL_FORM) for kind in KINDS}
_FORM[STEP] = math.log1p(APART)
"""Deviations of the form; that of the step is the difference from which on two have an order."""
_MOST_FORM = math.log(1.3)
"""A calibration that was further off says more of its constants than of the form."""
_MOVE = 0.05
"""Step of the logarithm in a finite difference, downwards: a share of 1 cannot go up."""
_LINEARISED, _SETTLED = 8, 1e-3
"""Times that the model is linearised around the constants found so far, at most; and the move that ends it before."""
_LARGEST = math.log(20.0)
"""A constant stays within this factor of its value, as in a calibration."""
_LEAST_ERROR = 1.01
_NOTHING = "nothing is charged"
"""How the source of a placeholder ends, which no factor makes a constant."""
_OF_MEMORY = ("uvm_bytes_per_s", "host_bytes_per_s")
_CPU_TIES = {"host_launch_s": "launch_s", "host_table_s": "table_s"}
_LINK_TIES = {"intra_bytes_per_s": "inter_bytes_per_s", "intra_latency_s": "inter_latency_s"}


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A constant of which a race told something: its value and its error before and after.

    Where the file charged nothing for it, the value before is the guess that took the place of nothing.
    """

    name: str
    before: float
    after: float
    error_before: float
    error_after: float

    @property
    def distance(self) -> float:
        """Return how far the logarithm moved; nothing where there was none."""
        return abs(math.log(self.after / self.before)) if self.before > 0 else 0.0

    @property
    def beyond(self) -> bool:
        """Say whether it moved by more than the error that the file stated."""
        return self.distance > math.log(self.error_before)


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A machine after a race: its constants, and how far its predictions of the raced plans are off."""

    machine: Machine
    sources: dict[str, str]
    """The source of every constant with a new value, by field name, and of measured dense models, by key."""
    moved: tuple[Moved, ...]
    """The constants with a new value or error, of which ``sources`` are some."""
    factors: Mapping[str, float]
    """Factor by which the times of a group of constants changed in common."""
    before_ms: tuple[tuple[float, float], ...]
    """(predicted, measured) step of each raced plan before, in ms."""
    after_ms: tuple[tuple[float, float], ...]
    """The same after, in sample."""
    trials: int
    skipped: tuple[str, ...]
    """Which trials were left out, and why."""


class Correction:
    """The model of a race's times, linear in the logarithms of the constants around those found so far."""

    def __init__(self, machine: Machine, raced: Raced, chip: str) -> None:
        # A measured dense model hides what constants predict of it, and other tables have another one.
        self.machine, self.raced, self.chip = machine, raced, chip
        self._start_from(_uncharged(machine))
        keys = [(number, kind, rank) for number, plan in enumerate(raced.plans) for kind, rank in plan.times]
        self.plan = np.array([number for number, _, _ in keys])
        self.kind = np.array([KINDS.index(kind) for _, kind, _ in keys])
        world = machine.topology.world_size
        self.share = np.array([1.0 if rank is None else 1.0 / world for _, _, rank in keys])
        noise, trials = raced.noise(), [plan.trials for plan in raced.plans]
        self.noise = np.array([noise[kind] / math.sqrt(trials[number]) for number, kind, _ in keys])
        self.measured = logs([plan.measured_ms(key) for plan in raced.plans for key in plan.times])
        self.ties = self._ties()
        free = [name for name in self._uncertain() if name not in self.ties]
        # What the race tells nothing of follows its group, if it was measured as the group was, and is no guess.
        moves = np.abs(self._derivatives(self.bare, free)).max(axis=0, initial=0.0) > 1e-9
        touched = {name for name, some in zip(free, moves) if some}
        self.names = [name for name in free if name in touched or chip_behind(machine, name)]
        self._start_from({name: value for name, value in self.guessed.items() if name in touched})
        self.prior = self._prior()
        self.log = np.zeros(len(self.names))
        for _ in range(_LINEARISED):
            self.times, before = self._times(self.log), self.log
            self.posterior = learned(self.times, self.prior)
            self.log = np.clip(self.posterior.log, before - 1.0, before + 1.0).clip(-_LARGEST, _LARGEST)
            if np.abs(self.log - before).max() < _SETTLED:
                break

    def _start_from(self, guessed: dict[str, float]) -> None:
        self.guessed = guessed
        self.bare = replace(self.machine, constants=replace(self.machine.constants, **guessed), dense_steps={})

    def result(self) -> Corrected:
        """Return the machine with the constants found, their errors, and what plans left out say of it."""
        left_out = self._left_out()
        after = replace(self.at(self.log), errors=self.machine.errors | self._errors(left_out))
        whole = (StepPhase.DENSE, None)
        dense = [plan.measured_ms(whole) for plan in self.raced.plans if whole in plan.times]
        of_other_chip = chip_behind(self.machine, "dense_flop_per_s") not in (None, self.chip)
        known = {} if of_other_chip else dict(self.machine.dense_steps)
        problem = self.raced.question.problem
        key = dense_key(self.raced.question.dense, problem.tables, problem.batch_size, problem.world_size)
        if dense:
            known[key] = 1e-3 * float(np.median(dense))
        after = replace(after, dense_steps=known, trust=None)
        moved = self._moved(after)
        of = f"{raced_on(self.chip)}: {_said(self.raced)}"
        sources = {one.name: of for one in moved if one.after != one.before} | ({key: of} if dense else {})
        noise = self.raced.noise().get(STEP, 0.0) / math.sqrt(self.raced.trials / len(self.raced.plans))
        judged = trust(
            self._held_out_steps(left_out),
            max(math.log1p(APART), 1.96 * math.sqrt(2.0) * noise),
            f"{of}; whole steps of each plan as predicted after a correction by the others, of the same tables",
        )
        machine = replace(after, trust=judged, sources=self.machine.sources | sources)
        return Corrected(
            machine=machine,
            sources=sources,
            moved=moved,
            factors=self._factors(),
            before_ms=self.raced.steps_ms(self.machine),
            after_ms=self.raced.steps_ms(machine),
            trials=self.raced.trials,
            skipped=self.raced.skipped,
        )

    def at(self, log: Floats) -> Machine:
        """Return the machine with its constants moved by these logarithms, and what follows from them."""
        machine = scaled(self.bare, dict(zip(self.names, np.exp(log).tolist())))
        constants, old = machine.constants, self.bare.constants
        ratio = constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
        ratio /= old.hbm_bytes_per_s * old.gather_efficiency_ratio
        tied = {
            name: getattr(old, name) * (ratio if lead is None else getattr(constants, lead) / getattr(old, lead))
            for name, lead in self.ties.items()
        }
        constants = replace(constants, **tied)
        links = {
            "inter_bytes_per_s": min(constants.inter_bytes_per_s, constants.intra_bytes_per_s),
            "inter_latency_s": max(constants.inter_latency_s, constants.intra_latency_s),
        }
        return replace(machine, constants=replace(constants, **links))

    def _uncertain(self) -> list[str]:
        """Return the constants that may move: a zero has no logarithm, and an error of 1 is certainty."""
        # What a file charges nothing for states no error to go by.
        errors = self.machine.errors | dict.fromkeys(self.guessed, GUESSED_ERROR)
        names = [field.name for field in fields(Constants)]
        return [name for name in names if errors.get(name, 1.0) > 1.0 and getattr(self.bare.constants, name) > 0]

    def _ties(self) -> dict[str, str | None]:
        """Return the constants that follow another one, or None for what follows the rate of random rows."""
        machine, ties = self.machine, {}
        if machine.device == "cpu" and machine.host is None:
            # Its tiers are one memory, its hosts the ranks' own CPUs.
            ties = dict.fromkeys(_OF_MEMORY) | _CPU_TIES
        constants = machine.constants
        if machine.device == "cpu" and machine.topology.nodes > 1:
            # Emulated nodes have one link.
            same = [name for name, lead in _LINK_TIES.items() if getattr(constants, name) == getattr(constants, lead)]
            ties |= {name: _LINK_TIES[name] for name in same}
        return {name: lead for name, lead in ties.items() if lead is None or getattr(constants, lead) > 0}

    def _prior(self) -> Prior:
        machine = self.machine
        groups = [GROUPS.index(_group(name)) for name in self.names]
        guessed = [self._is_guess(name) for name in self.names]
        errors = [max(machine.errors[name], GUESSED_ERROR if g else 1.0) for name, g in zip(self.names, guessed)]
        own, group = np.log(errors), np.array(groups)
        members = [own[group == number] for number in range(len(GROUPS))]
        return Prior(
            own=own,
            group=group,
            sign=np.array([_sign(name) for name in self.names]),
            common=np.array([np.median(some) if len(some) else 1.0 for some in members]),
            form=np.array([self._form(kind) for kind in KINDS]),
        )

    def _is_guess(self, name: str) -> bool:
        return name in self.guessed or chip_behind(self.machine, name) not in (None, self.chip)

    def _form(self, kind: str) -> float:
        """Return how far the form errs in a kind of time: what a calibration left of it on plans held out, if more."""
        group = next((group for group, kinds in _TOLD_BY.items() if kind in kinds), None)
        of_group = [name for name in self.names if _group(name) == group and chip_behind(self.machine, name)]
        left = math.log(np.median([self.machine.errors[name] for name in of_group])) if of_group else 0.0
        return max(_FORM[kind], min(_MOST_FORM, left))

    def _predicted(self, machine: Machine) -> Floats:
        """Return the logarithms of all times as predicted, [times]."""
        return logs(np.concatenate([self.raced.predicted_ms(plan, machine) for plan in self.raced.plans]))

    def _derivatives(self, machine: Machine, names: Sequence[str], at: Floats | None = None) -> Floats:
        """Return derivatives of the predicted logarithms by those of the constants, [times, constants]."""
        here = self._predicted(machine)
        found = []
        for number, name in enumerate(names):
            if at is None:
                moved = scaled(machine, {name: math.exp(-_MOVE)})
            else:
                moved = self.at(at - _MOVE * (np.arange(len(names)) == number))
            found.append((here - self._predicted(moved)) / _MOVE)
        return np.array(found).reshape(len(names), len(here)).T

    def _times(self, log: Floats) -> Times:
        machine = self.at(log)
        design = self._derivatives(machine, self.names, log)
        y = self.measured - self._predicted(machine) + design @ log
        return Times(y=y, design=design, kind=self.kind, share=self.share, noise=self.noise)

    def _left_out(self) -> list[Machine]:
        """Return the machine that a race without each of the plans would have come to."""
        widths, found = self.posterior.widths, []
        for number in range(len(self.raced.plans)):
            kept = self.plan != number
            log, _, _ = solved(self.times.of(kept), self.prior, replace(widths, weights=widths.weights[kept]))
            found.append(self.at(log.clip(-_LARGEST, _LARGEST)))
        return found

    def _held_out_steps(self, left_out: Sequence[Machine]) -> list[HeldOutStep]:
        return [
            HeldOutStep(
                tables=self.raced.question.problem.name,
                predicted_ms=self.raced.step_time(plan, machine).step_ms,
                measured_ms=plan.measured_ms((STEP, None)),
            )
            for plan, machine in zip(self.raced.plans, left_out)
        ]

    def _errors(self, left_out: Sequence[Machine]) -> dict[str, float]:
        """Return the errors of the constants, [constants]: at least what plans left out show, unless less was known."""
        foreseen = [self.raced.predicted_ms(plan, machine) for plan, machine in zip(self.raced.plans, left_out)]
        off = self.measured - logs(np.concatenate(foreseen))
        shown = {}
        for group, kinds in _TOLD_BY.items():
            mine = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
            shown[group] = float(np.sqrt(np.average(off[mine] ** 2, weights=self.share[mine]))) if mine.any() else 0.0
        found = {}
        for name, variance, own in zip(self.names, self.posterior.variance, self.prior.own):
            found[name] = max(math.sqrt(variance), min(float(own), shown[_group(name)]))
        for name, lead in self.ties.items():
            leads = ("hbm_bytes_per_s", "gather_efficiency_ratio") if lead is None else (lead,)
            if name in self.machine.errors:
                found[name] = math.hypot(*(found.get(one, 0.0) for one in leads))
        return {name: max(_LEAST_ERROR, round(math.exp(log), 3)) for name, log in found.items()}

    def _moved(self, after: Machine) -> tuple[Moved, ...]:
        before, names = self.machine, [field.name for field in fields(Constants)]
        found = [
            Moved(
                name=name,
                before=getattr(self.bare.constants, name),
                after=getattr(after.constants, name),
                error_before=before.errors.get(name, 1.0),
                error_after=after.errors.get(name, 1.0),
            )
            for name in names
        ]
        return tuple(one for one in found if (one.before, one.error_before) != (one.after, one.error_after))

    def _factors(self) -> dict[str, float]:
        _, mean, _ = solved(self.times, self.prior, self.posterior.widths)
        told = {_group(name) for name in self.names}
        return {name: math.exp(mean[number]) for number, name in enumerate(GROUPS) if name in told}


def _uncharged(machine: Machine) -> dict[str, float]:
    """Return guesses of the constants of a CPU machine for which its file charges nothing until they are known."""
    if machine.device != "cpu":
        return {}
    return {name: value for name, value in CPU_START.items() if machine.sources.get(name, "").endswith(_NOTHING)}


def _said(raced: Raced) -> str:
    return f"{raced.question.problem.name}, {len(raced.plans)} plans in {raced.trials} trials"


def _group(name: str) -> str:
    return _GROUP_OF.get(IN_STEP_KINDS.get(name, ""), KERNEL_GROUP)


def _sign(name: str) -> float:
    """Return the power of a common factor of time in a constant: rates fall, times grow, shares and sizes stay."""
    return -1.0 if name.endswith("_per_s") else 1.0 if name.endswith("_s") else 0.0
