"""Questions for RecShard's studies: a quarter of a model on a quarter of the devices, or the whole of both."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.datasets.rm import Rm, RmConfig
from shardbench.datasets.rm_features import TOTAL_ROWS, WIDTH
from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Machine, load_machine
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.runs.evaluate import Answer, answer_of
from shardbench.runs.simulate import CountedQuestion, Simulation
from shardbench.studies.study import Row
from shardbench.workloads.materialise import DrawnBatches

DEVICES = 4
TABLES = 100
"""25 tables a device, as 397 tables on 16 devices have."""
BATCH = 4096
"""As many samples a device as 16,384 on 16 devices."""
TRAIN_SAMPLES = 26_214_400
"""The train split whose shares are stated as sample rates, a quarter of the full models': 262,144 samples are 1 %."""
WEIGHT_BYTES = 4
"""fp32."""
PROFILE_SAMPLES = 1 << 20
"""Of the full models, as in the suite: 1 % of a train split of 105 million."""
MACHINE = "a100-24gb-2x8"
RECSHARD = "recshard"
UNSEEN = "recshard-unseen"
GREEDIES = ("greedy-size", "greedy-lookup", "greedy-size-lookup")
"""The whole-table heuristics that the paper compares with."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What is varied; the defaults are the base that one factor at a time departs from."""

    form: str = "rm2"
    features: int = 0
    """Seed that draws the features."""
    exponent_scale: float = 1.0
    off_hbm_share: float | None = None
    """Share of the bytes that HBM cannot hold; None: as on the full machine."""
    uvm_gb_per_s: float | None = None
    """Host reads of a device; None: the machine's."""
    sample_pct: float = 1.0
    """Share of the train split that profiles are counted over."""

    def question(self) -> CountedQuestion:
        """The problem and its test lookups."""
        config = RmConfig.model_validate(
            {
                "name": self.form,
                "form": self.form,
                "tables": TABLES,
                "subset_seed": self.features,
                "batch_size": BATCH,
                "profile_samples": round(TRAIN_SAMPLES * self.sample_pct / 100.0),  # deviation 6
                "exponent_scale": self.exponent_scale,
            }
        )
        source, _ = _lookups(config.model_dump_json())
        needed = sum(table.rows * table.dim * WEIGHT_BYTES for table in source.tables)
        return _question(config, self._machine(needed))

    def _machine(self, needed_bytes: int) -> Machine:
        machine = load_machine(MACHINE)
        # Drawn features are not a quarter of the bytes: HBM shrinks with them, so that as much of them fits.
        share = 1.0 - self.off_hbm_share if self.off_hbm_share is not None else _full_share(self.form)
        topology = replace(
            machine.topology, nodes=1, devices_per_node=DEVICES, hbm_bytes=round(share * needed_bytes / DEVICES)
        )
        constants = machine.constants
        if self.uvm_gb_per_s is not None:
            constants = replace(constants, uvm_bytes_per_s=1e9 * self.uvm_gb_per_s)
        return replace(machine, topology=topology, constants=constants)


def full_question(form: str, pairing: int, profile_samples: int = PROFILE_SAMPLES) -> CountedQuestion:
    """All 397 features of ``form`` on the full machine, paired (and their lookups drawn) by ``pairing``.

    As in the suite, whose models are those of pairing 0.
    """
    config = RmConfig.model_validate(
        {"name": form, "form": form, "pairing": pairing, "seed": pairing, "profile_samples": profile_samples}
    )
    return _question(config, load_machine(MACHINE))


@lru_cache(maxsize=1)
def _lookups(config: str) -> tuple[Rm, DrawnBatches]:
    """The workload of a configuration (JSON) and its first test batch; cells that differ in the machine share them.

    Its raw values are hashed into rows by no bijection (deviation 8).

    Lookups are drawn before profiles: one pass makes a table's ranking and its profile. The other
    way round the rankings, of which few are kept, would be made twice.
    """
    workload = RmConfig.model_validate_json(config).build(Path())
    batches = DrawnBatches(workload)
    batches.draw()
    return workload, batches


def _question(config: RmConfig, machine: Machine) -> CountedQuestion:
    workload, batches = _lookups(config.model_dump_json())
    problem = Problem.of(workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)
    return CountedQuestion(problem, batches, workload.dense)


def _full_share(form: str) -> float:
    """HBM of the full machine over the full model's bytes; above 1 where the model fits."""
    topology = load_machine(MACHINE).topology
    return topology.world_size * topology.hbm_bytes / (TOTAL_ROWS[form] * WIDTH * WEIGHT_BYTES)


def ask(question: CountedQuestion, strategy: str, plan_s: float = 60.0) -> Answer[Simulation]:
    """The named strategy's plan, counted; raises BadInput where it found none."""
    return answer_of(question, get_strategy(strategy), Budget(plan_s=plan_s))


def max_over_mean(simulation: Simulation) -> float:
    """Slowest over mean embedding time of the devices."""
    times = simulation.embedding_ms
    return float(times.max() / np.mean(times))


def metrics(simulation: Simulation) -> Row:
    """What a plan is judged on; milliseconds are of embedding kernels, forward and backward."""
    times = simulation.embedding_ms
    return {
        "backend": "simulated",
        "slowest_ms": float(times.max()),
        "mean_ms": float(np.mean(times)),
        "std_ms": float(np.std(times)),
        "max_over_mean": max_over_mean(simulation),
        "off_hbm_lookups_pct": 100.0 * simulation.off_hbm_share,
        "off_hbm_lookups": simulation.totals.off_hbm_lookups,
    }
