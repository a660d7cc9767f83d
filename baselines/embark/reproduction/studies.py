"""A study: steps of EMBark's plans and of uniform ones on its models, by model and draw of the tables.

Of each of T180, T200 and T510 three numbers are public: tables, parameters, mean hotness. How rows and hotness differ
between its tables is not: their ratios are those of as many of the 856 tables of ``shardbench.datasets.synthetic``,
whose statistics are published, and so much alike that a model's totals come out. They run on a cluster of H100s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from shardbench.cost.phases import StepPhase
from shardbench.datasets.described import CONFIG as DESCRIBED
from shardbench.datasets.synthetic import synthetic_tables
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.strategy import Budget
from shardbench.model.table import DenseShape
from shardbench.studies.study import Plot, Row, Study, grid
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of
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
OURS, FLAT, COMPARED = "embark", "embark-flat", "table-row-wise"
STRATEGIES = (OURS, FLAT, COMPARED)
PLANNING = Budget(plan_s=600.0)
EMBEDDING = (StepPhase.LOOKUP, StepPhase.LOOKUP_BACKWARD)
EXCHANGES = (StepPhase.INPUT, StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD, StepPhase.ALL_REDUCE)


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


def outcome(name: str, question: CountedQuestion) -> Row:
    """Return the row of what a strategy's plan comes to on the test batch."""
    answer = answer_of(question, get_strategy(name), PLANNING)
    (step,) = answer.judged.times

    def milliseconds(phases: Iterable[StepPhase]) -> float:
        return sum(step.phases_ms[phase] for phase in phases)

    return {
        "strategy": name,
        "step_ms": step.step_ms,
        "embedding_ms": milliseconds(EMBEDDING),
        "exchanges_ms": milliseconds(EXCHANGES),
        "fullest_device_gib": max(answer.planned.hbm_memory_bytes) / 2**30,
        "tables_data_parallel": answer.plan.notes.get("tables_data_parallel", 0),
        "plan_cpu_s": answer.spent.plan_cpu_s,
    }


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the throughput over table-row-wise: rows of model and draw, a column for each strategy."""
    steps = rows.pivot_table(index=["model", "draw"], columns="strategy", values="step_ms")
    return steps.rdiv(steps[COMPARED], axis=0).drop(columns=COMPARED)


def over_compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model and strategy: the ratio's mean, least and most, and the number of draws."""
    over = ratios(rows).stack().rename("over_x").reset_index()
    groups = over.groupby(["model", "strategy"], sort=False)["over_x"]
    table = groups.agg(over_table_row_wise_x="mean", least_x="min", most_x="max", n="count").reset_index()
    table.insert(2, "backend", "simulated")
    return table


STUDY = Study(
    name="models",
    title="A step on a test batch of each model and draw: EMBark's planner, with either buckets, and table-row-wise.",
    # A quick run takes one draw of the model with the fewest lookups.
    cells=lambda quick: grid(model=["T510"], draw=DRAWS[:1]) if quick else grid(model=MODELS, draw=DRAWS),
    judge=lambda _, model, draw: [outcome(name, question(model, draw)) for name in STRATEGIES],
    summary=lambda rows: {"models": rows, "throughput": over_compared(rows)},
    uses=STRATEGIES,
    columns=("strategy", "backend", "step_ms", "embedding_ms", "exchanges_ms", "fullest_device_gib", "plan_cpu_s"),
    plots=(
        Plot(
            title="Step (ms) on EMBark's models, simulated, by draw of the tables",
            table="models", x="draw", y="step_ms", series="strategy", facet="model",
        ),
    ),
)  # fmt: skip


def studies() -> Sequence[Study]:
    """Return all studies of EMBark."""
    return (STUDY,)
