"""A study: steps of EMBark's plans and of uniform ones on its models, by model and draw of the tables."""

from collections.abc import Iterable, Sequence

import pandas as pd

from shardbench.cost.phases import StepPhase
from shardbench.model.strategy import Budget
from shardbench.studies.study import Plot, Row, Study, grid
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of
from shardbench.trials.simulate import CountedQuestion

from .models import DRAWS, MODELS, question

OURS, FLAT, COMPARED = "embark", "embark-flat", "table-row-wise"
STRATEGIES = (OURS, FLAT, COMPARED)
PLANNING = Budget(plan_s=600.0)
EMBEDDING = (StepPhase.LOOKUP, StepPhase.LOOKUP_BACKWARD)
EXCHANGES = (StepPhase.INPUT, StepPhase.OUTPUT, StepPhase.OUTPUT_BACKWARD, StepPhase.ALL_REDUCE)


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
