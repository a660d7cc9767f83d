"""One calibration: starts the ranks, gathers what they measured, counts what they did."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.temporary import temporary_folder
from shardbench.calibrate.plans import PlanCase, plan_cases
from shardbench.calibrate.points import (
    BATCHES,
    MESSAGE_BYTES,
    KernelCase,
    bags,
    kernel_plan,
    kernel_points,
    on_one_device,
    problem_of,
)
from shardbench.calibrate.rank import Order, RankTimes, join_times, measure_rank
from shardbench.cost.load import Load
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.engine.processes.blame import lost_peer
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import call_in_child
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.table import DenseShape

TIMEOUT_S = 600.0
ROUNDS, QUICK_ROUNDS = 4, 3
"""Turns of everything in a visit."""
VISITS, QUICK_VISITS = 2, 1


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """A kernel point: its load (n = 1) and typical ms, the mean over ranks."""

    point: KernelCase
    load: Load
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True, kw_only=True)
class MessageTime:
    """Typical ms of the slowest rank for messages of ``nbytes``."""

    nbytes: int
    all_to_all_ms: float
    all_reduce_ms: float
    reduce_scatter_ms: float


@dataclass(frozen=True, kw_only=True)
class PlanTime:
    """A plan's step: its traffic and what its ranks took, in typical ms."""

    case: PlanCase
    traffic: Traffic
    kernels_ms: dict[StepPhase, Floats]
    """Forward and backward kernels, [world] each."""
    work_ms: dict[StepPhase, float]
    """The other phases: an exchange on the rank that takes least, which waits for no other; the dense model and the
    update on the rank that takes longest, for which the others wait later."""
    step_ms: float
    """The whole step of the slowest rank."""
    step_noise: float = 0.0
    """Standard error of the logarithm of ``step_ms``, from the rounds."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Everything that a fit needs."""

    machine: Machine
    kernels: tuple[KernelTime, ...]
    messages: tuple[MessageTime, ...]
    plans: tuple[PlanTime, ...]
    stream_bytes_per_s: float
    cache_bytes: int | None
    """A rank's share of the largest cache, as the system reports it; None where it does not."""
    noise_pct: float
    """Half the quartile range of repeated times in percent of their median; that of the median point."""


def orders_of(machine: Machine, *, quick: bool, models: Sequence[PlanCase] = ()) -> tuple[Order, ...]:
    """Choose what to measure on this machine, under the shape of ``machine`` (one node); ``models`` come on top.

    Each set of tables gets processes of its own, as it has in a trial: beside tables and buffers of others the same
    step takes longer.
    """
    tiers = (Tier.HBM, Tier.UVM) if machine.device == "cuda" else (Tier.HBM,)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    cases = (*plan_cases(machine.topology.world_size, quick=quick), *models)
    sets = [tuple(several) for _, several in groupby(cases, key=lambda case: case.group)]
    return (
        Order(machine=machine, kernels=kernel_points(tiers=tiers, quick=quick), plans=(), rounds=rounds),
        *(Order(machine=machine, kernels=(), plans=several, rounds=rounds) for several in sets),
    )


def measure(
    orders: Sequence[Order], *, visits: int, noted: Callable[[str], None] = lambda _: None
) -> list[list[RankTimes]]:
    """Measure every order ``visits`` times, one after the other: per order the ranks' times of all visits.

    A machine's speed changes within minutes, so an order's visits lie far apart. ``noted`` gets a line whenever another
    tenth is done.
    """
    times_by_order: dict[int, list[RankTimes]] = {}
    every = [i for _ in range(visits) for i in range(len(orders))]
    for done, i in enumerate(every, start=1):
        ranks = measure_ranks(orders[i])
        times_by_order[i] = list(map(join_times, times_by_order[i], ranks)) if i in times_by_order else ranks
        if 10 * done // len(every) > 10 * (done - 1) // len(every):
            noted(f"calibrating: {done} of {len(every)} parts measured")
    return [times_by_order[i] for i in range(len(orders))]


