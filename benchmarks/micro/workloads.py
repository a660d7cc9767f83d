"""Random lookups and problems of any size for the benchmarks, and the plan that others are held against."""

from collections.abc import Callable

import numpy as np

from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Machine, Topology, load_machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.model.table import Table
from shardbench.workloads.trace import Bags


def cluster(devices: int) -> Machine:
    """The A100 machine with another number of 8-device nodes."""
    base = load_machine("a100-40gb-2x8")
    nodes, local = max(1, devices // 8), min(devices, 8)
    shape = {name: getattr(base.topology, name) for name in ("hbm_bytes", "uvm_bytes", "host_bytes")}
    topology = Topology(nodes=nodes, devices_per_node=local, **shape)
    return Machine(
        name=f"a100-{devices}",
        description=base.description,
        device=base.device,
        topology=topology,
        constants=base.constants,
        sources=base.sources,
    )


def random_problem(tables: int, devices: int, batch_size: int = 65_536, seed: int = 0) -> Problem:
    """Tables of log-uniform rows (1e3..1e7) and skewed profiles."""
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.uniform(np.log(1e3), np.log(1e7), tables)).astype(int)
    shapes = tuple(Table(name=f"table{i}", rows=int(r), dim=16) for i, r in enumerate(rows))
    profiles = []
    for r in rows:
        counts = np.unique(rng.zipf(1.3, 200).clip(1, 10**6))[::-1]
        each = np.minimum(rng.integers(1, 50, len(counts)), max(1, r // len(counts)))
        profile = AccessProfile(
            rows=int(r),
            samples=65_536,
            present=65_536,
            counts=tuple(counts.tolist()),
            row_counts=tuple(each.tolist()),
        )
        profiles.append(profile)
    return Problem.of(f"random{tables}", shapes, tuple(profiles), cluster(devices), batch_size=batch_size)


def random_bags(rows: int, batch_size: int, pooling: int, seed: int = 0) -> Bags:
    """Skewed lookups: a cubed uniform over the rows."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(batch_size + 1, dtype=np.int64) * pooling
    values = (rng.random(offsets[-1]) ** 3 * rows).astype(np.int32)
    return Bags(values=values, offsets=offsets)


def greedy_plan(problem: Problem) -> Callable[[], object]:
    """The plan of the papers' lookup heuristic, to be timed beside a learned one."""
    strategy = get_strategy("greedy-lookup")
    return lambda: strategy.plan(problem, Budget(), 0)
