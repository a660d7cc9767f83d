"""Who is measured no more: the clearly slow after the first group, and in a race whoever noise does not explain."""

import math
from collections.abc import Mapping

import pytest
import records as make

from shardbench.base.statistics import t_quantile
from shardbench.model.strategy import Role
from shardbench.records.record import Record, Tiers
from shardbench.records.trial import LEFT_OUT, Backend, Failure, Outcome
from shardbench.trials.elimination import CLEARLY_SLOW, Elimination


def first(strategy: str, step_ms: float, control_ms: float = 10.0, **changes: object) -> Record:
    return make.ok(strategy, (step_ms,) * 3 + (99.0,), changes={"control": make.control(*(control_ms,) * 4), **changes})


def again(strategy: str, repeat: int = 1) -> Record:
    return make.ok(strategy, (1.0,), repeat=repeat)


def slow(records: list[Record]) -> set[str]:
    group = Elimination(records)
    return {one.spec.strategy for one in records if group.left_out(again(one.spec.strategy).spec)}


def test_who_is_far_behind_the_best_at_one_speed_of_the_machine_is_left_out() -> None:
    near, far = 10.0 * CLEARLY_SLOW - 0.1, 10.0 * CLEARLY_SLOW + 0.1
    # The machine was half as fast under d, which is as good as a.
    records = [first("a", 10.0), first("b", near), first("c", far), first("d", 20.0, 20.0)]
    assert slow(records) == {"c"}
    group = Elimination(records)
    failure = group.left_out(again("c").spec)
    assert failure is not None and failure.outcome is Outcome.SKIPPED
    assert failure.cause.startswith("its first trial took 1.31 times the step of the best one")
    assert group.left_out(records[2].spec) is None, "the first trial itself always runs"
    assert group.left_out(again("failed").spec) is None


@pytest.mark.parametrize(
    "changes", [{"role": Role.OTHER_MODEL}, {"cores": 1, "tiers": Tiers.COUNTED}, {"control": None}]
)
def test_times_that_nothing_compares_leave_nobody_out(changes: dict[str, object]) -> None:
    assert slow([first("a", 10.0).model_copy(update=changes), first("b", 90.0)]) == set()


def test_later_trials_say_nothing() -> None:
    group = Elimination([first("a", 10.0)])
    group.add(make.ok("b", (99.0,), repeat=1, changes={"control": make.control(10.0)}))
    assert group.left_out(again("b", 2).spec) is None
    assert first("a", 10.0).spec.backend is Backend.MEASURED


def raced(ratios: Mapping[str, float], wobble: float, groups: int, **failing: Outcome) -> tuple[list[str], Elimination]:
    """What runs in each group of a race of these ratios to the control, which are by turns above and below."""
    race, ran = Elimination([], is_race=True), []
    for group in range(groups):
        names = ""
        for name, ratio in ratios.items():
            if race.left_out(make.spec(name, repeat=group)) is None:
                names += name
                step_ms = 10.0 * ratio * math.exp(wobble * (-1) ** group)
                trial = make.ok(name, (step_ms,) * 3, repeat=group, changes={"control": make.control(10.0, 10.0, 10.0)})
                race.add(make.failed(failing[name], name, repeat=group) if name in failing else trial)
        ran.append(names)
    return ran, race


def cause(race: Elimination, name: str) -> str:
    failure = race.left_out(make.spec(name, repeat=9))
    assert failure is not None
    return failure.cause


def test_who_is_slower_than_repeats_differ_drops_out_of_a_race_and_stays_out() -> None:
    # Two of each of three have a deviation of 0.02 sqrt 2 after two groups: three degrees of freedom.
    least = t_quantile(0.975, 3) * 0.02 * math.sqrt(2.0)
    assert math.log(1.01) < least < math.log(1.2)
    ran, race = raced({"s": 1.2, "n": 1.01, "b": 1.0, "w": CLEARLY_SLOW + 0.01}, 0.02, 4)
    assert ran == ["snbw", "snb", "nb", "nb"]
    assert cause(race, "s").startswith("its step is 20 % longer than that of b")
    assert cause(race, "w").startswith("its first trial took 1.31 times")
    # Nobody else drops out in a suite that is no race.
    assert Elimination([first("b", 10.0), first("s", 12.0), again("s")]).left_out(again("s", 2).spec) is None


def test_a_race_is_over_when_the_rest_tie_or_one_is_left() -> None:
    ran, race = raced({"a": 1.0, "b": 1.0, "c": 1.1}, 0.0, 4)
    assert ran == ["abc", "abc", "", ""]
    assert cause(race, "a") == cause(race, "b") == "the race is over: more trials would tell apart less than 1 %"
    ran, race = raced({"a": 1.0, "b": 2.0}, 0.0, 4)
    assert ran == ["ab", "a", "", ""], "one that is left runs twice: a single trial has no interval"
    assert cause(race, "a") == "the race is over: no other is left"


def test_a_failure_drops_out_of_a_race() -> None:
    ran, race = raced({"a": 1.0, "b": 1.0, "c": 1.0}, 0.02, 3, c=Outcome.OOM)
    assert ran == ["abc", "ab", "ab"]
    assert cause(race, "c") == "its trial before ended in oom"


def test_what_is_on_record_decides_in_a_race_and_a_group_waits_for_the_one_before() -> None:
    out = make.failed(Outcome.SKIPPED, "c", repeat=1)
    out = out.model_copy(update={"failure": Failure(outcome=Outcome.SKIPPED, cause="was slow", phase=LEFT_OUT)})
    race = Elimination([first("a", 10.0), first("b", 10.1), out], is_race=True)
    assert cause(race, "c") == "was slow"
    assert not race.waits(again("a").spec)
    to_run = Failure(outcome=Outcome.SKIPPED, cause="left to torchrun", phase="start")
    waiting = make.ok("a", (1.0,), repeat=1).model_copy(update={"outcome": Outcome.SKIPPED, "failure": to_run})
    assert waiting.predicted is not None
    race.add(waiting)
    assert not race.waits(again("b").spec)
    assert race.waits(again("b", 2).spec)
