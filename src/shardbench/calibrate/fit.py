"""Fits a machine's constants to what was measured, through the cost model's own formulas."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.optimize import least_squares

from shardbench.base.arrays import Floats
from shardbench.calibrate.session import KernelTime, Measurements, PlanTime
from shardbench.cost.costmodel import StepTime, backward_s, forward_s, step_time
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.cost.uncertainty import HeldOutStep
from shardbench.model.machine import Constants, Machine
from shardbench.model.machine_file import GPU_FIELDS, SHARES

CPU_TERMS = ("table_s", "bag_s", "page_s", "sequence_row_s")
"""Constants of the terms that only CPUs pay; each is judged by the error without it."""
_FITTED = frozenset(field.name for field in fields(Constants)) - {"hbm_bytes_per_s", "cache_bytes"}
"""Constants that a calibration fits; the others are measured or reported as they are."""
_GUESSED, _MEASURED = 0.25, 0.5
"""Weights of a constant's starting value: a guess settles only what the times leave open."""
CPU_START = {
    "cache_bytes_per_s": 1e11, "cache_reach_ratio": 1.0, "gather_efficiency_ratio": 0.5, "access_overhead_bytes": 64.0,
    "sort_bytes": 200.0, "bag_step_s": 0.0, "table_s": 5e-6, "bag_s": 2e-8, "page_s": 3e-8, "sequence_row_s": 2e-6,
    "sequence_half_rows": 8000.0, "dense_step_s": 2e-4, "dense_layer_s": 4e-4, "dense_flop_per_s": 7e10,
    "module_s": 3e-4, "vector_copy_bytes_per_s": 7e9, "activation_bytes_per_s": 3e9, "lookup_copy_s": 4e-9,
    "length_copy_s": 2e-8, "bucketise_s": 1.5e-8, "reduce_bytes_per_s": 2e9,
}  # fmt: skip
"""Guesses to start from on a CPU: a fit that started from an earlier fit would drift with every run."""
_STEP = 1.05
"""Factor by which a constant is moved to see whether the predictions depend on it."""
_RANGE = 20.0
"""A constant stays within this factor of its starting value."""
STEP_WEIGHT = 2.0
"""Weight of a whole step, and of the phases that it is made of 1: what trials measure."""
_KERNEL = 0.2
"""Weight of kernels by themselves: in a step, between copies and other tables' rows, they meet colder caches."""
_HALF = 0.3
"""Weight of forward and backward alone, beside their sum: the sum is what strategies balance."""
_ALONE = 0.2
"""Weight of unpooled tables by themselves: in a step those of one width share a call, and their map is smaller."""
_TAIL = 0.2
"""Error of a logarithm from which on a time counts less than its square."""
STEP = "whole step"
"""The kind of time that is no phase."""
_TINY_S = 1e-9
_LONG_BYTES = 2**19
"""Messages from this size on tell the bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """One measured time and how to predict it; the fit minimises log(predicted / measured)."""

    what: str
    """Kind of time, such as forward, backward or whole step."""
    name: str
    measured_s: float
    predicted_s: Callable[[Machine], float]
    weight: float
    """Weight in the fit; 0 where it only judges."""

    def log_error(self, machine: Machine) -> float:
        """Return log(predicted / measured) on a machine."""
        return float(np.log(max(self.predicted_s(machine), _TINY_S) / self.measured_s))

    def held_out(self, machine: Machine) -> HeldOutStep:
        """Return the time beside its prediction on a machine that was fitted to others."""
        return HeldOutStep(
            tables=self.name, predicted_ms=1e3 * self.predicted_s(machine), measured_ms=1e3 * self.measured_s
        )


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well one kind of time is met: median absolute error in percent, and the number of times."""

    median_pct: float
    worst_pct: float
    factor: float
    """Root mean square of the log errors, as a factor."""
    n: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The fitted machine, which constants were fitted, and the errors of both kinds of points."""

    machine: Machine
    fitted: tuple[str, ...]
    """Names of fields of Constants."""
    quality: dict[str, Quality]
    """Errors of the points of the fit, by kind of time."""
    held_out: dict[str, Quality]
    """Errors of the points that took no part, by kind of time."""


def fit(measured: Measurements) -> Fit:
    """Find the constants that meet the measurements best in the log; what they do not touch stays as it was.

    The memory stream is taken as measured; every other constant on which a prediction depends
    is fitted, starting from the machine's value or from a direct measurement.
    """
    return fit_times(*_start(measured), residuals(measured))


def fit_times(start: Machine, prior_weights: Mapping[str, float], times: Sequence[Residual]) -> Fit:
    """Move constants of ``start`` to what the weighted times say, as far as ``prior_weights`` by name let them.

    Constants on which no weighted time depends stay; times of weight 0 judge the fit.
    """
    weighted = [time for time in times if time.weight]
    names = _sensitive(start, weighted, prior_weights)
    machine = _solve(start, names, weighted, prior_weights)
    return Fit(
        machine=machine,
        fitted=tuple(names),
        quality=_quality(weighted, machine),
        held_out=_quality([time for time in times if not time.weight], machine),
    )


def weights_of(errors: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of constants' values whose ``errors``, as factors, are known; one of 1 does not move."""
    # A constant that moved by its error counts as a time that is off by _TAIL.
    return {name: _TAIL / float(np.log(error)) for name, error in errors.items() if error > 1.0 and name in _FITTED}


