"""Made-up models of 397 tables on 16 devices, so long sampled that the seen rows of the larger ones overfill HBM.

Sizes, skews, pooling factors and coverages are drawn; only the number of tables and the total sizes
are those of large production models. No lookups exist: it is planning that is tried on them.
"""

from dataclasses import replace

import numpy as np

from shardbench.model.machine import Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Table

TABLES, DIM = 397, 64
SAMPLES = 100_000_000
"""Samples that are profiled; with few of them all seen rows fit HBM, and everything is easy."""
SIZES_GIB = (318, 635, 1270)
GIB = 2**30


def power_law_profile(rows: int, exponent: float, pooling: float, coverage: float) -> AccessProfile:
    """Return counts of a power law over all rows, run-length coded on about 400 distinct counts."""
    lookups = SAMPLES * coverage * pooling
    ranks = np.unique(np.geomspace(1, rows, 400).astype(np.int64))
    middles = np.sqrt(ranks * np.append(ranks[1:], rows + 1.0))
    widths = np.diff(np.append(ranks, rows + 1))
    weights = middles**-exponent
    counts = np.floor(lookups * weights / (weights @ widths)).astype(np.int64)
    # Of the rows that expect less than one access, as many are seen once as there are accesses left.
    rare = counts == 0
    singles = int(min(widths[rare].sum(), max(0.0, lookups - float(counts @ widths))))
    values, inverse = np.unique(counts[~rare], return_inverse=True)
    per_count = dict(zip(values.tolist(), np.bincount(inverse, weights=widths[~rare]).astype(np.int64).tolist()))
    if singles:
        per_count[1] = per_count.get(1, 0) + singles
    ordered = sorted(per_count, reverse=True)
    return AccessProfile(
        rows=rows,
        samples=SAMPLES,
        present=int(SAMPLES * coverage),
        counts=tuple(ordered),
        row_counts=tuple(per_count[count] for count in ordered),
    )


def production_like(size_gib: float) -> Problem:
    """Return 397 tables of ``size_gib`` in all on 16 devices with 24 GiB of HBM and 128 GiB of UVM each."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(sigma=1.6, size=TABLES)
    share = np.minimum(share / share.sum(), 0.02)
    rows = np.maximum(100, share / share.sum() * size_gib * GIB / (DIM * 4)).astype(np.int64)
    exponent = rng.uniform(0.6, 1.4, TABLES)
    pooling = np.clip(rng.lognormal(mean=1.5, sigma=1.2, size=TABLES), 1.0, 150.0)
    coverage = rng.uniform(0.05, 1.0, TABLES)
    base = load_machine("a100-40gb-2x8")
    topology = Topology(nodes=2, devices_per_node=8, hbm_bytes=24 * GIB, uvm_bytes=128 * GIB, host_bytes=0)
    return Problem.of(
        f"production-like-{size_gib:g}",
        tuple(Table(name=f"table{i}", rows=int(r), dim=DIM) for i, r in enumerate(rows)),
        tuple(power_law_profile(int(r), *map(float, f)) for r, *f in zip(rows, exponent, pooling, coverage)),
        replace(base, topology=topology),
        batch_size=16_384,
    )
