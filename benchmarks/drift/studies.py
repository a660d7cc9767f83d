"""Studies of drift: what every strategy's plan loses when hot rows change places, and on later days of real logs."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.base.statistics import log_mean
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Role
from shardbench.records.cell import Cell, Row, SeriesRow
from shardbench.records.trial import Failure, Outcome
from shardbench.studies.study import Plot, Study, grid
from shardbench.trials.discovery import get_strategy, strategies
from shardbench.trials.evaluate import Answer, evaluate
from shardbench.trials.planning import learns
from shardbench.trials.simulate import CountedQuestion, Simulation, simulate
from shardbench.workloads.drift import DriftedBatches, LaterBatches, Period
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.recorded import RecordedWorkload
from shardbench.workloads.workload import Workload

PROBLEMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # One lookup a sample in each of 26 tables, and one width.
    "criteo": ("a100-40gb-1x8", {"dataset": "criteo_like", "form": "kaggle", "batch_size": 65_536}),
    # Bags of 1 to 139 lookups, widths 16 to 128, skew as fitted: the tables of the suite `measured`.
    "mixed": (
        "a100-40gb-1x8",
        {
            "dataset": "synthetic", "tables": 32, "subset_seed": 4234, "dims": [16, 32, 64, 128], "batch_size": 8192,
            "dense": {"bottom": [16], "top": [16, 1]},
        },
    ),
    # Histories whose vectors cross nodes, as in the suite `flexshard`, half as long.
    "sequences": ("a100-40gb-2x8", {"dataset": "sequence", "form": "production", "batch_size": 8192}),
    # Tables of which not even the rows that the profile saw fit HBM, as in the suite `recshard`.
    "off-hbm": (
        "a100-24gb-512th-2x8",
        {
            "dataset": "rm", "form": "rm2", "row_scale": 1 / 512, "batch_size": 32, "profile_samples": 204_800,
            "test_batches": 8, "dense": {"bottom": [64], "top": [1]},
        },
    ),
}  # fmt: skip
"""Machine and workload by name; all have the number of test batches that their workload states, or one."""
DAYS = ("avazu", "taobao", "criteo_terabyte")
"""Data sets whose prepared folders have days: those that train, and later ones that test."""
DAYS_MACHINE, DAYS_BATCH = "a100-40gb-1x8", 4096
BATCHES = 5
"""Test batches of each period of a log."""
SHARES_PCT = (5, 10, 25, 50)
SEEDS = 10
PLAN_S = 20.0
"""Seconds that a plan may take; one that takes longer is a timeout."""
TOO_LONG = frozenset({("off-hbm", "torchrec-2d"), ("off-hbm", "torchrec-fused")})
"""Planners that take minutes for 397 tables, many times their budget."""
RATIO = ("n", "over_undrifted", "low", "high")


@lru_cache(maxsize=1)
def question(name: str) -> CountedQuestion:
    """Return a problem that is judged on its undrifted test batches; the last one is kept for the next strategy."""
    machine, parameters = PROBLEMS[name]
    data = {"test_batches": 1, **parameters, "name": name}
    workload = workload_config(data, f"problem {name}").build(Path())
    batches = DrawnBatches(workload, workload.test_batches)
    return CountedQuestion(_problem(workload, machine), batches, workload.dense, workload.test_batches)


@lru_cache(maxsize=1)
def periods(dataset: str, data: Path, batch_size: int) -> tuple[Period, Period]:
    """Return the days of a prepared log that train, and those that test."""
    parameters = {"dataset": dataset, "name": dataset, "batch_size": batch_size, "test_batches": 1}
    log = workload_config(parameters, f"log {dataset}").build(data)
    if not isinstance(log, RecordedWorkload):
        raise BadInput(f"{dataset} has no recorded samples, and so no days")
    return Period(log, 0, log.train_samples, BATCHES), Period(log, log.train_samples, log.samples, BATCHES)


def days_question(plans_on: Period, judged_on: Period, batch: int) -> CountedQuestion:
    """Return the question of a period's profile, judged on one batch of that period or of another one."""
    batches = LaterBatches(judged_on, plans_on, first=batch)
    return CountedQuestion(_problem(plans_on, DAYS_MACHINE), batches, plans_on.dense)


def _problem(workload: Workload, machine: str) -> Problem:
    # All strategies are asked the same problem: what one does not declare is withheld from it.
    return workload.problem(load_machine(machine), inputs=workload.input_sample)


@cache
def _competitors() -> tuple[str, ...]:
    """List the competing strategies but those that learn, whose plans do not depend on which rows are hot."""
    return tuple(name for name, one in strategies().items() if one.role is Role.COMPETITOR and not learns(one))


def _step_ms(question: CountedQuestion, plan: Plan, share_pct: int, seed: int) -> float:
    """Return the plan's step on the question's batches, of whose hot rows a share has changed places."""
    batches = DriftedBatches(question.batches, question.problem.profiles, share_pct / 100.0, seed)
    return simulate(plan, question.problem, batches, question.dense, question.iterations).step_ms


def _plan(question: CountedQuestion, strategy: str) -> Answer[Simulation] | Failure:
    return evaluate(question, get_strategy(strategy), Budget(plan_s=PLAN_S), 0, sealed=False)


def _failure_row(failure: Failure) -> Row:
    return {"outcome": failure.outcome.value, "cause": failure.cause}


