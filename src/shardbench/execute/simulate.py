"""The simulated backend: exact counts of test batches, turned into time by the cost model."""

from dataclasses import dataclass

import numpy as np

from shardbench.costmodel import StepTime, step_time
from shardbench.materialise import Batches
from shardbench.plan import Plan
from shardbench.problem import Problem
from shardbench.record import Timing, TrafficTotals
from shardbench.table import DenseShape
from shardbench.traffic import Traffic, count, mean


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Counted traffic and predicted times of a plan over some test batches."""

    timing: Timing
    totals: TrafficTotals


def simulate(plan: Plan, problem: Problem, batches: Batches, dense: DenseShape, iterations: int) -> Simulation:
    """Count ``iterations`` test batches (each distinct one once) and predict their steps.

    Raises Unsupported for a plan that the counter cannot count.
    """
    distinct = min(iterations, len(batches.numbers))
    traffics = [count(plan, problem, lambda i, n=n: batches.bags(n, i), dense) for n in range(distinct)]  # type: ignore[misc]
    times = [step_time(t, problem.machine, dense, problem.tables, problem.batch_size) for t in traffics]
    return Simulation(timing=_timing(times, iterations), totals=totals(mean(traffics)))


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
        off_hbm_lookups=float(load.uvm_lookups.sum() + traffic.host.lookups.sum()),
        distinct_rows=tuple((load.distinct + load.uvm_distinct).tolist()),
        hbm_bytes=float(load.lookup_bytes.sum()),
        uvm_bytes=float(load.uvm_lookup_bytes.sum()),
        host_bytes=float(traffic.host.lookup_bytes.sum()),
        collectives={
            name: (float(c.sent_intra.sum()), float(c.sent_inter.sum())) for name, c in traffic.collectives.items()
        },
    )
