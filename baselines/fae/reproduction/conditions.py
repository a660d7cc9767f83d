"""One condition of the study of choices: FAE, hybrid and CPU-only training, simulated."""

from functools import lru_cache

from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import PhaseKind
from shardbench.model.problem import Problem
from shardbench.runs.discovery import get_strategy
from shardbench.runs.evaluate import answer_of
from shardbench.runs.simulate import CountedQuestion
from shardbench.studies.study import Row
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.materialise import DrawnBatches

from .. import Fae
from .hot_shares import workload

MACHINE = "v100-16gb-1x4"  # deviation 9
EPOCHS = {"kaggle": 39_291_957, "taobao": 690_000}
"""Inputs of an epoch: six sevenths of Criteo Kaggle's 45,840,617, the days that train; Taobao's train points."""
BATCH_SIZES = {"kaggle": 4096, "taobao": 1024}
TEST_INPUTS = 65_536
HYBRID = "hybrid"  # deviation 8
CPU_ONLY = "cpu-only"  # deviation 8


def choice_gains(name: str, sample_pct: float, *, fill: bool) -> Row:
    """Return the gains on a workload with a log of ``sample_pct`` percent and the budget filled or not, simulated."""
    source, batches = _drawn(name, BATCH_SIZES[name], round(EPOCHS[name] * sample_pct / 100.0))
    question = asked_of(source, load_machine(MACHINE), batches)
    return gains(question, Fae(sample_rate=sample_pct / 100.0, fill=fill))


def asked_of(source: DrawnWorkload, machine: Machine, batches: DrawnBatches) -> CountedQuestion:
    """Return the question of a workload on a machine whose planners may see inputs, judged on these batches."""
    problem = Problem.of(
        source.name, source.tables, source.profiles, machine, batch_size=source.batch_size, inputs=source.input_sample
    )
    return CountedQuestion(problem, batches, source.dense, iterations=len(batches.numbers))


def gains(question: CountedQuestion, fae: Fae) -> Row:
    """Return the mean step of FAE, hybrid and CPU-only training, FAE's speed-up over each, and its hot share."""
    answer = answer_of(question, fae)
    plan, found = answer.plan, answer.judged
    row: Row = {
        "hot_inputs_pct": 100.0 * found.share(PhaseKind.HOT),
        "expected_hot_inputs_pct": plan.notes["expected_hot_pct"],
        "hot_mib": float(plan.notes["hot_bytes"]) / 2**20,
        "fae_ms": found.step_ms,
    }
    one_batch = CountedQuestion(question.problem, question.batches, question.dense)
    for name in (HYBRID, CPU_ONLY):
        ms = answer_of(one_batch, get_strategy(name)).judged.step_ms
        column = name.replace("-", "_")
        row[f"{column}_ms"], row[f"over_{column}_x"] = ms, ms / found.step_ms
    return row


@lru_cache(maxsize=1)
def _drawn(name: str, batch_size: int, logged: int) -> tuple[DrawnWorkload, DrawnBatches]:
    # Neighbouring cells share it, and drawing takes most of their time.
    batches = max(1, TEST_INPUTS // batch_size)
    source = workload(name, batch_size=batch_size, logged=logged, test_batches=batches)
    return source, DrawnBatches(source, batches)
