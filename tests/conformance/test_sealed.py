"""A trial's planner: what is not in its process, and where that process cannot go."""

from pathlib import Path

import pytest
from impostors import Honest
from impostors_reaching import LooksThroughFrames

from shardbench.base.landlock import version
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure
from shardbench.runs.conformance_problems import cases
from shardbench.runs.evaluate import Answer, RulesOnly, evaluate
from shardbench.runs.planning import pickled_now

PROBLEM = cases()[0].problem


def asked(strategy: Strategy, *closed: Path) -> Answer[None] | Failure:
    question = RulesOnly(PROBLEM)
    question.closed = closed
    return evaluate(question, strategy, Budget(plan_s=10.0), 0)


def test_frames_and_objects_tell_nothing() -> None:
    answer = asked(LooksThroughFrames())
    assert not isinstance(answer, Failure), answer
    assert answer.plan.notes == {"found": 0}


class Reads(Honest):
    """Says in its plan what became of reading a file and of writing another."""

    def __init__(self, read: Path, written: Path) -> None:
        self.read, self.written = read, written

    def plan(self, problem: Problem, budget: Budget, seed: int):
        made = super().plan(problem, budget, seed)
        made.notes["read"] = _tried(self.read.read_text)
        made.notes["written"] = _tried(lambda: self.written.write_text("mine"))
        return made


def _tried(call) -> str:
    try:
        call()
    except PermissionError:
        return "refused"
    return "done"


@pytest.mark.parametrize("closes", [True, False])
def test_closed_folders_are_out_of_reach_and_nothing_is_written(tmp_path: Path, closes: bool) -> None:
    secret = tmp_path / "batches" / "0.values"
    secret.parent.mkdir()
    secret.write_text("test lookups")
    answer = asked(Reads(secret, tmp_path / "records"), *([secret.parent] if closes else []))
    assert not isinstance(answer, Failure), answer
    stopped = "refused" if version() else "done"
    assert answer.plan.notes == {"read": stopped if closes else "done", "written": stopped}
    assert (tmp_path / "records").exists() == (not version())


class CountsItsPicklings(Honest):
    """Its pickling runs code, which here only counts."""

    times = 0

    def __getstate__(self) -> dict[str, object]:
        type(self).times += 1
        return {}


def test_strategies_are_pickled_before_there_are_test_batches() -> None:
    strategy = CountsItsPicklings()
    pickles = pickled_now([strategy])
    assert CountsItsPicklings.times == 1
    answer = evaluate(RulesOnly(PROBLEM), strategy, Budget(plan_s=10.0), 0, sent=pickles[strategy.name])
    assert not isinstance(answer, Failure)
    assert CountsItsPicklings.times == 1
    assert not isinstance(asked(strategy), Failure)
    assert CountsItsPicklings.times == 2
