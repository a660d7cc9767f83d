"""The joint planner's studies: what they change of profiles, and whom their plans are judged on."""

from dataclasses import replace

import numpy as np
import pytest
from problems import RandomWorkload, machine

from shardbench.baselines.joint import VARIANTS, Joint
from shardbench.baselines.joint.reproduction.problems import PROBLEMS, Misled
from shardbench.baselines.joint.reproduction.studies import (
    CHANGES,
    judge_plan,
    none_known,
    other_day,
    studies,
)
from shardbench.model.strategy import Budget, Move
from shardbench.model.table import DenseShape
from shardbench.trials.discovery import get_strategy
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches


def asked() -> CountedQuestion:
    workload = RandomWorkload([(400, 16), (3000, 32), (200, 8)], 64)
    return CountedQuestion(workload.problem(machine(1, 4)), DrawnBatches(workload, 1), DenseShape(), 1)


def test_every_problem_is_of_a_known_kind() -> None:
    assert {cell["problem"] for study in studies() for cell in study.cells(False)} == {*PROBLEMS}
    assert [PROBLEMS[name].load_machine().topology.world_size for name in ("kaggle", "synthetic-856")] == [8, 128]


def test_another_day_keeps_the_rows_and_changes_how_often_tables_are_asked() -> None:
    profiles = asked().problem.profiles
    changed = other_day(profiles)
    assert [profile.counts for profile in changed] == [profile.counts for profile in profiles]
    factors = [new.mean_pooling / old.mean_pooling for new, old in zip(changed, profiles)]
    assert min(factors) < 0.97 or max(factors) > 1.03
    assert other_day(profiles) == changed


def test_where_nothing_is_known_all_rows_are_alike() -> None:
    for profile, flat in zip(asked().problem.profiles, none_known(asked().problem.profiles)):
        assert flat.lookups == profile.lookups
        assert np.ptp(flat.counts) <= 1


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_misled_planner_is_judged_on_what_really_comes(change: str) -> None:
    real = asked()
    shown = Misled(real, replace(real.problem, profiles=CHANGES[change](real.problem.profiles)))
    # Sizes are what this strategy looks at: shown otherwise, its plan and what that comes to stay the same.
    honest, misled = (judge_plan(question, "greedy-size", Budget()) for question in (real, shown))
    assert honest["step_ms"] == misled["step_ms"] and honest["step_bound_ms"] == misled["step_bound_ms"]
    plan = get_strategy("joint").plan(shown.problem, Budget(plan_s=1.0), 0)
    assert shown.judge(plan).step_ms == real.judge(plan).step_ms


def test_variants_are_the_planner_without_a_move() -> None:
    for variant in VARIANTS:
        assert variant.moves < Joint.moves or not variant.exchanges
    assert judge_plan(asked(), "joint-whole-tables", Budget(plan_s=1.0))["outcome"] == "ok"
    assert Move.COLUMNS not in VARIANTS[0].moves
