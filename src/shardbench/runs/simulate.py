"""The simulated backend: exact counts of test batches, turned into time by the cost model."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.costmodel import StepTime, step_time
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.model.plan import PhaseKind, Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape
from shardbench.records.record import Timing, TrafficTotals
from shardbench.workloads.hotness import ReplicatedRows, hot_samples, join, pack, take
from shardbench.workloads.materialise import Batches
from shardbench.workloads.trace import Bags


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Counted traffic and predicted times of a plan over some test batches."""

    timing: Timing
    totals: TrafficTotals


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Pure mini-batches of a plan with a batch schedule, counted and timed.

    ``weights`` float64 [batches] are each batch's share of all samples and add up to 1.
    """

    kinds: tuple[PhaseKind, ...]
    weights: Floats
    traffics: tuple[Traffic, ...]
    times: tuple[StepTime, ...]

    def share(self, kind: PhaseKind) -> float:
        """Share of the samples that are of this kind."""
        return float(sum(w for w, k in zip(self.weights, self.kinds) if k is kind))

    @property
    def step_ms(self) -> float:
        """Mean step over samples, synchronisation included."""
        return float(self.weights @ [t.step_ms for t in self.times])

    @property
    def traffic(self) -> Traffic:
        """Mean over samples."""
        return mean(self.traffics, self.weights)


def simulate(plan: Plan, problem: Problem, batches: Batches, dense: DenseShape, iterations: int) -> Simulation:
    """Count ``iterations`` test batches (each distinct one once) and predict their steps.

    Under a batch schedule the samples of these batches are packed into pure mini-batches, and
    every iteration is their mean step. Raises Unsupported for a plan that the counter cannot count.
    """
    distinct = min(iterations, len(batches.numbers))
    if plan.schedule is not None:
        found = simulate_schedule(plan, problem, lambda i: join([batches.bags(n, i) for n in range(distinct)]), dense)
        return Simulation(timing=_mean_timing(found, iterations), totals=totals(found.traffic))
    traffics = [count(plan, problem, lambda i, n=n: batches.bags(n, i), dense) for n in range(distinct)]  # type: ignore[misc]
    times = [step_time(t, problem.machine, dense, problem.tables, problem.batch_size) for t in traffics]
    return Simulation(timing=_timing(times, iterations), totals=totals(mean(traffics)))


def simulate_schedule(plan: Plan, problem: Problem, bags: Callable[[int], Bags], dense: DenseShape) -> Scheduled:
    """Pack samples into pure mini-batches and count each; ``bags(i)`` are table i's bags of all samples.

    Which samples are hot is decided by the rows that the plan replicates (none is where it
    schedules no hot phase), not by the schedule's numbers of batches, which the strategy expected.
    """
    phases = plan.schedule.phases if plan.schedule is not None else ()
    by_table = plan.by_table()
    samples = bags(0).batch_size
    hot = np.zeros(samples, dtype=np.bool_)
    if any(phase.kind is PhaseKind.HOT for phase in phases):
        hot = hot_samples(bags, [ReplicatedRows(segments=tuple(by_table[t.name])) for t in problem.tables], samples)
    packed = pack(hot, problem.batch_size)
    traffics = [
        count(plan, problem, lambda i, b=batch: take(bags(i), b.samples), dense, batch.kind)  # type: ignore[misc]
        for batch in packed
    ]
    times = [step_time(t, problem.machine, dense, problem.tables, problem.batch_size) for t in traffics]
    return Scheduled(
        kinds=tuple(batch.kind for batch in packed),
        weights=np.array([batch.fresh for batch in packed]) / samples,
        traffics=tuple(traffics),
        times=tuple(times),
    )


def _mean_timing(found: Scheduled, iterations: int) -> Timing:
    """Every iteration is the mean step: a median over mini-batches would show one kind alone."""
    phases = [time.phases_ms for time in found.times]
    return Timing(
        step_ms=(found.step_ms,) * iterations,
        phases_ms={name: float(found.weights @ [ms[name] for ms in phases]) for name in phases[0]},
        embedding_ms=tuple((found.weights @ np.array([time.embedding_ms for time in found.times])).tolist()),
    )


def _timing(times: list[StepTime], iterations: int) -> Timing:
    return Timing(
        step_ms=tuple(times[i % len(times)].step_ms for i in range(iterations)),
        phases_ms={name: float(np.median([t.phases_ms[name] for t in times])) for name in times[0].phases_ms},
        embedding_ms=tuple(np.mean([t.embedding_ms for t in times], axis=0).tolist()),
    )


def totals(traffic: Traffic) -> TrafficTotals:
    """What a record keeps of a traffic."""
    load = traffic.load
    return TrafficTotals(
        lookups=float(load.all_lookups.sum() + traffic.host.lookups.sum()),
        off_hbm_lookups=float(load.uvm.lookups.sum() + traffic.host.lookups.sum()),
        distinct_rows=tuple((load.distinct + load.uvm.distinct).tolist()),
        hbm_bytes=float(load.lookup_bytes.sum()),
        uvm_bytes=float(load.uvm.lookup_bytes.sum()),
        host_bytes=float(traffic.host.lookup_bytes.sum()),
        collectives={
            name: (float(c.sent_intra.sum()), float(c.sent_inter.sum())) for name, c in traffic.collectives.items()
        },
    )
