"""One calibration: starts the ranks, gathers what they measured, counts what they did."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.temporary import temporary_folder
from shardbench.calibrate.points import (
    BATCHES,
    MESSAGE_BYTES,
    KernelCase,
    ProbeStep,
    kernel_plan,
    kernel_points,
    lookups_of,
    on_one_device,
    probe_plan,
    probe_steps,
    problem_of,
)
from shardbench.calibrate.rank import Order, RankTimes, measure_rank
from shardbench.cost.load import Load
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, MEASURED_PHASES
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.processes.launch import call_in_child

TIMEOUT_S = 600.0
"""Phases of a step that are embedding kernels."""


QUARTILE = 25.0
"""Percentile of the rounds' medians: other programs only ever add time, and seldom to every round."""


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


@dataclass(frozen=True, kw_only=True)
class ProbeTime:
    """A probe step: its traffic and ms by phase, like a record's."""

    probe: ProbeStep
    traffic: Traffic
    phases_ms: dict[str, float]
    """Typical ms of the slowest rank, by phase."""
    exchange_ms: float
    """Time of all exchanges on the rank that waits least for others, which predictions are compared with."""
    step_ms: float
    embedding_ms: Floats
    """Typical ms of forward and backward together, by rank."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Everything that a fit needs."""

    machine: Machine
    kernels: tuple[KernelTime, ...]
    messages: tuple[MessageTime, ...]
    probes: tuple[ProbeTime, ...]
    stream_bytes_per_s: float
    cache_bytes: int | None
    """A rank's share of the largest cache, as the system reports it; None where it does not."""
    noise_pct: float
    """Half the quartile range of repeated times in percent of their median; that of the median point."""


def order_of(machine: Machine, *, quick: bool) -> Order:
    """Choose what to measure on this machine, under the shape of ``machine`` (one node)."""
    tiers = (Tier.HBM, Tier.UVM) if machine.device == "cuda" else (Tier.HBM,)
    return Order(
        machine=machine,
        kernels=kernel_points(tiers=tiers, quick=quick),
        probes=probe_steps(machine.topology.world_size, quick=quick),
        rounds=3 if quick else 6,
    )


def measure_ranks(order: Order) -> list[RankTimes]:
    """Let every rank measure in a process of its own; raises TrialFailed where one fails."""
    world = order.machine.topology.world_size
    with temporary_folder() as folder:

        def run(rank: int) -> RankTimes:
            log = folder / f"rank{rank}.log"
            return call_in_child(measure_rank, (order, folder, rank), timeout_s=TIMEOUT_S, phase="calibrate", log=log)

        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(run, range(world)))


def gather(order: Order, ranks: Sequence[RankTimes]) -> Measurements:
    """Put typical times of what the ranks measured beside what the counter says they did."""
    return Measurements(
        machine=order.machine,
        kernels=tuple(_kernel(order, i, ranks) for i in range(len(order.kernels))),
        messages=tuple(_message(i, ranks) for i in range(len(MESSAGE_BYTES))),
        probes=tuple(_probe(order, i, ranks) for i in range(len(order.probes))),
        stream_bytes_per_s=float(np.median([r.stream_bytes_per_s for r in ranks])),
        cache_bytes=cache_share_bytes(order.machine),
        noise_pct=_noise_pct(ranks),
    )


def typical(times: Sequence[float] | Floats, rounds: int) -> float:
    """Return the lower quartile over rounds of the median within each round; ``times`` is round after round."""
    return float(np.percentile(np.median(np.reshape(times, (rounds, -1)), axis=1), QUARTILE))


def _kernel(order: Order, i: int, ranks: Sequence[RankTimes]) -> KernelTime:
    point = order.kernels[i]
    problem = problem_of(point, on_one_device(order.machine))
    plan = kernel_plan(point, problem)
    nothing = ProbeStep(point=point).dense
    loads = mean(count(plan, problem, lookups_of(point, b), nothing) for b in range(BATCHES)).load
    forward = [typical([f for f, _ in r.kernels[i]], order.rounds) for r in ranks]
    backward = [typical([b for _, b in r.kernels[i]], order.rounds) for r in ranks]
    return KernelTime(point=point, load=loads, forward_ms=float(np.mean(forward)), backward_ms=float(np.mean(backward)))


def _message(i: int, ranks: Sequence[RankTimes]) -> MessageTime:
    exchange, reduction = np.percentile(np.max([r.messages[i] for r in ranks], axis=0), QUARTILE, axis=0)
    return MessageTime(nbytes=MESSAGE_BYTES[i], all_to_all_ms=float(exchange), all_reduce_ms=float(reduction))


def _probe(order: Order, i: int, ranks: Sequence[RankTimes]) -> ProbeTime:
    probe = order.probes[i]
    problem = problem_of(probe.point, order.machine)
    plan = probe_plan(probe, problem)
    traffic = mean(count(plan, problem, lookups_of(probe.point, b), probe.dense) for b in range(BATCHES))

    def slowest(phase: str) -> float:
        return typical(np.max([r.probes[i][phase] for r in ranks], axis=0), order.rounds)

    def exchanged(rank: RankTimes) -> float:
        return typical(np.sum([rank.probes[i][phase] for phase in EXCHANGE_PHASES], axis=0), order.rounds)

    return ProbeTime(
        probe=probe,
        traffic=traffic,
        phases_ms={phase: slowest(phase) for phase in MEASURED_PHASES},
        exchange_ms=min(exchanged(rank) for rank in ranks),
        step_ms=slowest("step"),
        embedding_ms=np.asarray([typical(_kernels_ms(r.probes[i]), order.rounds) for r in ranks]),
    )


def _kernels_ms(phases: dict[str, tuple[float, ...]]) -> Floats:
    return np.asarray(np.sum([phases[name] for name in KERNELS], axis=0))


def _noise_pct(ranks: Sequence[RankTimes]) -> float:
    several = [[f + b for f, b in times] for rank in ranks for times in rank.kernels]
    several += [list(times["step"]) for rank in ranks for times in rank.probes]
    quartiles = np.asarray([np.percentile(times, (25, 50, 75)) for times in several])
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
