"""One condition of the sensitivity study: FAE, hybrid and CPU-only training, simulated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from shardbench.datasets.drawn import DrawnWorkload
from shardbench.model.machine import load_machine, overridden
from shardbench.model.plan import PhaseKind
from shardbench.model.problem import Problem
from shardbench.model.strategy import Strategy
from shardbench.runs.evaluate import answer_of
from shardbench.runs.simulate import CountedQuestion
from shardbench.studies.study import Row, Scalar
from shardbench.workloads.materialise import DrawnBatches

from .. import Fae
from .hot_shares import workload

MACHINE = "v100-16gb-1x4"  # deviation 9
EPOCH_INPUTS = 39_291_957
"""Inputs of an epoch: six sevenths of Criteo Kaggle's 45,840,617, the days that train."""
TEST_INPUTS = 65_536
HYBRID = "hybrid"  # deviation 8
CPU_ONLY = "cpu-only"  # deviation 8


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A workload, what FAE is given, and the machine; ``base`` values of the study by default."""

    workload: str = "kaggle"
    budget_mib: float = 256.0
    sample_pct: float = 5.0
    batch_size: int = 4096
    rate_pct: float = 50.0
    host_link_gb_per_s: float = 12.0
    intra_gb_per_s: float = 75.0

    def with_factor(self, factor: str, value: Scalar) -> "Condition":
        """The same with one factor changed."""
        return replace(self, **{factor: value})  # type: ignore[arg-type]

    def row(self, others: Mapping[str, Strategy]) -> Row:
        """Mean step of FAE and of the ``others`` by name, FAE's speed-up over each, and its hot share."""
        question = self._question()
        fae = Fae(
            budget_bytes=round(self.budget_mib * 2**20), rate_pct=self.rate_pct, sample_rate=self.sample_pct / 100.0
        )
        answer = answer_of(question, fae)
        plan, found = answer.plan, answer.judged
        row: Row = {
            "backend": "simulated",
            "hot_inputs_pct": 100.0 * found.share(PhaseKind.HOT),
            "expected_hot_inputs_pct": plan.notes["expected_hot_pct"],
            "hot_mib": float(plan.notes["hot_bytes"]) / 2**20,
            "fae_ms": found.step_ms,
            # Mean bytes a step of hot rows that are copied at switches: to all devices, and back from one.
            "to_device_bytes": found.traffic.synchronisation.to_device_bytes,
            "to_host_bytes": found.traffic.synchronisation.to_host_bytes,
        }
        for kind in PhaseKind:
            times = [t.step_ms for t, k in zip(found.times, found.kinds) if k is kind]
            row[f"fae_{kind.value}_ms"] = sum(times) / len(times) if times else None
        one_batch = CountedQuestion(question.problem, question.batches, question.dense)
        for name, strategy in others.items():
            ms = answer_of(one_batch, strategy).judged.step_ms
            column = name.replace("-", "_")
            row[f"{column}_ms"], row[f"over_{column}_x"] = ms, ms / found.step_ms
        return row

    def _question(self) -> CountedQuestion:
        source, batches = _drawn(self.workload, self.batch_size, round(EPOCH_INPUTS * self.sample_pct / 100.0))
        override = {"host_link": f"{self.host_link_gb_per_s} GB/s", "intra_bandwidth": f"{self.intra_gb_per_s} GB/s"}
        machine = overridden(load_machine(MACHINE), override)
        problem = Problem.of(
            source.name, source.tables, source.profiles, machine, batch_size=self.batch_size, inputs=source.input_sample
        )
        return CountedQuestion(problem, batches, source.dense, iterations=len(batches.numbers))


@lru_cache(maxsize=1)
def _drawn(name: str, batch_size: int, logged: int) -> tuple[DrawnWorkload, DrawnBatches]:
    # Neighbouring cells often share it, and drawing takes most of their time.
    batches = max(1, TEST_INPUTS // batch_size)
    source = workload(name, batch_size=batch_size, logged=logged, test_batches=batches)
    return source, DrawnBatches(source, batches)
