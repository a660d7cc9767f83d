"""Studies of the joint planner: every strategy on every problem, parts taken away, budgets, wrong profiles, errors."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.cost.uncertainty import p_larger
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget
from shardbench.records.cell import Cell, Row
from shardbench.records.trial import Failure
from shardbench.runs.discovery import get_strategy
from shardbench.runs.evaluate import evaluate
from shardbench.runs.simulate import CountedQuestion, step_cells
from shardbench.studies.study import Study

from ..strategy import VARIANTS
from .problems import GROUPS, PROBLEMS, Misled, question

OURS, NOMINAL, P90, SEARCH = "joint", "joint-nominal", "joint-p90", "search"
OTHERS = (
    "greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup", "row-wise", "column-wise", "table-row-wise",
    "torchrec-table-wise", "embark", "recshard", "recshard-unseen", "flexshard",
)  # fmt: skip
LEARNED = ("autoshard", "dreamshard", "neuroshard")
LEARNED_ON = ("synthetic-40", "mixed-200", "kaggle", "dcnv2")
"""The problems of the learned systems, which learn on the problem's own tables for as long as they are given."""
PLAN_S, FIT_S = 60.0, 15.0
"""Seconds of planning, and of learning, which the suite ``measured`` gives as well."""
SHORT_S, MIDDLE_S = 1.0, 10.0
"""Shorter budgets for strategies that use what they are given."""
ALL_FORMS = ("torchrec-fused", "torchrec-2d")
ALL_FORMS_ON = ("synthetic-40", "kaggle", "dcnv2", "production", "taobao", "taobao-wide")
"""TorchRec's planner with every sharding type it has takes minutes for 200 tables or 128 devices with many."""
LARGE = ("synthetic-856", "synthetic-856-1024")
ON_LARGE = ("greedy-lookup", "row-wise", "column-wise", "table-row-wise", "torchrec-table-wise", "embark", "flexshard")
"""The others on the largest problems: counting one plan of these takes some 20 CPU seconds."""
COLUMNS = (
    "backend", "devices", "outcome", "step_ms", "step_bound_ms", "over_step_bound_pct", "over_own_bound_pct",
    "plan_cpu_s", "plan_s", "fit_s", "cause",
)  # fmt: skip


def judged(asked: CountedQuestion, strategy: str, budget: Budget) -> Row:
    """Return the row of a strategy's plan: what it comes to on the test batches, or why there is none."""
    row: dict[str, str | float | int | None] = {"backend": "simulated", "devices": asked.problem.world_size}
    answer = evaluate(asked, get_strategy(strategy), budget, 0, sealed=False)
    if isinstance(answer, Failure):
        return {**row, "outcome": answer.outcome.value, "cause": answer.cause}
    spent = answer.spent
    seconds = {"plan_cpu_s": spent.plan_cpu_s, "plan_s": spent.plan_s, "fit_s": spent.fit_s}
    return {**row, "outcome": "ok", **step_cells(answer), **seconds}