def _start(measured: Measurements) -> tuple[Machine, dict[str, float]]:
    """Return the machine that the fit starts from, and how much the values of its constants weigh."""
    # A plain copy is the one rate that needs no model.
    direct = direct_constants(measured)
    guesses = CPU_START if measured.machine.device == "cpu" else {}
    fitted = _FITTED.difference(GPU_FIELDS) if measured.machine.device == "cpu" else _FITTED
    weights = {name: _MEASURED if name in direct else _GUESSED for name in fitted}
    return _with(measured.machine, **guesses | direct), weights


def errors_without(measured: Measurements, fitted: Collection[str]) -> dict[str, tuple[float, float]]:
    """Return, by those of CPU_TERMS that were fitted, the median errors in percent with and without such a term.

    They are those of kernels' times that took no part; the constants are fitted to the kernels' other times alone.
    """
    kernels = [time for kernel in measured.kernels for time in _of_kernel(kernel)]
    # The little that kernels weigh beside steps would leave the guesses as they are.
    times = [replace(time, weight=time.weight / _KERNEL) for time in kernels]
    start, prior_weights = _start(measured)

    def error_pct(start: Machine) -> float:
        return fit_times(start, prior_weights, times).held_out["embedding"].median_pct

    is_judged = any(not time.weight for time in times)
    terms = [term for term in CPU_TERMS if term in fitted] if is_judged else []
    whole = error_pct(start) if terms else 0.0
    return {term: (whole, error_pct(_with(start, **{term: 0.0}))) for term in terms}


def _solve(
    start: Machine, names: Sequence[str], times: Sequence[Residual], prior_weights: Mapping[str, float]
) -> Machine:
    """Return the machine with the constants ``names`` fitted to the times; their values count by ``prior_weights``."""
    if not names:
        return start
    weights = np.array([prior_weights[name] for name in names])
    prior = np.log([getattr(start.constants, name) for name in names])

    def at(values: Floats) -> Machine:
        return _with(start, **dict(zip(names, values.tolist())))

    def errors(logs: Floats) -> Floats:
        machine = at(np.exp(logs))
        return np.concatenate([[r.weight * r.log_error(machine) for r in times], weights * (logs - prior)])

    lower = prior - np.log(_RANGE)
    upper = np.asarray([0.0 if name in SHARES else np.inf for name in names])
    upper = np.minimum(upper, prior + np.log(_RANGE))
    # One disturbed time must not pull all constants.
    solution = least_squares(
        errors, np.minimum(prior, upper - 1e-6), bounds=(lower, upper), loss="soft_l1", f_scale=_TAIL
    )
    # Rounded as the file will state it.
    return at(np.array([float(f"{value:.4g}") for value in np.exp(solution.x)]))