def _ratio(name: str, ratios: Sequence[float], prefix: str = "") -> dict[str, Any]:
    """Return the geometric mean under ``name``, with its interval and how many numbers it is of."""
    mean = log_mean(ratios)
    return {"n": mean.n, name: mean.value, f"{prefix}low": mean.low, f"{prefix}high": mean.high}


def _drift_rows(_: Path, problem: str, strategy: str) -> Sequence[SeriesRow]:
    """Plan once, and return a row a share, whose ``step_ms`` are those of all seeds; or why there is no plan."""
    problem_question = question(problem)
    answer = _plan(problem_question, strategy)
    if isinstance(answer, Failure):
        return [_failure_row(answer)]
    return [
        {
            "outcome": Outcome.OK.value,
            "undrifted_ms": answer.judged.step_ms,
            "drift_pct": share,
            "step_ms": tuple(_step_ms(problem_question, answer.plan, share, n) for n in range(SEEDS)),
        }
        for share in SHARES_PCT
    ]


def _drift_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a problem, strategy and share, with the mean over seeds; and why others have none."""
    rows = rows.reindex(columns=["problem", "strategy", *HOT_ROWS.columns])
    best = rows.groupby("problem")["undrifted_ms"].min()
    lines = []
    for row in rows.to_dict("records"):
        head = {name: row[name] for name in ("problem", "strategy", "backend", "outcome")}
        if row["outcome"] != Outcome.OK.value:
            lines.append({**head, "cause": row["cause"]})
            continue
        undrifted_ms = row["undrifted_ms"]
        ratio = _ratio("over_undrifted", [step_ms / undrifted_ms for step_ms in row["step_ms"]])
        drifted_ms = undrifted_ms * ratio["over_undrifted"]
        lines.append(
            {
                **head, "drift_pct": row["drift_pct"], "undrifted_ms": undrifted_ms, "drifted_ms": drifted_ms,
                **ratio, "over_best_fresh": drifted_ms / best[row["problem"]],
            }
        )  # fmt: skip
    columns = (
        "problem", "strategy", "backend", "outcome", "drift_pct", "undrifted_ms", "drifted_ms", *RATIO,
        "over_best_fresh", "cause",
    )  # fmt: skip
    return pd.DataFrame(lines, columns=list(columns))


HOT_ROWS = Study(
    name="hot_rows",
    title="Every strategy's plan on lookups of which 5 to 50 % of the hot rows have changed places with other rows.",
    cells=lambda quick: [
        {"problem": problem, "strategy": strategy}
        for problem in list(PROBLEMS)[: 1 if quick else None]
        for strategy in _competitors()
        if (problem, strategy) not in TOO_LONG
    ],
    judge=_drift_rows,
    summary=_drift_table,
    columns=("backend", "outcome", "drift_pct", "undrifted_ms", "step_ms", "cause"),
    plots=(
        Plot(
            title="Step on drifted lookups over the plan's undrifted step, by share of hot rows that changed places "
            "(%).",
            table="hot_rows", x="drift_pct", y="over_undrifted", series="strategy", low="low", high="high",
            facet="problem",
        ),
    ),
)  # fmt: skip


def _days_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a log and strategy, with the means over batches."""
    lines = []
    for (log, strategy), group in rows.groupby(["log", "strategy"], sort=False):
        head = {"log": log, "strategy": strategy, "backend": "simulated", "outcome": group["outcome"].iloc[0]}
        if head["outcome"] != Outcome.OK.value:
            lines.append({**head, "cause": group["cause"].iloc[0]})
            continue
        lines.append(
            {
                **head,
                **_ratio("over_undrifted", group["step_ms"] / group["undrifted_ms"]),
                **_ratio("over_fresh", group["step_ms"] / group["fresh_ms"], "fresh_"),
            }
        )
    columns = ("log", "strategy", "backend", "outcome", *RATIO, "over_fresh", "fresh_low", "fresh_high", "cause")
    return pd.DataFrame(lines, columns=list(columns))


def days_study(data: Path = Path("data"), batch_size: int = DAYS_BATCH) -> Study:
    """Make the study of the logs that are prepared below ``data``; not every user has prepared any."""

    def cells(quick: bool) -> list[Cell]:
        logs = [name for name in DAYS if (data / name / "prepared.json").is_file() and not quick]
        return grid(log=logs, strategy=_competitors())

    def judge(_: Path, log: str, strategy: str) -> list[Row]:
        older, newer = periods(log, data.resolve(), batch_size)
        answers = []
        for period in (older, newer):
            answer = _plan(days_question(period, period, 0), strategy)
            if isinstance(answer, Failure):
                return [_failure_row(answer)]
            answers.append(answer)
        was, fresh = answers
        return [
            {
                "outcome": Outcome.OK.value, "batch": batch,
                "undrifted_ms": days_question(older, older, batch).judge(was.plan).step_ms,
                "step_ms": days_question(older, newer, batch).judge(was.plan).step_ms,
                "fresh_ms": days_question(newer, newer, batch).judge(fresh.plan).step_ms,
            }
            for batch in range(BATCHES)
        ]  # fmt: skip

    return Study(
        name="days",
        title="Every strategy's plan of a prepared log's first days, judged on its last ones beside a fresh plan.",
        cells=cells,
        optional=lambda cell: True,
        judge=judge,
        summary=_days_table,
        columns=("backend", "outcome", "batch", "undrifted_ms", "step_ms", "fresh_ms", "cause"),
    )


def studies() -> Sequence[Study]:
    """Return both studies in the order that they run."""
    return HOT_ROWS, days_study()
