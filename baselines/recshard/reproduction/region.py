"""The region in which RecShard's gain over the best greedy holds: all knobs at once that no source fixes."""

from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.studies.regions.region import Knob, region_study
from shardbench.studies.study import Row

from .scaled import (
    DEVICES,
    GREEDIES,
    RATIOS,
    RECSHARD,
    SAMPLES,
    SMALL_SAMPLES,
    RmCondition,
    ask,
    geometric_mean,
    metrics,
    never_touched_pct,
    ratios_of,
)

STRATEGIES = (*GREEDIES, RECSHARD)
DRAWS = (0, 1)
"""Draws of the features at every point, the same ones: points then differ by their knobs alone."""


KNOBS = (
    Knob(
        name="devices",
        scale="choice",
        values=(4, 8, 16),
        reason="a quarter, a half and the whole of rm's 397 tables on as large a part of 16 devices; the paper's "
        "number of tables is from memory, and the fewer devices, the more a single table decides",
    ),
    Knob(
        name="rows_log_std",
        low=1.0,
        high=3.0,
        reason="spread of the tables' rows: rm assumes 2; the 856 tables of dlrm_datasets, as `synthetic` fits "
        "them, have 2.7; with 3 one of a hundred tables may hold a quarter of the bytes",
    ),
    Knob(
        name="pooling_top",
        low=10.0,
        high=200.0,
        scale="log",
        reason="spread of the pooling factors: rm assumes 1 to 100; the longest mean bags of dlrm_datasets' 856 "
        "tables have 199 lookups; below 10 features are nearly one-hot, as Criteo's are",
    ),
    Knob(
        name="coverage_low",
        low=0.01,
        high=1.0,
        scale="log",
        reason="presence: rm assumes 1 % to 100 % of the samples; `synthetic` has 10 % to 100 %; at 1 every "
        "feature is always there, as Criteo's nearly are",
    ),
    Knob(
        name="exponent_scale",
        low=0.5,
        high=1.5,
        reason="skew: times rm's exponents of 0.6 to 1.4, so 0.3 to 2.1; nine tenths of the exponents that "
        "`synthetic` fits to dlrm_datasets' tables lie in 0.2 to 1.7",
    ),
    Knob(
        name="uvm_gb_per_s",
        low=4.0,
        high=32.0,
        scale="log",
        reason="random reads of host memory: 8 GB/s on PCIe 4.0 x16 (UGache's artifact); half of it for "
        "PCIe 3.0, two and four times for 5.0 and 6.0, by the links' rates",
    ),
    Knob(
        name="hbm_share",
        low=0.05,
        high=0.75,
        reason="share of the bytes that HBM holds: rm2 and rm3 have 60 % and 30 % with the machine's HBM, 15 % and "
        "8 % with a quarter of it; near 1 a model is no longer constrained",
    ),
    Knob(
        name="samples",
        low=float(SMALL_SAMPLES),
        high=2.0 * SAMPLES,
        scale="log",
        reason="samples profiled: from a million, seconds of a data loader, to twice the 105 million that are "
        "1 % of 10.5 billion; more cannot be counted here in time",
    ),
)


def measure(
    _: Path, point: int, devices: int, uvm_gb_per_s: float, hbm_share: float, samples: float, **features: float
) -> Row:
    """Return ratios of the best greedy to RecShard, ``<ratio>_x``, and RecShard's own numbers, means over draws.

    ``features`` are parameters of the workload's features.
    """
    rows: list[Row] = []
    never: list[float] = []
    for draw in DRAWS:
        question = RmCondition(
            draw=draw,
            parts=DEVICES // devices,
            samples=round(samples),
            hbm_share=hbm_share,
            uvm_gb_per_s=uvm_gb_per_s,
            features=features,
        ).question()
        rows += [{"draw": draw, "strategy": name, **metrics(ask(question, name).judged)} for name in STRATEGIES]
        never.append(never_touched_pct(question.problem))
    ratios = ratios_of(pd.DataFrame(rows), ("draw",), RECSHARD)
    own = [row for row in rows if row["strategy"] == RECSHARD]
    return {
        **{f"{name}_x": geometric_mean(ratios[name]) for name in RATIOS},
        **{name: float(np.mean([row[name] for row in own])) for name in ("slowest_ms", "off_hbm_lookups_pct")},
        "never_touched_pct": float(np.mean(never)),
    }


REGION = region_study(
    title="RecShard and the greedies on rm2 in small, the whole of it or a part: 25 tables a device, two common draws. "
    "The claim's own point, 397 tables on 16 devices, lies within. A model of other sizes than rm2 is one with another "
    "share of its bytes in HBM.",
    knobs=KNOBS,
    outcomes=tuple(f"{name}_x" for name in RATIOS),
    measure=measure,
    uses=STRATEGIES,
    points=128,
)
