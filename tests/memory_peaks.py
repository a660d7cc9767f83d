"""Peaks of memory of real ranks beside predicted ones: 20 plans of all moves for four workloads, on two CPU ranks.

``nox -s tables -- memory`` measures every plan in fresh ranks and writes a row a rank: what it held at
most, when, what was predicted, and the terms of the prediction. Every second plan may be fitted to; the
others are held out. It prints how far predictions are off, beside what the constants in
``shardbench.cost.memory.peak`` would be if they were fitted anew.

``nox -s tables -- memory fits`` only counts, from the tables of the suite ``quick`` and of the leaderboard, whose plans
fit by their peaks.
"""

import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from peak_ranks import measure_peaks

from shardbench.base.arrays import Floats
from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text
from shardbench.base.memory import GIB
from shardbench.cost.memory.fullest import device_bytes
from shardbench.cost.memory.peak import CPU, TERMS, PeakMemory, Term
from shardbench.cost.memory.step import peak_memory
from shardbench.cost.traffic import counted_lookups
from shardbench.engine.measure import rank_job
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import (
    OnLocalRank,
    OnRank,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    row_ranges,
    whole_table,
)
from shardbench.model.problem import Problem
from shardbench.model.table import Optimizer, Precision, StepSchedule, Table
from shardbench.records.trial import Backend
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import materialise
from shardbench.workloads.workload import Workload

MIB = float(1 << 20)
WORLD, STEPS, BATCHES = 2, 10, 2
BOTH = (0, 1)
SMALL_DENSE = {"bottom": [16], "top": [16, 1]}
HISTORIES: dict[str, Any] = {
    "name": "histories", "dataset": "sequence", "form": "production", "tables": 12, "row_scale": 0.01,
    "batch_size": 1024, "dense": SMALL_DENSE,
}  # fmt: skip
WORKLOADS: tuple[dict[str, Any], ...] = (
    {
        "name": "mixed", "dataset": "described", "batch_size": 8192, "dense": SMALL_DENSE,
        "tables": [
            {"name": "a", "rows": 300_000, "dim": 64, "pooling": 60, "alpha": 1.1, "shift": 10},
            {"name": "b", "rows": 200_000, "dim": 16, "pooling": 30, "alpha": 0.9},
            {"name": "c", "rows": 100_000, "dim": 128, "pooling": 4, "alpha": 0.8},
            {"name": "d", "rows": 50_000, "dim": 32, "pooling": 12, "alpha": 1.2, "shift": 10},
            {"name": "e", "rows": 20_000, "dim": 64, "pooling": 1, "alpha": 0.6},
            {"name": "f", "rows": 3_000, "dim": 32, "pooling": 8, "features": 2},
        ],
    },
    {"name": "criteo", "dataset": "criteo_like", "form": "kaggle", "batch_size": 16_384, "dense": SMALL_DENSE},
    HISTORIES,
    HISTORIES | {"name": "histories-distinct", "distinct": True},
)  # fmt: skip
FITTED, HELD_OUT = "fitted", "held out"
TOO_LOW_PCT = -5.0
SLACK_SHARE = 0.9
"""The share of the ranks that slack is fitted to whose peaks it covers: too low is worse than too high."""
HOT, SMALL = 0.02, 0.5
"""The share of a table's rows that are hot, and of tables that are small."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan and what it is trained with."""

    name: str
    plan: Plan
    training: dict[str, Any] = field(default_factory=dict)


