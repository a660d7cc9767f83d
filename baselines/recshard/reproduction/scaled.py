"""Questions for RecShard's studies: models of the size of rm1 to rm3 in small, the whole of them or a quarter.

Everything shrinks alike: rows, profiled samples and batches of the model, memory, cache and rates of every device
(``shardbench.datasets.rm``, Scaling). So times of embeddings are those of the full size, and a profile of 105 million
samples is one of 204,800. The study ``scaling`` holds it against the full size. What RecShard gains over the greedies
are ratios.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.arrays import Floats
from shardbench.datasets.rm import FEATURES, TOTAL_ROWS, WIDTH, Rm, RmConfig
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, scaled
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.studies.study import Row
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import Answer, answer_of
from shardbench.trials.simulate import CountedQuestion, Simulation
from shardbench.workloads.materialise import DrawnBatches

MACHINE = "a100-24gb-2x8"
ROW_SCALE = 1 / 512
"""The scale of whole models: profiling one takes seconds, and a device still has two samples of a batch."""
QUARTER_SCALE = 1 / 256
"""The scale of quarters of models, in which a device has four samples of a batch."""
BATCH = 16_384
"""Samples of a batch at full size, of all devices."""
TEST_BATCHES = 32
"""Test batches that plans are judged on, unless fewer are as many samples as a batch of full size."""
SAMPLES = 104_857_600
"""Samples profiled at full size: 1 % of 10.5 billion, a training set 2.4 times Criteo Terabyte's 4.4 billion."""
SMALL_SAMPLES = 1_048_576
"""A hundredth of the samples."""
QUARTER = 4
"""Parts of which a quarter of a model has one, of the features and of the devices: 100 tables on 4 devices."""
DEVICES = 16
"""Devices of the machine, which hold whole models."""
WEIGHT_BYTES = 4
"""Bytes of a weight in fp32."""
RECSHARD = "recshard"
UNSEEN = "recshard-unseen"
GREEDIES = ("greedy-size", "greedy-lookup", "greedy-size-lookup")
"""Whole-table heuristics by size, lookups and both; that the paper compares with them is a reconstruction."""
RATIOS = {"throughput": "slowest_ms", "balance": "std_ms", "balance_cv": "cv", "slow_accesses": "off_hbm_lookups"}
"""The column of each ratio, whose greedy value is divided by RecShard's."""
DRAW = "features_seed"
ONE_MORE = frozenset({"off_hbm_lookups"})
"""Counts that may be zero: one is added to theirs and to ours, so that a ratio to nothing is the count itself."""
_RATES = (
    "hbm_bytes_per_s", "cache_bytes_per_s", "cache_bytes", "uvm_bytes_per_s", "host_bytes_per_s",
    "intra_bytes_per_s", "inter_bytes_per_s", "dense_flop_per_s", "vector_copy_bytes_per_s", "activation_bytes_per_s",
    "reduce_bytes_per_s",
)  # fmt: skip
_TIMES = ("lookup_copy_s", "length_copy_s", "bucketise_s", "warp_s")
"""Times of a lookup or a bag, of which a model in small has as small a share."""


