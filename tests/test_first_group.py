"""Who is clearly slow in the first group of measured trials, and what becomes of its later ones."""

import pytest
import records as make

from shardbench.model.strategy import Role
from shardbench.records.record import Record, Tiers
from shardbench.records.trial import Backend, Outcome
from shardbench.trials.first_group import CLEARLY_SLOW, FirstGroup


def first(strategy: str, step_ms: float, control_ms: float = 10.0, **changes: object) -> Record:
    return make.ok(strategy, (step_ms,) * 3 + (99.0,), changes={"control": make.control(*(control_ms,) * 4), **changes})


def again(strategy: str, repeat: int = 1) -> Record:
    return make.ok(strategy, (1.0,), repeat=repeat)


def slow(records: list[Record]) -> set[str]:
    group = FirstGroup(records)
    return {one.spec.strategy for one in records if group.clearly_slow(again(one.spec.strategy).spec)}


def test_who_is_far_behind_the_best_at_one_speed_of_the_machine_is_left_out() -> None:
    near, far = 10.0 * CLEARLY_SLOW - 0.1, 10.0 * CLEARLY_SLOW + 0.1
    # The machine was half as fast under d, which is as good as a.
    records = [first("a", 10.0), first("b", near), first("c", far), first("d", 20.0, 20.0)]
    assert slow(records) == {"c"}
    group = FirstGroup(records)
    failure = group.clearly_slow(again("c").spec)
    assert failure is not None and failure.outcome is Outcome.SKIPPED
    assert failure.cause.startswith("its first trial took 1.31 times the step of the best one")
    assert group.clearly_slow(records[2].spec) is None, "the first trial itself always runs"
    assert group.clearly_slow(again("failed").spec) is None


@pytest.mark.parametrize(
    "changes", [{"role": Role.OTHER_MODEL}, {"cores": 1, "tiers": Tiers.COUNTED}, {"control": None}]
)
def test_times_that_nothing_compares_leave_nobody_out(changes: dict[str, object]) -> None:
    assert slow([first("a", 10.0).model_copy(update=changes), first("b", 90.0)]) == set()


def test_later_trials_say_nothing() -> None:
    group = FirstGroup([first("a", 10.0)])
    group.add(make.ok("b", (99.0,), repeat=1, changes={"control": make.control(10.0)}))
    assert group.clearly_slow(again("b", 2).spec) is None
    assert first("a", 10.0).spec.backend is Backend.MEASURED