class PlannerStudy(Study):
    """Cells of problems and strategies; rows of one problem follow each other, so that it is drawn once."""

    columns = COLUMNS
    problems: ClassVar[Sequence[str]] = tuple(PROBLEMS)
    """The problems of the study, of which a quick run takes the first."""

    @abstractmethod
    def asked_on(self, problem: str, quick: bool) -> Sequence[Cell]:
        """Return what each cell on a problem has beside the problem: the strategy, and what varies."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each problem and what is asked on it; a plan later than its budget is a timeout."""
        problems = self.problems[:1] if quick else self.problems
        return [{"problem": problem, **asked} for problem in problems for asked in self.asked_on(problem, quick)]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Plan within the cell's budget, or ten seconds where it states none, and judge the plan."""
        budget = Budget(plan_s=float(cell.get("budget_s", MIDDLE_S) or 0.0), fit_s=FIT_S)
        return [judged(self.question_of(cell), str(cell["strategy"]), budget)]

    def question_of(self, cell: Cell) -> CountedQuestion:
        """Return the question that the cell's strategy is asked."""
        return question(str(cell["problem"]))

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return all rows, each with its distance to the best of the problem."""
        least = rows.groupby("problem")["step_ms"].transform("min")
        return {self.name: rows.assign(over_best_pct=100.0 * (rows["step_ms"] / least - 1.0))}


class StrategiesStudy(PlannerStudy):
    """Strategies on problems: all on 14, of the learned ones on four; ours and the search with two budgets."""

    name = "table"

    def asked_on(self, problem: str, quick: bool) -> Sequence[Cell]:
        """Return every strategy and budget on a problem."""
        timed = [(name, seconds) for name in (OURS, SEARCH) for seconds in (PLAN_S, SHORT_S)]
        asked = [*timed, *((name, PLAN_S) for name in self._others(problem, quick))]
        return [{"strategy": name, "budget_s": seconds} for name, seconds in asked]

    @staticmethod
    def _others(problem: str, quick: bool) -> tuple[str, ...]:
        if problem in LARGE:
            return ON_LARGE
        learned = LEARNED if problem in LEARNED_ON and not quick else ()
        return OTHERS + (ALL_FORMS if problem in ALL_FORMS_ON else ()) + learned


class JointAblation(PlannerStudy):
    """The planner without each of its moves, and without its exchanges."""

    name = "ablation"
    problems = (
        "synthetic-40", "synthetic-200-wide", "mixed-200-wide", "kaggle", "dcnv2", "rm2", "production", "taobao-wide",
    )  # fmt: skip

    def asked_on(self, problem: str, quick: bool) -> Sequence[Cell]:
        """Return the planner and its variants."""
        return [{"strategy": name} for name in (OURS, *(variant.name for variant in VARIANTS))]


class Budgets(PlannerStudy):
    """The planner within budgets of 0.1 to 60 seconds: what more time gains."""

    name = "budget"
    seconds = (0.1, 0.3, 1.0, 3.0, 10.0, 60.0)
    problems = ("synthetic-40", "mixed-200-wide", "dcnv2", "production", "synthetic-856")

    def asked_on(self, problem: str, quick: bool) -> Sequence[Cell]:
        """Return every budget of the planner."""
        return [{"strategy": OURS, "budget_s": seconds} for seconds in self.seconds]


SPREAD = 0.3
"""Standard deviation of the logarithm of the factor by which a table's lookups change from train day to test day."""


class WrongProfiles(PlannerStudy):
    """Plans made on other profiles than those of the train split, and judged on the same test batches.

    ``tenth``: counted over a tenth of the samples. ``other day``: every table was looked up more or less often by a
    log-normal factor, its rows in the same order. ``none``: all rows of a table alike, as a planner without profiles
    would assume.
    """

    name = "profiles"
    problems = ("synthetic-40", "mixed-200-wide", "dcnv2", "production")
    strategies = (OURS, "recshard", "flexshard", "greedy-lookup")
    profiles = ("train", "other day", "none", "tenth")

    def asked_on(self, problem: str, quick: bool) -> Sequence[Cell]:
        """Return every strategy with every kind of profile."""
        return [{"strategy": name, "profile": profile} for profile in self.profiles for name in self.strategies]

    def question_of(self, cell: Cell) -> CountedQuestion:
        """Return the question with the cell's kind of profile, whose plans are judged on the batches as they are."""
        name, kind = str(cell["problem"]), str(cell["profile"])
        asked = question(name, 0.1 if kind == "tenth" else 1.0)
        if kind not in CHANGES:
            return asked
        return Misled(asked, replace(asked.problem, profiles=CHANGES[kind](asked.problem.profiles)))

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """Return all rows, each with its distance to the same strategy's plan under the train profile."""
        train = rows[rows["profile"] == "train"].set_index(["problem", "strategy"])["step_ms"]
        known = train.reindex(pd.MultiIndex.from_frame(rows[["problem", "strategy"]])).to_numpy()
        return {self.name: rows.assign(over_train_profile_pct=100.0 * (rows["step_ms"] / known - 1.0))}


