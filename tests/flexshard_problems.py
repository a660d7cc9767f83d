"""FlexShard's small problems: sequence tables by their access counts, a machine whose latencies are a choice."""

from dataclasses import replace

import numpy as np
from problems import CONSTANTS, machine

from shardbench.baselines.flexshard.rule import RowTiers
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table


def quick_machine(nodes: int = 2, devices: int = 2, hbm: int = 10**9, latency: float = 0.0) -> Machine:
    """Latencies times ``latency``: full ones would drown the bytes of small problems."""
    constants = replace(
        CONSTANTS,
        intra_latency_s=latency * CONSTANTS.intra_latency_s,
        inter_latency_s=latency * CONSTANTS.inter_latency_s,
        peer_latency_s=latency * CONSTANTS.peer_latency_s,
    )
    return replace(machine(nodes, devices, hbm=hbm), constants=constants)


def problem_of(
    counts: list[list[int]],
    *,
    on: Machine | None = None,
    dim: int | tuple[int, ...] = 16,
    batch: int = 64,
    samples: int = 64,
    **rest,
) -> Problem:
    """Sequence tables of given access counts by row."""
    dims = (dim,) * len(counts) if isinstance(dim, int) else dim
    tables = tuple(
        Table(name=f"s{i}", rows=len(c), dim=d, pooling=Pooling.NONE) for i, (c, d) in enumerate(zip(counts, dims))
    )
    profiles = tuple(
        AccessProfile.from_counts(np.array(c), rows=len(c), samples=samples, present=samples) for c in counts
    )
    return Problem.of("p", tables, profiles, on or quick_machine(), batch_size=batch, **rest)


def tiers(hot: list[int], warm: list[int]) -> RowTiers:
    return RowTiers(hot=np.array(hot), warm=np.array(warm))


def zipf(rows: int, top: int) -> list[int]:
    return [top // (r + 1) for r in range(rows)]
