"""One calibration: starts the ranks, gathers what they measured, counts what they did.

A rank measures kernels and messages in one process group, or steps of one set of tables.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from shardbench.base.arrays import Floats
from shardbench.base.temporary import temporary_folder
from shardbench.calibrate.cases import (
    BATCHES,
    MESSAGE_BYTES,
    KernelCase,
    PlanCase,
    bags,
    kernel_plan,
    kernel_points,
    on_one_device,
    plan_cases,
    problem_of,
)
from shardbench.calibrate.kernels import KernelBench, Messages
from shardbench.cost.load import Load
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, MEASURED_PHASES, StepPhase
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.engine.clock import Clock, clock_of
from shardbench.engine.heap import keep_freed_memory
from shardbench.engine.inputs import seeded_inputs
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.processes.blame import lost_peer
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.rank import join_group
from shardbench.engine.step import LocalBatch, StepSettings, TrainingStep
from shardbench.model.machine import Machine
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape

TIMEOUT_S = 600.0
JOIN_S = 60.0
"""How long a rank waits for its peers in a collective."""
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


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the ranks of one process group are told to measure, in ``rounds`` turns of each kind.

    Messages are measured where kernels are.
    """

    machine: Machine
    kernels: tuple[KernelCase, ...]
    plans: tuple[PlanCase, ...]
    rounds: int


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """What one rank measured, in ms unless named otherwise; the first axis is the point."""

    kernels: tuple[tuple[tuple[float, float], ...], ...]
    """Times (forward, backward) of every counted iteration, by kernel point."""
    messages: tuple[tuple[tuple[float, float, float], ...], ...]
    """Times (all-to-all, all-reduce, reduce-scatter) of every round, by message size."""
    plans: tuple[dict[str, tuple[float, ...]], ...]
    """Times of every counted iteration by phase, of each plan's step."""
    stream_bytes_per_s: float | None
    """Bytes that a plain copy reads and writes a second; None where no kernels were measured."""


def join_times(first: RankTimes, second: RankTimes) -> RankTimes:
    """Return the times of two turns of the same points as one; the stream is that of the first."""
    return RankTimes(
        kernels=tuple(a + b for a, b in zip(first.kernels, second.kernels)),
        messages=tuple(a + b for a, b in zip(first.messages, second.messages)),
        plans=tuple({name: a[name] + b[name] for name in a} for a, b in zip(first.plans, second.plans)),
        stream_bytes_per_s=first.stream_bytes_per_s,
    )


def measure_rank(order: Order, folder: Path, rank: int) -> RankTimes:
    """Join the group of ``folder`` as ``rank`` and measure everything in turns; runs in a process of its own."""
    machine = order.machine
    device = join_group(machine.device, rank, machine.topology, f"file://{folder / 'rendezvous'}", JOIN_S)
    clock = clock_of(device)
    kernels = KernelBench(order.kernels, device, clock)
    messages = Messages(machine.topology.world_size, device, clock) if order.kernels else None
    plans = [PlanStep(case, machine, device, clock) for case in order.plans]
    # As ranks of trials do.
    keep_freed_memory()
    stream = kernels.stream_bytes_per_s() if order.kernels else None
    if messages is not None:
        # Buffers and connections are first used uncounted.
        messages.round()

    def turn(number: int) -> RankTimes:
        return RankTimes(
            plans=tuple(plan.round() for plan in plans),
            kernels=tuple(map(tuple, kernels.round(number))),
            messages=() if messages is None else tuple((times,) for times in messages.round()),
            stream_bytes_per_s=stream,
        )

    turns = reduce(join_times, map(turn, range(order.rounds)))
    dist.barrier()
    dist.destroy_process_group()
    return turns


class PlanStep:
    """A plan's step on this rank: the same code that a measured trial runs."""

    def __init__(self, case: PlanCase, machine: Machine, device: torch.device, clock: Clock) -> None:
        problem = case.problem(machine)
        lowered = lower(
            case.plan,
            problem.tables,
            machine.topology,
            problem.precision,
            optimizer=problem.optimizer,
            exchange=problem.exchange,
            device=device.type,
        )
        settings = StepSettings(dense=case.dense, optimizer=problem.optimizer, learning_rate=0.01, dense_seed=0)
        self.clock = clock
        self.step = TrainingStep(lowered, settings, device, clock)
        self.batches = [_local_batch(case, problem, lowered, batch, device) for batch in case.batches]

    def round(self) -> dict[str, tuple[float, ...]]:
        """Run two steps of every batch, the first uncounted: wall ms by phase.

        What other plans' turns drove out of the caches comes back in the first.
        """
        times: dict[str, list[float]] = {name: [] for name in (*MEASURED_PHASES, "step")}
        for counted in (False, True):
            for batch in self.batches:
                dist.barrier()
                _, stamps = self.step(batch)
                self.clock.settle()
                for name, ms in stamps.read(self.clock)[0].items() if counted else ():
                    times[name].append(ms)
        return {name: tuple(several) for name, several in times.items()}


def _local_batch(case: PlanCase, problem: Problem, lowered: Lowered, batch: int, device: torch.device) -> LocalBatch:
    share = problem.batch_size // problem.world_size
    start, stop = dist.get_rank() * share, (dist.get_rank() + 1) * share
    sparse = lowered.local_lookups(lambda i: case.bags(batch, i).samples(start, stop))
    dense, labels = seeded_inputs(case.dense, problem.batch_size, 0, batch)
    return LocalBatch(dense=dense[start:stop], sparse=sparse, labels=labels[start:stop]).to(device)


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