@dataclass(frozen=True, kw_only=True)
class RmCondition:
    """One question; samples, HBM and rates are meant at full size."""

    form: str = "rm2"
    draw: int = 0
    """The draw pairs the features' quantities, seeds the lookups, and picks the features of a quarter."""
    parts: int = 1
    """The number 1 stands for the whole model on all devices, 4 for a quarter of both."""
    row_scale: float = ROW_SCALE
    samples: int = SAMPLES
    """Samples that profiles are counted over (deviation 6)."""
    hbm: float = 1.0
    """HBM as a multiple of the machine's."""
    hbm_share: float | None = None
    """Share of the bytes that HBM holds, which replaces ``hbm`` where it is given."""
    uvm_gb_per_s: float | None = None
    """Rate of a device's host reads; None stands for the machine's."""
    features: Mapping[str, float] = field(default_factory=dict)
    """Parameters of the workload's features that are not rm's."""

    def question(self) -> CountedQuestion:
        """Return the problem and its test lookups."""
        workload, batches = _lookups(self._config().model_dump_json())
        machine = self._machine(sum(table.rows for table in workload.tables) * WIDTH * WEIGHT_BYTES)
        return CountedQuestion.of_batches(workload, machine, batches)

    def _config(self) -> RmConfig:
        batch = round(BATCH * self.row_scale / self.parts)
        part = {"tables": -(-FEATURES // self.parts), "subset_seed": self.draw} if self.parts > 1 else {}
        return RmConfig.model_validate(
            {
                "name": self.form,
                "form": self.form,
                "pairing": self.draw,
                "seed": self.draw,
                "batch_size": batch,
                "test_batches": min(TEST_BATCHES, BATCH // batch),
                "profile_samples": round(self.samples * self.row_scale),
                "row_scale": self.row_scale,
                **self.features,
                **part,
            }
        )

    def _machine(self, needed_bytes: int) -> Machine:
        machine = load_machine(MACHINE)
        if self.uvm_gb_per_s is not None:
            constants = replace(machine.constants, uvm_bytes_per_s=1e9 * self.uvm_gb_per_s)
            machine = replace(machine, constants=constants)
        machine = slice_of(machine, self.row_scale)  # deviation 9
        # Features of a quarter are not a quarter of the bytes: HBM goes with them, so that as much of them fits.
        share = self.hbm_share if self.hbm_share is not None else self.hbm * _full_share(self.form)
        topology = machine.topology
        if self.parts > 1:
            topology = replace(topology, nodes=1, devices_per_node=topology.world_size // self.parts)
        topology = replace(topology, hbm_bytes=round(share * needed_bytes / topology.world_size))
        return replace(machine, topology=topology)


def slice_of(machine: Machine, share: float) -> Machine:
    """Return the machine with ``share`` of every device's memory, cache and rates, and the same fixed times.

    With as small a share of a workload's rows and batch it takes the same milliseconds.
    """
    topology = machine.topology
    sizes = {name: round(share * getattr(topology, name)) for name in ("hbm_bytes", "uvm_bytes", "host_bytes")}
    factors = dict.fromkeys(_RATES, share) | dict.fromkeys(_TIMES, 1.0 / share)
    return replace(scaled(machine, factors), topology=replace(topology, **sizes))


@lru_cache(maxsize=1)
def _lookups(config: str) -> tuple[Rm, DrawnBatches]:
    """Return the workload of a configuration (JSON) and its test batches; cells that differ in the machine share them.

    Its raw values are hashed into rows by no bijection (deviation 8).

    Lookups are drawn before profiles: one pass makes a table's ranking and its profile. The other
    way round the rankings, of which few are kept, would be made twice.
    """
    workload = RmConfig.model_validate_json(config).build(Path())
    batches = DrawnBatches(workload, workload.test_batches)
    batches.draw()
    return workload, batches


def _full_share(form: str) -> float:
    """Return the HBM of the full machine over the full model's bytes; above 1 where the model fits."""
    topology = load_machine(MACHINE).topology
    return topology.world_size * topology.hbm_bytes / (TOTAL_ROWS[form] * WIDTH * WEIGHT_BYTES)


def ask(question: CountedQuestion, strategy: str, plan_s: float = 60.0) -> Answer[Simulation]:
    """Return the named strategy's plan, counted; raises BadInput where it found none."""
    return answer_of(question, get_strategy(strategy), Budget(plan_s=plan_s))


def never_touched_pct(problem: Problem) -> float:
    """Return the rows that the sample never looked up, in per cent of all."""
    seen = sum(profile.seen_rows for profile in problem.profiles)
    return 100.0 * (1.0 - seen / sum(profile.rows for profile in problem.profiles))


def metrics(simulation: Simulation) -> Row:
    """Return the cells that a plan is judged on; milliseconds are of embedding kernels, forward and backward.

    ``off_hbm_lookups`` are those of all test batches together.
    """
    times = simulation.embedding_ms
    mean, std = float(np.mean(times)), float(np.std(times))
    return {
        "slowest_ms": float(times.max()),
        "mean_ms": mean,
        "std_ms": std,
        "cv": std / mean,
        "max_over_mean": float(times.max()) / mean,
        "off_hbm_lookups_pct": 100.0 * simulation.off_hbm_share,
        "off_hbm_lookups": round(simulation.totals.off_hbm_lookups * len(simulation.times)),
    }


def plan_metrics(answer: Answer[Simulation], problem: Problem) -> Row:
    """Return the HBM used by a plan, and how its search ended; nothing of the search for a greedy."""
    notes = answer.plan.notes
    hbm = problem.world_size * problem.topology.hbm_bytes
    left_out = notes.get("unseen_rows_lookups_share")
    return {
        "hbm_used_pct": 100.0 * sum(answer.planned.hbm_memory_bytes) / hbm,
        "gap_pct": notes.get("gap_pct"),
        "status": notes.get("status"),
        "left_out_lookups_pct": None if left_out is None else 100.0 * float(left_out),
    }


def ratio(theirs: Floats | float, ours: Floats | float, column: str) -> Floats:
    """Return theirs over ours, broadcast; of counts that may be zero with one added to both."""
    more = 1.0 if column in ONE_MORE else 0.0
    return np.asarray((np.asarray(theirs) + more) / (np.asarray(ours) + more))


def ratios_of(rows: pd.DataFrame, keys: Sequence[str], ours: str, greedies: Sequence[str] = GREEDIES) -> pd.DataFrame:
    """Return the smallest of ``greedies`` over ``ours``, by ``keys`` (index), one column a ratio."""
    theirs = rows[rows["strategy"].isin(greedies)].groupby(list(keys))[list(RATIOS.values())].min()
    own = rows[rows["strategy"] == ours].set_index(list(keys)).loc[theirs.index]
    columns = {name: ratio(theirs[column], own[column], column) for name, column in RATIOS.items()}
    return pd.DataFrame(columns, index=theirs.index)


def geometric_mean(numbers: pd.Series) -> float:
    """Return the geometric mean of positive numbers."""
    return float(np.exp(np.log(numbers).mean()))


def ratio_table(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the best greedy over RecShard, and over the variant, by ``keys``: mean, least and most over draws."""
    lines = []
    for name in (RECSHARD, UNSEEN):
        ratios = ratios_of(rows, (*keys, DRAW), name)
        share = rows[rows["strategy"] == name].set_index([*keys, DRAW])["off_hbm_lookups_pct"]
        for key, part in ratios.groupby(list(keys), sort=False):
            row: dict[str, object] = dict(zip(keys, key, strict=True))
            row |= {"strategy": name, "backend": "simulated", "draws": len(part)}
            for metric in RATIOS:
                numbers = part[metric]
                spread = {"": geometric_mean(numbers), "_low": numbers.min(), "_high": numbers.max()}
                row |= {f"{metric}{end}_x": number for end, number in spread.items()}
            lines.append({**row, "off_hbm_lookups_pct": share.loc[part.index].mean()})
    return pd.DataFrame(lines)


def summary(rows: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return mean, least and most of each metric over draws, by ``keys``; ``n`` is the number of draws."""
    spread = {"": "mean", "_low": "min", "_high": "max"}
    columns = {f"{metric}{end}": (metric, aggregate) for metric in metrics for end, aggregate in spread.items()}
    grouped = rows.groupby(list(keys), sort=False, as_index=False)
    return grouped.agg(backend=("backend", "first"), n=(metrics[0], "size"), **columns)
