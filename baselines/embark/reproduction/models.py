"""EMBark's models T180, T200 and T510, drawn to the totals that are public, on a cluster of H100s.

Of each, three numbers are public: tables, parameters, mean hotness. How rows and hotness differ between its tables is
not: their ratios are those of as many of the 856 tables of ``shardbench.datasets.synthetic``, whose statistics are
published, and so much alike that a model's totals come out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shardbench.datasets.described import CONFIG as DESCRIBED
from shardbench.datasets.synthetic import synthetic_tables
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.table import DenseShape
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

WIDTH = 128
"""Columns of a table in DLRM-DCNv2, the one model of the four whose width is public."""
ALPHA = 1.1
"""Exponent of the power law of lookups in the public scripts (the paper's is reported as 1.2 at second hand)."""
LOCAL_BATCH = 512
"""Samples a device: DLRM-DCNv2's batch of 65,536 in MLPerf Training, on the largest published cluster of 128."""
NODES = 4
"""Nodes of 8 devices: 32 devices are the middle, by ratio, of the 8 to 128 GPUs that are reported on."""
DRAWS = tuple(range(5))
"""Draws of a model's tables, each with lookups of its own: the independent units, as few as a claim may rest on."""
PROFILE_SAMPLES = 16_384
SEED = 2024


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The numbers of a model that are public."""

    tables: int
    parameters: float
    hotness: float
    """Mean lookups of a sample in a table."""


MODELS: Mapping[str, Totals] = MappingProxyType(
    {
        "T180": Totals(tables=177, parameters=66e9, hotness=81.6),
        "T200": Totals(tables=200, parameters=104e9, hotness=22.8),
        "T510": Totals(tables=510, parameters=115e9, hotness=5.2),
    }
)


def cluster() -> Machine:
    """Return nodes of 8 H100s, joined by what h100-1x8 states of the links between nodes."""
    machine = load_machine("h100-1x8")
    return replace(machine, name=f"h100-{NODES}x8", topology=replace(machine.topology, nodes=NODES))


def workload(name: str, draw: int, batch_size: int) -> Workload:
    """Return a draw of a model's tables with one test batch, and the smallest dense model around them."""
    totals = MODELS[name]
    rng = np.random.default_rng([SEED, totals.tables, draw])
    templates = [synthetic_tables()[i] for i in rng.choice(len(synthetic_tables()), totals.tables, replace=False)]
    rows = np.array([table.law.rows for table in templates], dtype=np.float64)
    rows *= totals.parameters / (WIDTH * rows.sum())
    hotness = np.array([table.pooling * table.coverage for table in templates])
    hotness *= totals.hotness / hotness.mean()
    tables = [
        {
            "name": f"t{i:03d}",
            "rows": max(1, round(rows[i])),
            "dim": WIDTH,
            # A bag that is there has a lookup: rarer ones are in fewer samples.
            "pooling": max(1.0, hotness[i]),
            "coverage": min(1.0, hotness[i]),
            "alpha": ALPHA,
        }
        for i in range(totals.tables)
    ]
    description = {
        "name": name, "batch_size": batch_size, "test_batches": 1, "seed": draw, "tables": tables,
        "profile_samples": PROFILE_SAMPLES, "dense": DenseShape(bottom=(16,), top=(1,)),
    }  # fmt: skip
    return DESCRIBED.model_validate(description).build(Path())


def question(name: str, draw: int) -> CountedQuestion:
    """Return the question of one test batch of a draw of a model on the cluster."""
    machine = cluster()
    drawn = workload(name, draw, LOCAL_BATCH * machine.topology.world_size)
    return CountedQuestion.of_batches(drawn, machine, DrawnBatches(drawn))
