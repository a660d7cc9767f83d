"""RecShard's small problems: profiles by hand, plans as cuts, random ones."""

import numpy as np
from problems import machine

from shardbench.model.plan import OnRank, Plan, Tier
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Table

HBM_S, UVM_S = 5e11, 1e10
"""Bytes a second of the made-up machine: 1e12 x 0.5 gather efficiency, and its host link."""
ROW = 16 * 4
BATCH = 100
LARGE = 1 << 40


def profile(counts: list[int], rows: int, samples: int = 100, present: int = 100) -> AccessProfile:
    return AccessProfile.from_counts(np.array(counts), rows=rows, samples=samples, present=present)


def problem(
    profiles: list[AccessProfile], *, hbm: int = LARGE, uvm: int = LARGE, devices: int = 2, dim: int = 16
) -> Problem:
    tables = tuple(Table(name=f"t{i}", rows=p.rows, dim=dim) for i, p in enumerate(profiles))
    on = machine(1, devices, hbm=hbm, uvm=uvm)
    return Problem.of("p", tables, tuple(profiles), on, batch_size=BATCH)


def cuts(plan: Plan) -> dict[str, tuple[int, int]]:
    """Table -> rank, rows in HBM."""
    found = {}
    for name, segments in plan.by_table().items():
        hot = sum(s.rows for s in segments if s.placement.tier is Tier.HBM)
        (rank,) = {s.placement.rank for s in segments if isinstance(s.placement, OnRank)}
        found[name] = (rank, hot)
    return found


def cost_ms(lookups: float, share: float) -> float:
    """Milliseconds of a batch with this many lookups a sample, this share of them in HBM."""
    return 1e3 * BATCH * lookups * ROW * (share / HBM_S + (1 - share) / UVM_S)


def random_problem(seed: int, tables: int, devices: int, largest: int) -> Problem:
    rng = np.random.default_rng(seed)
    profiles = []
    for _ in range(tables):
        rows = int(rng.integers(1, largest))
        counts = rng.integers(0, 30, rows) ** rng.integers(1, 4)
        present = int(rng.integers(1, 101)) if counts.any() else 0
        profiles.append(profile(counts.tolist(), rows=rows, present=present))
    total = ROW * sum(p.rows for p in profiles)
    hbm = max(1, int(total * rng.choice([0.1, 0.3, 0.6, 2.0]) / devices))
    uvm = int(total * rng.choice([0.0, 0.4, 0.8, 1.0, 2.0]))
    return problem(profiles, devices=devices, hbm=hbm, uvm=uvm)