def direct_constants(measured: Measurements) -> dict[str, float]:
    """Return the constants that a measurement gives without the cost model; where the fit starts."""
    forward_s = 1e-3 * min(kernel.forward_ms for kernel in measured.kernels)
    backward_s = 1e-3 * min(kernel.backward_ms for kernel in measured.kernels)
    # The dispatch hides a forward's launch, which is the file's.
    floor_s = {"dispatch_s": forward_s, "sort_launch_s": max(backward_s - measured.machine.constants.launch_s, 1e-6)}
    if measured.machine.device == "cpu":
        # Nothing hides the dispatch behind a device: it is part of every launch.
        floor_s = {"dispatch_s": 0.0, "launch_s": backward_s}
    link = "inter_bytes_per_s" if measured.machine.topology.nodes > 1 else "intra_bytes_per_s"
    constants = {"hbm_bytes_per_s": measured.stream_bytes_per_s}
    if measured.machine.topology.world_size > 1:
        constants[link] = link_bytes_per_s(measured)
        constants["reduce_bytes_per_s"] = reduce_bytes_per_s(measured)
    if measured.cache_bytes is not None:
        constants["cache_bytes"] = measured.cache_bytes
    return constants | floor_s


def link_bytes_per_s(measured: Measurements) -> float:
    """Return the bytes per second that a rank sends in long all-to-alls and all-reduces, latency taken off."""
    world = measured.machine.topology.world_size
    floor = measured.messages[0]
    rates = []
    for message in measured.messages:
        if message.nbytes >= _LONG_BYTES:
            sent = message.nbytes * (world - 1) / world
            rates.append(sent / _seconds(message.all_to_all_ms, floor.all_to_all_ms))
            rates.append(2.0 * sent / _seconds(message.all_reduce_ms, floor.all_reduce_ms))
    return float(np.median(rates))


def reduce_bytes_per_s(measured: Measurements) -> float:
    """Return the bytes a second that a long reduce-scatter adds up, beside what an all-to-all takes for them."""
    world, floor = measured.machine.topology.world_size, measured.messages[0]
    rates = []
    for message in measured.messages:
        if message.nbytes >= _LONG_BYTES:
            scatter_s = _seconds(message.reduce_scatter_ms, floor.reduce_scatter_ms)
            more_s = scatter_s - _seconds(message.all_to_all_ms, floor.all_to_all_ms)
            # Where it is no slower, adding up is hidden: a tenth of the time is the most that nobody would see.
            rates.append(message.nbytes * (world - 1) / world / max(more_s, 0.1 * scatter_s))
    return float(np.median(rates))


def residuals(measured: Measurements) -> list[Residual]:
    """Put every measured time beside its prediction."""
    all_residuals: list[Residual] = []
    for kernel in measured.kernels:
        all_residuals += _of_kernel(kernel)
    for plan in measured.plans:
        all_residuals += [] if plan.case.model else _of_plan(plan, measured.machine)
    return all_residuals


def _of_kernel(time: KernelTime) -> list[Residual]:
    point, load = time.point, time.load
    weight = 0.0 if point.held_out else _KERNEL
    name = f"{point.tables}x{point.rows}x{point.dim}, {point.batch} bags of {point.pooling}, skew {point.skew:g}"

    def forward(machine: Machine) -> float:
        return float(forward_s(load, machine.constants)[0]) + machine.constants.module_s

    def backward(machine: Machine) -> float:
        return float(backward_s(load, machine.constants)[0])

    def residual(what: str, measured_ms: float, predicted_s: Callable[[Machine], float]) -> Residual:
        share = weight * (1.0 if what == "embedding" else _HALF) * (_ALONE if point.unpooled else 1.0)
        return Residual(what=what, name=name, measured_s=1e-3 * measured_ms, predicted_s=predicted_s, weight=share)

    return [
        residual("forward", time.forward_ms, forward),
        residual("backward", time.backward_ms, backward),
        residual("embedding", time.forward_ms + time.backward_ms, lambda machine: forward(machine) + backward(machine)),
    ]


