"""What one rank does in one process group of a calibration: kernels and messages, or steps of one set of tables."""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
import torch.distributed as dist

from shardbench.calibrate.kernels import KernelBench
from shardbench.calibrate.messages import Messages
from shardbench.calibrate.plans import PlanCase
from shardbench.calibrate.points import KernelCase
from shardbench.cost.phases import MEASURED_PHASES
from shardbench.engine.clock import Clock, clock_of
from shardbench.engine.heap import keep_freed_memory
from shardbench.engine.inputs import seeded_inputs
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.rank import join_group
from shardbench.engine.step import LocalBatch, StepSettings, TrainingStep
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem

JOIN_S = 60.0
"""How long a rank waits for its peers in a collective."""


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
