"""Studies of the joint planner: parts taken away, budgets, wrong profiles. The leaderboard compares it with others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.records.cell import Cell, Row
from shardbench.records.trial import Failure
from shardbench.studies.study import Study, grid
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import evaluate
from shardbench.trials.simulate import CountedQuestion, step_cells

from .. import VARIANTS
from .problems import Misled, pose

MIDDLE_S = 10.0
"""Seconds of planning where budgets do not vary."""
COLUMNS = (
    "backend", "devices", "outcome", "step_ms", "step_bound_ms", "over_step_bound_pct", "over_own_bound_pct",
    "plan_cpu_s", "plan_s", "cause",
)  # fmt: skip


def judge_plan(question: CountedQuestion, strategy: str, budget: Budget) -> Row:
    """Return the row of a strategy's plan: what it comes to on the test batches, or why there is none."""
    row: Row = {"devices": question.problem.world_size}
    answer = evaluate(question, get_strategy(strategy), budget, 0, sealed=False)
    if isinstance(answer, Failure):
        return {**row, "outcome": answer.outcome.value, "cause": answer.cause}
    spent = answer.spent
    return {**row, "outcome": "ok", **step_cells(answer), "plan_cpu_s": spent.plan_cpu_s, "plan_s": spent.plan_s}


def plan_and_judge(_: Path, problem: str, strategy: str, budget_s: float = MIDDLE_S, profile: str = "train") -> Row:
    """Plan within the budget on a kind of profile, and judge the plan on the batches as they are."""
    question = pose(problem, 0.1 if profile == "tenth" else 1.0)
    if profile in CHANGES:
        question = Misled(question, replace(question.problem, profiles=CHANGES[profile](question.problem.profiles)))
    return judge_plan(question, strategy, Budget(plan_s=budget_s))


def over_best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows, each with its distance to the best of the problem."""
    least = rows.groupby("problem")["step_ms"].transform("min")
    return rows.assign(over_best_pct=100.0 * (rows["step_ms"] / least - 1.0))


def _planner_study(
    *,
    name: str,
    title: str,
    problems: Sequence[str],
    cells: Sequence[Cell],
    summary: Callable[[pd.DataFrame], pd.DataFrame] = over_best,
    strategies: Sequence[str] = (),
) -> Study:
    """Make a study of problems, of which a quick run takes the first; a plan later than its budget is a timeout.

    ``cells`` are what each cell on a problem has beside it: the strategy, and what varies. Cells of one problem follow
    each other, so that it is drawn once.
    """
    return Study(
        name=name, title=title, columns=COLUMNS, judge=plan_and_judge, summary=summary, strategies=strategies,
        cells=lambda quick: [
            {"problem": problem, **cell}
            for problem in problems[: 1 if quick else None]
            for cell in cells
        ],
    )  # fmt: skip


ABLATION = _planner_study(
    name="ablation",
    title="The planner without each of its moves, and without its exchanges.",
    problems=(
        "synthetic-40", "synthetic-200-wide", "mixed-200-wide", "kaggle", "dcnv2", "rm2", "production", "taobao-wide",
    ),
    cells=grid(strategy=("joint", *(variant.name for variant in VARIANTS))),
)  # fmt: skip
BUDGETS = _planner_study(
    name="budget",
    title="The planner within budgets of 0.1 to 60 seconds: what more time gains.",
    problems=("synthetic-40", "mixed-200-wide", "dcnv2", "production", "synthetic-856"),
    cells=grid(strategy=["joint"], budget_s=(0.1, 0.3, 1.0, 3.0, 10.0, 60.0)),
)


def over_train(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows, each with its distance to the same strategy's plan under the train profile."""
    train = rows[rows["profile"] == "train"].set_index(["problem", "strategy"])["step_ms"]
    train_ms = train.reindex(pd.MultiIndex.from_frame(rows[["problem", "strategy"]])).to_numpy()
    return rows.assign(over_train_profile_pct=100.0 * (rows["step_ms"] / train_ms - 1.0))


PROFILED = ("joint", "recshard", "flexshard", "greedy-lookup")
PROFILES = _planner_study(
    name="profiles",
    title="Plans made on other profiles than those of the train split, and judged on the same test batches. `tenth`: "
    "counted over a tenth of the samples. `other day`: every table was looked up more or less often by a log-normal "
    "factor, its rows in the same order. `none`: all rows of a table alike, as a planner without profiles would "
    "assume.",
    problems=("synthetic-40", "mixed-200-wide", "dcnv2", "production"),
    cells=[
        {"strategy": strategy, "profile": profile}
        for profile in ("train", "other day", "none", "tenth")
        for strategy in PROFILED
    ],
    summary=over_train,
    strategies=PROFILED,
)
SPREAD = 0.3
"""Standard deviation of the logarithm of the factor by which a table's lookups change from train day to test day."""


def other_day(profiles: Sequence[AccessProfile]) -> tuple[AccessProfile, ...]:
    """Return the profiles of the same rows with each table looked up more or less often."""
    factors = np.exp(np.random.default_rng(0).normal(0.0, SPREAD, len(profiles)))
    day = []
    for profile, factor in zip(profiles, factors, strict=True):
        # The same lookups in fewer samples are more lookups a sample.
        samples = max(round(profile.samples / factor), 1)
        day.append(replace(profile, samples=samples, present=min(profile.present, samples)))
    return tuple(day)


def none_known(profiles: Sequence[AccessProfile]) -> tuple[AccessProfile, ...]:
    """Return profiles of as many lookups, spread over all rows of a table alike."""
    flat = []
    for profile in profiles:
        each, more = divmod(profile.lookups, profile.rows)
        counts = [(each + 1, more), (each, profile.rows - more)]
        runs = [(count, number) for count, number in counts if count and number]
        new, rows = tuple(c for c, _ in runs), tuple(r for _, r in runs)
        flat.append(replace(profile, counts=new, row_counts=rows, held_out=None))
    return tuple(flat)


CHANGES = {"other day": other_day, "none": none_known}


def studies() -> Sequence[Study]:
    """Return all studies of the planner in the order that they run."""
    return (ABLATION, BUDGETS, PROFILES)