def _of_plan(time: PlanTime, on: Machine) -> list[Residual]:
    case, tables = time.case, time.case.problem(on).tables
    ranks = [rank for rank in range(len(time.kernels_ms[KERNELS[0]])) if time.traffic.load.bags[rank] > 0]
    times_ms: dict[tuple[str, int | None], float] = {
        (name, rank): float(time.kernels_ms[name][rank]) for name in KERNELS for rank in ranks
    }
    # One rank has nobody to send to.
    exchanges = EXCHANGE_PHASES if on.topology.world_size > 1 else ()
    times_ms |= {(name, None): time.work_ms[name] for name in exchanges}
    times_ms[StepPhase.DENSE, None] = time.work_ms[StepPhase.DENSE] + time.work_ms[StepPhase.UPDATE]
    times_ms[STEP, None] = time.step_ms
    last: list[tuple[Machine, StepTime]] = []

    def step_on(machine: Machine) -> StepTime:
        # All times of a plan are asked for on one machine before the next.
        if not last or last[0][0] is not machine:
            step = step_time(time.traffic, machine, case.dense, tables, case.batch_size)
            last[:] = [(machine, step)]
        return last[0][1]

    def predicted_ms(step: StepTime, kind: str, rank: int | None) -> float:
        if kind == STEP:
            return step.step_ms
        if rank is not None:
            return float((step.forward_ms if kind == StepPhase.LOOKUP else step.backward_ms)[rank])
        # Data-parallel gradients are all-reduced while the tables' backward pass runs, and waited for there.
        beside = step.phases_ms[StepPhase.ALL_REDUCE] if kind == StepPhase.OUTPUT_BACKWARD else 0.0
        return step.phases_ms[StepPhase(kind)] + beside

    def residual(kind: str, rank: int | None, measured_ms: float) -> Residual:
        # The ranks' kernels count as one phase.
        share = STEP_WEIGHT if kind == STEP else 1.0 if rank is None else 1.0 / on.topology.world_size
        return Residual(
            what=STEP if kind == STEP else f"{kind} in step",
            name=f"plan of {case.group}",
            measured_s=1e-3 * measured_ms,
            predicted_s=lambda machine: 1e-3 * predicted_ms(step_on(machine), kind, rank),
            weight=0.0 if case.held_out else share,
        )

    return [residual(kind, rank, ms) for (kind, rank), ms in times_ms.items()]


def _with(machine: Machine, **constants: float) -> Machine:
    return replace(machine, constants=replace(machine.constants, **constants))


def _seconds(ms: float, floor_ms: float) -> float:
    return 1e-3 * max(ms - floor_ms, 0.1 * ms)


def _sensitive(machine: Machine, times: Sequence[Residual], among: Collection[str]) -> list[str]:
    """Return the constants that move a prediction: the cost model, not a list here, says what can be fitted."""
    before = np.asarray([r.log_error(machine) for r in times])
    names = []
    for field in fields(Constants):
        value = getattr(machine.constants, field.name)
        # A constant of 0 is one the machine does without.
        if not value or field.name not in among:
            continue
        # A ratio of 1 may only go down.
        moved = _with(machine, **{field.name: value / _STEP})
        after = np.asarray([r.log_error(moved) for r in times])
        if np.abs(after - before).max(initial=0.0) > 1e-6:
            names.append(field.name)
    return names


def _quality(times: Sequence[Residual], machine: Machine) -> dict[str, Quality]:
    logs: dict[str, list[float]] = {}
    for time in times:
        logs.setdefault(time.what, []).append(time.log_error(machine))
    return {what: _quality_of(np.array(several)) for what, several in logs.items()}


def _quality_of(logs: Floats) -> Quality:
    percent = 100.0 * np.abs(np.expm1(logs))
    factor = float(np.exp(np.sqrt(np.mean(logs**2))))
    return Quality(median_pct=float(np.median(percent)), worst_pct=float(percent.max()), n=len(logs), factor=factor)