def other_day(profiles: Sequence[AccessProfile]) -> tuple[AccessProfile, ...]:
    """Return the profiles of the same rows with each table looked up more or less often."""
    factors = np.exp(np.random.default_rng(0).normal(0.0, SPREAD, len(profiles)))
    changed = []
    for profile, factor in zip(profiles, factors, strict=True):
        # The same lookups in fewer samples are more lookups a sample.
        samples = max(round(profile.samples / factor), 1)
        changed.append(replace(profile, samples=samples, present=min(profile.present, samples)))
    return tuple(changed)


def none_known(profiles: Sequence[AccessProfile]) -> tuple[AccessProfile, ...]:
    """Return profiles of as many lookups, spread over all rows of a table alike."""
    changed = []
    for profile in profiles:
        each, more = divmod(profile.lookups, profile.rows)
        counts = [(each + 1, more), (each, profile.rows - more)]
        kept = [(count, rows) for count, rows in counts if count and rows]
        changed.append(replace(profile, counts=tuple(c for c, _ in kept), row_counts=tuple(r for _, r in kept)))
    return tuple(changed)


CHANGES = {"other day": other_day, "none": none_known}


class Robust(Study):
    """The planner's ways to choose among plans, judged on test batches under draws of the model's error.

    The draws are not those that plans are chosen by. A cell has all ways, since each plan is compared with that of the
    shortest step under the constants as they are, draw by draw.
    """

    name = "robust"
    columns = (
        "strategy", "backend", "devices", "n_draws", "nominal_step_ms", "mean_step_ms", "p90_step_ms",
        "p_faster_than_nominal", "calls", "segments", "plan_cpu_s", "plan_s",
    )  # fmt: skip
    uses = (NOMINAL, OURS, P90)
    problems = ("synthetic-40", "mixed-200-wide", "kaggle", "dcnv2", "production", "taobao-wide", *GROUPS)
    """Few and many tables, on one node and on many, bags and sequences, GPUs and CPUs; each is counted in seconds."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Return one cell for each problem."""
        return [{"problem": problem} for problem in (self.problems[:1] if quick else self.problems)]

    def run(self, cell: Cell, folder: Path) -> Sequence[Row]:
        """Plan in each way within ten seconds, and judge all plans; raises BadInput where one has no plan."""
        asked, rows, nominal = question(str(cell["problem"])), list[Row](), tuple[float, ...]()
        for name in self.uses:
            answer = evaluate(asked, get_strategy(name), Budget(plan_s=MIDDLE_S, fit_s=FIT_S), 0, sealed=False)
            if isinstance(answer, Failure):
                raise BadInput(f"{name} has no plan on {cell['problem']}: {answer.cause}")
            drawn = answer.judged.draws(asked.problem, asked.dense)
            if drawn is None:
                raise BadInput(f"machine {asked.problem.machine.name} states no errors: nothing can be drawn")
            nominal = nominal or drawn.step_ms
            rows.append(
                {
                    "strategy": name,
                    "backend": "simulated",
                    "devices": asked.problem.world_size,
                    "n_draws": len(drawn.step_ms),
                    "nominal_step_ms": answer.judged.step_ms,
                    "mean_step_ms": float(np.mean(drawn.step_ms)),
                    "p90_step_ms": float(np.percentile(drawn.step_ms, 90.0)),
                    "p_faster_than_nominal": p_larger([nominal], [drawn.step_ms]),
                    "calls": sum(sum(sent.calls[:5]) for sent in answer.judged.traffic.collectives.values()),
                    "segments": len(answer.plan.segments),
                    "plan_cpu_s": answer.spent.plan_cpu_s,
                    "plan_s": answer.spent.plan_s,
                }
            )
        return rows


def studies() -> Sequence[Study]:
    """Return all studies of the planner in the order that they run."""
    return (StrategiesStudy(), JointAblation(), Budgets(), WrongProfiles(), Robust())
