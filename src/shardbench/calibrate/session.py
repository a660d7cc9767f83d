"""One calibration: starts the ranks, gathers what they measured, counts what they did."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.temporary import temporary_folder
from shardbench.calibrate.plans import PlanCase, plan_cases
from shardbench.calibrate.points import (
    BATCHES,
    MESSAGE_BYTES,
    KernelCase,
    kernel_plan,
    kernel_points,
    lookups_of,
    on_one_device,
    problem_of,
)
from shardbench.calibrate.rank import Order, RankTimes, measure_rank
from shardbench.cost.load import Load
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, StepPhase
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.table import DenseShape
from shardbench.processes.blame import lost_peer
from shardbench.processes.failures import TrialFailed
from shardbench.processes.launch import call_in_child

TIMEOUT_S = 600.0


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
    drift_pct: float = 0.0
    """How far the slowest round was from the fastest, everything taken together; it is taken off all times."""


def order_of(machine: Machine, *, quick: bool, models: Sequence[PlanCase] = ()) -> Order:
    """Choose what to measure on this machine, under the shape of ``machine`` (one node); ``models`` come on top."""
    tiers = (Tier.HBM, Tier.UVM) if machine.device == "cuda" else (Tier.HBM,)
    return Order(
        machine=machine,
        kernels=kernel_points(tiers=tiers, quick=quick),
        plans=(*plan_cases(machine.topology.world_size, quick=quick), *models),
        rounds=3 if quick else 5,
    )


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
        telling = [error for error in errors if not (isinstance(error, TrialFailed) and lost_peer(error.failure))]
        if errors:
            raise (telling or errors)[0]
        return [call.result() for call in calls]


def gather(order: Order, ranks: Sequence[RankTimes]) -> Measurements:
    """Put typical times of what the ranks measured beside what the counter says they did."""
    pace = _pace(order, ranks)
    return Measurements(
        machine=order.machine,
        kernels=tuple(_kernel(order, i, ranks, pace) for i in range(len(order.kernels))),
        messages=tuple(_message(i, ranks, pace) for i in range(len(MESSAGE_BYTES))),
        plans=tuple(_plan(order, i, ranks, pace) for i in range(len(order.plans))),
        stream_bytes_per_s=float(np.median([r.stream_bytes_per_s for r in ranks])),
        cache_bytes=cache_share_bytes(order.machine),
        noise_pct=_noise_pct(ranks, pace),
        drift_pct=100.0 * float(pace.max() / pace.min() - 1.0),
    )


def _pace(order: Order, ranks: Sequence[RankTimes]) -> Floats:
    """Return how slow the machine was in each round, around 1, [rounds]: the median over everything measured."""
    kernels = [[np.sum(times, axis=1) for times in rank.kernels] for rank in ranks]
    series = [np.mean(of_ranks, axis=0) for of_ranks in zip(*kernels)]
    series += [np.max([rank.plans[i]["step"] for rank in ranks], axis=0) for i in range(len(order.plans))]
    medians = np.array([np.median(one.reshape(order.rounds, -1), axis=1) for one in series])
    return np.asarray(np.median(medians / np.median(medians, axis=1, keepdims=True), axis=0))


def typical(times: Sequence[float] | Floats, pace: Floats) -> float:
    """Return the median over rounds of the median within each, at an even pace; ``times`` is round after round."""
    return float(np.median(np.median(np.reshape(times, (len(pace), -1)), axis=1) / pace))


def _kernel(order: Order, i: int, ranks: Sequence[RankTimes], pace: Floats) -> KernelTime:
    point = order.kernels[i]
    problem = problem_of(point, on_one_device(order.machine))
    plan = kernel_plan(point, problem)
    loads = mean(count(plan, problem, lookups_of(point, b), DenseShape()) for b in range(BATCHES)).load
    forward = [typical([f for f, _ in r.kernels[i]], pace) for r in ranks]
    backward = [typical([b for _, b in r.kernels[i]], pace) for r in ranks]
    return KernelTime(point=point, load=loads, forward_ms=float(np.mean(forward)), backward_ms=float(np.mean(backward)))


def _message(i: int, ranks: Sequence[RankTimes], pace: Floats) -> MessageTime:
    exchange, reduction, scatter = np.median(np.max([r.messages[i] for r in ranks], axis=0) / pace[:, None], axis=0)
    return MessageTime(
        nbytes=MESSAGE_BYTES[i],
        all_to_all_ms=float(exchange),
        all_reduce_ms=float(reduction),
        reduce_scatter_ms=float(scatter),
    )


def _plan(order: Order, i: int, ranks: Sequence[RankTimes], pace: Floats) -> PlanTime:
    case = order.plans[i]
    problem = case.problem(order.machine)
    traffic = mean(count(case.plan, problem, lambda t, b=b: case.bags(b, t), case.dense) for b in case.batches)  # type: ignore[misc]
    times = [rank.plans[i] for rank in ranks]
    chosen = dict.fromkeys(EXCHANGE_PHASES, np.min) | dict.fromkeys((StepPhase.DENSE, StepPhase.UPDATE), np.max)
    steps = np.max([one["step"] for one in times], axis=0)
    by_round = np.log(np.median(np.reshape(steps, (len(pace), -1)), axis=1) / pace)
    return PlanTime(
        case=case,
        traffic=traffic,
        kernels_ms={phase: np.array([typical(one[phase], pace) for one in times]) for phase in KERNELS},
        work_ms={phase: typical(of([one[phase] for one in times], axis=0), pace) for phase, of in chosen.items()},
        step_ms=typical(steps, pace),
        step_noise=float(by_round.std(ddof=1) / np.sqrt(len(pace))) if len(pace) > 1 else 0.0,
    )


def _noise_pct(ranks: Sequence[RankTimes], pace: Floats) -> float:
    several = [[f + b for f, b in times] for rank in ranks for times in rank.kernels]
    several += [list(times["step"]) for rank in ranks for times in rank.plans]
    even = [np.reshape(times, (len(pace), -1)) / pace[:, None] for times in several]
    quartiles = np.asarray([np.percentile(times, (25, 50, 75)) for times in even])
    return float(np.median(50.0 * (quartiles[:, 2] - quartiles[:, 0]) / quartiles[:, 1]))


def cache_share_bytes(machine: Machine) -> int | None:
    """Return a CPU rank's share of the last-level cache; None on a GPU and where the system does not say."""
    found = []
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = cache.read_text().strip()
        if size.endswith("K") and size[:-1].isdigit():
            found.append(int(size[:-1]) * 1024)
    if machine.device != "cpu" or not found:
        return None
    # All nodes are this machine: a calibration's ranks are local.
    return max(found) // machine.topology.world_size