def measure_ranks(order: Order) -> list[RankTimes]:
    """Let every rank measure in a process of its own; raises TrialFailed where one fails, of the one at fault."""
    world = order.machine.topology.world_size
    with temporary_folder() as folder:

        def run(rank: int) -> RankTimes:
            log = folder / f"rank{rank}.log"
            return call_in_child(measure_rank, (order, folder, rank), timeout_s=TIMEOUT_S, phase="calibrate", log=log)

        with ThreadPoolExecutor(world) as pool:
            calls = [pool.submit(run, rank) for rank in range(world)]
        errors = [error for call in calls if (error := call.exception()) is not None]
        # Peers of a rank that ends only say that it is gone.
        causes = [error for error in errors if not (isinstance(error, TrialFailed) and lost_peer(error.failure))]
        if errors:
            raise (causes or errors)[0]
        return [call.result() for call in calls]


def gather(orders: Sequence[Order], times: Sequence[Sequence[RankTimes]]) -> Measurements:
    """Put typical times of what the ranks measured beside what the counter says they did; ``times`` as of measure."""
    kernels, *_ = times
    each = list(zip(orders, times))
    return Measurements(
        machine=orders[0].machine,
        kernels=tuple(_kernel(order, i, ranks) for order, ranks in each for i in range(len(order.kernels))),
        messages=tuple(_message(i, kernels) for i in range(len(MESSAGE_BYTES))),
        plans=tuple(_plan(order, i, ranks) for order, ranks in each for i in range(len(order.plans))),
        stream_bytes_per_s=float(np.median([r.stream_bytes_per_s for r in kernels])),
        cache_bytes=cache_share_bytes(orders[0].machine),
        noise_pct=_noise_pct([rank for ranks in times for rank in ranks]),
    )


def _kernel(order: Order, i: int, ranks: Sequence[RankTimes]) -> KernelTime:
    point = order.kernels[i]
    problem = problem_of(point, on_one_device(order.machine))
    plan = kernel_plan(point, problem)
    loads = mean(count(plan, problem, partial(bags, point, b), DenseShape()) for b in range(BATCHES)).load
    forward, backward = np.mean([np.median(rank.kernels[i], axis=0) for rank in ranks], axis=0)
    return KernelTime(point=point, load=loads, forward_ms=float(forward), backward_ms=float(backward))


def _message(i: int, ranks: Sequence[RankTimes]) -> MessageTime:
    exchange, reduction, scatter = np.median(np.max([rank.messages[i] for rank in ranks], axis=0), axis=0)
    return MessageTime(
        nbytes=MESSAGE_BYTES[i],
        all_to_all_ms=float(exchange),
        all_reduce_ms=float(reduction),
        reduce_scatter_ms=float(scatter),
    )


def _plan(order: Order, i: int, ranks: Sequence[RankTimes]) -> PlanTime:
    case = order.plans[i]
    problem = case.problem(order.machine)
    traffic = mean(count(case.plan, problem, partial(case.bags, b), case.dense) for b in case.batches)
    times = [rank.plans[i] for rank in ranks]
    choices = dict.fromkeys(EXCHANGE_PHASES, np.min) | dict.fromkeys((StepPhase.DENSE, StepPhase.UPDATE), np.max)
    steps = np.max([one["step"] for one in times], axis=0)
    by_round = np.log(np.median(np.reshape(steps, (-1, len(case.batches))), axis=1))
    return PlanTime(
        case=case,
        traffic=traffic,
        kernels_ms={phase: np.array([np.median(one[phase]) for one in times]) for phase in KERNELS},
        work_ms={phase: float(np.median(of([one[phase] for one in times], axis=0))) for phase, of in choices.items()},
        step_ms=float(np.median(steps)),
        step_noise=float(by_round.std(ddof=1) / np.sqrt(len(by_round))) if len(by_round) > 1 else 0.0,
    )


def _noise_pct(ranks: Sequence[RankTimes]) -> float:
    several = [[f + b for f, b in times] for rank in ranks for times in rank.kernels]
    several += [list(times["step"]) for rank in ranks for times in rank.plans]
    quartiles = np.asarray([np.percentile(times, (25, 50, 75)) for times in several])
    return float(np.median(50.0 * (quartiles[:, 2] - quartiles[:, 0]) / quartiles[:, 1]))


def cache_share_bytes(machine: Machine) -> int | None:
    """Return a CPU rank's share of the last-level cache; None on a GPU and where the system does not say."""
    sizes = []
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = cache.read_text().strip()
        if size.endswith("K") and size[:-1].isdigit():
            sizes.append(int(size[:-1]) * 1024)
    if machine.device != "cpu" or not sizes:
        return None
    # All nodes are this machine: a calibration's ranks are local.
    return max(sizes) // machine.topology.world_size