def cases(tables: tuple[Table, ...]) -> list[Case]:
    """Return 20 plans of all moves that CPU ranks run, with both schedules and several formats."""
    small = {table.name for table in sorted(tables, key=lambda t: t.rows)[: int(SMALL * len(tables))]}

    def plan(place: Any, **rest: Any) -> Plan:
        segments = [segment for i, table in enumerate(tables) for segment in place(i, table)]
        return Plan(world_size=WORLD, segments=tuple(segments), **rest)

    def whole(i: int, table: Table) -> Iterator[Segment]:
        yield whole_table(table, OnRank(rank=i % WORLD))

    def dealt(i: int, table: Table) -> Iterator[Segment]:
        yield whole_table(table, RowWise(ranks=BOTH))

    def halves(i: int, table: Table) -> Iterator[Segment]:
        for rank, start in enumerate((0, table.dim // 2)):
            yield whole_table(table, OnRank(rank=rank), (start, start + table.dim // 2))

    def on_first(i: int, table: Table) -> Iterator[Segment]:
        yield whole_table(table, OnRank(rank=0))

    def thirds(i: int, table: Table) -> Iterator[Segment]:
        yield from (whole, dealt, halves)[i % 3](i, table)

    def cut(hot: Placement, cold: Placement) -> Any:
        return lambda i, table: row_ranges(table, (max(WORLD, int(HOT * table.rows)), hot), (table.rows, cold))

    def unlike(of_small: Placement, others: Any) -> Any:
        return lambda i, table: [whole_table(table, of_small)] if table.name in small else others(i, table)

    copied, one_by_one = Replicated(ranks=BOTH), ShardingGroups(size=1, interleaved=False)
    hot_copied = plan(cut(copied, RowWise(ranks=BOTH)))
    fp16, bf16 = {"exchange": Precision.FP16}, {"exchange": Precision.BF16}
    pipelined = {"schedule": StepSchedule.PIPELINED}
    return [
        Case(name="whole", plan=plan(whole)),
        Case(name="whole, all on one rank", plan=plan(on_first)),
        Case(name="row-wise", plan=plan(dealt)),
        Case(name="column halves", plan=plan(halves)),
        Case(name="small replicated, others whole", plan=plan(unlike(copied, whole))),
        Case(name="hot replicated, others row-wise", plan=hot_copied),
        Case(name="hot replicated, others on one rank", plan=plan(cut(copied, OnRank(rank=1)))),
        Case(name="hot on one rank, others on the other", plan=plan(cut(OnRank(rank=0), OnRank(rank=1)))),
        Case(name="whole, row-wise and halves", plan=plan(thirds)),
        Case(name="small copied by group", plan=plan(unlike(OnLocalRank(local_rank=0), dealt), groups=one_by_one)),
        Case(name="whole, sent as fp16", plan=plan(whole), training=fp16),
        Case(name="row-wise, sent as fp16", plan=plan(dealt), training=fp16),
        Case(name="column halves, sent as bf16", plan=plan(halves), training=bf16),
        Case(name="hot replicated, others row-wise, sent as fp16", plan=hot_copied, training=fp16),
        Case(name="whole, fp16 weights", plan=plan(whole), training={"precision": Precision.FP16}),
        Case(name="row-wise, Adagrad", plan=plan(dealt), training={"optimizer": Optimizer.ROWWISE_ADAGRAD}),
        Case(name="whole, pipelined", plan=plan(whole), training=pipelined),
        Case(name="row-wise, pipelined", plan=plan(dealt), training=pipelined),
        Case(name="whole, row-wise and halves, pipelined, fp16", plan=plan(thirds), training=pipelined | fp16),
        Case(name="small replicated, others whole, pipelined", plan=plan(unlike(copied, whole)), training=pipelined),
    ]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A plan's peaks on every rank, measured and predicted."""

    workload: str
    case: str
    fitted: bool
    measured: tuple[dict[str, int], ...]
    predicted: PeakMemory

    @property
    def peaks(self) -> Floats:
        """The bytes that each rank held at most, [world]."""
        return np.array([max(held.values()) for held in self.measured], dtype=np.float64)

    def rows(self) -> Iterator[list[object]]:
        """Yield a row a rank."""
        for rank, (held, peak) in enumerate(zip(self.measured, self.peaks)):
            terms = self.predicted.terms(rank)
            tables, predicted = terms.get(Term.TABLES, 0.0), self.predicted.peak[rank]
            beside = 100.0 * ((predicted - tables) / (peak - tables) - 1.0)
            numbers = [peak / MIB, predicted / MIB, 100.0 * (predicted / peak - 1.0), beside]
            moments = [max(held, key=held.__getitem__), self.predicted.moment(rank)]
            sizes = [terms.get(term, 0.0) / MIB for term in TERMS]
            yield [
                self.workload, self.case, rank, FITTED if self.fitted else HELD_OUT,
                *(f"{number:.1f}" for number in numbers), *moments, *(f"{size:.1f}" for size in sizes),
            ]  # fmt: skip


COLUMNS = (
    "workload", "plan", "rank", "constants", "measured_mib", "predicted_mib", "error_pct", "error_beside_tables_pct",
    "measured_in", "predicted_in", *(f"{term}_mib" for term in TERMS),
)  # fmt: skip


def worst(peaks: Sequence[PeakMemory]) -> PeakMemory:
    """Return what ranks hold in the batch, of several, in which each one's peak is highest."""
    fullest = np.argmax([one.peak for one in peaks], axis=0)
    held = np.stack([peaks[number].bytes[:, :, rank] for rank, number in enumerate(fullest)], axis=2)
    return replace(peaks[0], bytes=held)


def measured(workload: Workload, case: Case, folder: Path, *, fitted: bool) -> Measured:
    """Measure a plan in fresh ranks, and predict it from the same batches."""
    batches = materialise(workload, folder / "batches", range(BATCHES))
    machine = load_machine("cpu-1x2")
    problem = Problem.of(
        workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size, **case.training
    )
    settings = {"warmup": 0, "iterations": STEPS, "seed": 0, "timeout_s": 300.0}
    held = measure_peaks(rank_job(case.plan, problem, workload.dense, batches.folder, **settings), folder / "job")

    def batch(number: int) -> PeakMemory:
        peaks = peak_memory(
            case.plan,
            problem,
            workload.dense,
            lambda i: counted_lookups(batches.bags(number, i), problem, i),
            batches=BATCHES,
        )
        # A GPU's counter sees what torch's allocator handed out: neither what that takes beside, nor CUDA's context.
        return peaks if machine.device == "cpu" else peaks.without(Term.SLACK, Term.CONTEXT)

    predicted = worst([batch(number) for number in range(BATCHES)])
    return Measured(workload=workload.name, case=case.name, fitted=fitted, measured=held, predicted=predicted)


def fits(tables: Path) -> pd.DataFrame:
    """Return which simulated plans of ``quick`` and of the leaderboard fit by their peaks, a row a suite and strategy.

    ``plans`` are those on record, ``peaks`` those whose peak is predicted, ``judged`` those whose devices' memory is
    known as well, and ``fail`` those that have more; on the leaderboard these are no answers, and have a cause instead.
    """
    quick, board = (pd.read_csv(tables / name) for name in ("quick/traffic.csv", "leaderboard/steps.csv"))
    there = {name: device_bytes(load_machine(name)) for name in {*quick["machine"], *board["machine"]}}
    failed = board["cause"].str.startswith("peak: ", na=False)
    plans = pd.concat([
        quick.assign(suite="quick", peak=quick["peak_bytes_max"]),
        board.assign(suite="leaderboard", peak=(GIB * board["peak_gib"]).mask(failed, math.inf)),
    ])  # fmt: skip
    plans = plans[plans["backend"].eq(Backend.SIMULATED.value) & (plans["outcome"].eq("ok") | plans["peak"].notna())]
    has = plans["machine"].map(there).astype(float)
    fails = plans["peak"] > has
    columns = {"peaks": plans["peak"].notna(), "judged": plans["peak"].notna() & has.notna(), "fail": fails}
    groups = plans.assign(plans=True, **columns, failing=plans["workload"].where(fails, "")).groupby(
        ["suite", "backend", "strategy"]
    )
    numbers = groups[["plans", *columns]].sum()
    return numbers.join(groups["failing"].agg(lambda names: " ".join(sorted({*names} - {""})))).reset_index()


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how far predictions are off, by workload, for plans that constants were fitted to and for the others."""
    groups = rows.groupby(["workload", "constants"], sort=False)
    summary = groups["error_pct"].describe(percentiles=[0.025, 0.5, 0.975]).drop(columns=["mean", "std"])
    beside = groups["error_beside_tables_pct"].median()
    too_low = groups["error_pct"].agg(lambda errors: (errors < TOO_LOW_PCT).sum())
    table = summary.set_axis(["ranks", "lowest_pct", "low_pct", "median_pct", "high_pct", "highest_pct"], axis=1)
    table = table.assign(beside_tables_median_pct=beside, too_low=too_low, plans=groups["plan"].nunique())
    return table.round(1).astype({"ranks": int}).reset_index()


def slack_needed(rows: pd.DataFrame) -> float:
    """Return the slack that covers ``SLACK_SHARE`` of the ranks whose plans it may be fitted to."""
    fixed = {Term.TABLES, Term.DENSE, Term.SLACK, Term.CONTEXT}
    some = rows[rows["constants"] == FITTED]
    asked = some[[f"{term}_mib" for term in TERMS if term not in fixed]].sum(axis=1)
    missing = some["measured_mib"] - (some["predicted_mib"] - some[f"{Term.SLACK}_mib"])
    return float((missing / asked).quantile(SLACK_SHARE))


def write_fits(out: Path) -> None:
    """Write which plans on record fit."""
    table = fits(out.parent)
    write_atomically(out / "fits.csv", csv_text(table.columns, table.to_numpy().tolist()))
    print(table.to_string())


def main(out: Path) -> None:
    """Measure all plans for all workloads, and write the tables."""
    results: list[list[object]] = []
    for settings in WORKLOADS:
        workload = workload_config({**settings, "test_batches": BATCHES}, "memory_peaks").build(Path())
        for number, case in enumerate(cases(workload.tables)):
            with tempfile.TemporaryDirectory() as folder:
                rows = list(measured(workload, case, Path(folder), fitted=number % 2 == 0).rows())
            for row in rows:
                print(*row[:10], sep=", ", flush=True)
            results += rows
    write_atomically(out / "peaks.csv", csv_text(COLUMNS, results))
    write_fits(out)
    table = pd.read_csv(out / "peaks.csv")
    summary = errors(table)
    write_atomically(out / "errors.csv", csv_text(summary.columns, summary.to_numpy().tolist()))
    print(summary.to_string())
    print(
        f"slack that {100 * SLACK_SHARE:g} % of fitted ranks need: {slack_needed(table):.3f}; used: {CPU.slack_ratio}"
    )


if __name__ == "__main__":
    (write_fits if sys.argv[2:] == ["fits"] else main)(Path(sys.argv[1]))
