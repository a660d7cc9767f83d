"""One question, one answer: the numbers of the cost model and the oracle, and the same rules wherever it is planned."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import misbehaving
import numpy as np
import pytest
from learned_tasks import random_task
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import step_time
from shardbench.cost.traffic import count
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.task import Task
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.strategy import Budget, Move
from shardbench.records.trial import Failure, Outcome
from shardbench.studies.contests.contest import judge, place_all
from shardbench.trials import planning_process
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of, evaluate
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.trace import Split

BUDGET = Budget()
pytestmark = pytest.mark.usefixtures("unconfined")
"""But for what a planner says, which conformance/test_impostors.py tries behind the wall, the wall changes nothing."""


WORKLOAD = RandomWorkload([(100, 16), (50, 16), (400, 32)], 32)


def question(on=None):
    on = on or machine(devices=2)
    return CountedQuestion(WORKLOAD.problem(on), DrawnBatches(WORKLOAD), WORKLOAD.dense)


def test_an_answer_is_what_counting_and_cost_model_say() -> None:
    answer = answer_of(question(), get_strategy("greedy-lookup"))
    problem = answer.question.problem
    traffic = count(answer.plan, problem, lambda i: WORKLOAD.bags(Split.TEST, 0, i), WORKLOAD.dense)
    again = step_time(traffic, problem.machine, WORKLOAD.dense, problem.tables, 32)
    assert answer.judged.step_ms == again.step_ms
    assert answer.judged.embedding_ms.tolist() == again.embedding_ms.tolist()
    assert answer.judged.off_hbm_share == 0.0
    assert sum(answer.planned.hbm_memory_bytes) == 4 * (100 * 16 + 50 * 16 + 400 * 32)
    bound = answer.bounds.of(answer.plan, answer.planned.moves)
    assert bound == answer.bounds.hottest_first
    assert 0 < bound.ms <= answer.bounds.whole_tables_ms <= answer.judged.embedding_ms.max()
    assert answer.bounds.of(answer.plan, (*answer.planned.moves, Move.HOST)) is None


def test_fitting_and_planning_are_timed_apart(monkeypatch) -> None:
    # On a clock that only the strategy moves.
    now = [100.0]

    class Timed(misbehaving.Honest):
        def fit(self, problems, budget, seed):
            now[0] += 3.0

        def plan(self, problem, budget, seed):
            now[0] += 0.5
            return super().plan(problem, budget, seed)

    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0])
    monkeypatch.setattr("shardbench.trials.planning.time", clock)
    answer = evaluate(question(), Timed(), BUDGET, 0, sealed=False)
    assert (answer.spent.fit_s, answer.spent.plan_s) == (3.0, 0.5)
    assert (answer.spent.fit_cpu_s, answer.spent.plan_cpu_s) == (3.0, 0.5)
    assert (answer.planned.fit_s, answer.planned.plan_s) == (3.0, 0.5)


def test_half_the_lookups_off_hbm_are_half() -> None:
    class Half(type(get_strategy("shuffle"))):  # type: ignore[misc]
        name = "half"
        moves = frozenset({Move.TABLE, Move.UVM})

        def plan(self, problem, budget, seed):
            tiers = [Tier.HBM, Tier.HBM, Tier.UVM]
            return Plan(world_size=2, segments=whole_tables(problem.tables, [0, 1, 0], tiers))

    answer = answer_of(question(), Half())
    asked = [len(answer.question.batches.bags(0, i).values) for i in range(3)]
    assert answer.judged.off_hbm_share == pytest.approx(asked[2] / sum(asked))


def test_an_infeasible_problem_is_a_failure_with_a_reason() -> None:
    small = question(machine(devices=2, hbm=100, uvm=100))
    answer = evaluate(small, get_strategy("greedy-size"), BUDGET, 0, sealed=False)
    assert answer.outcome is Outcome.INFEASIBLE
    assert "fits on no device" in answer.cause
    with pytest.raises(BadInput, match=r"greedy-size on .*: infeasible: .* fits on no device"):
        answer_of(small, get_strategy("greedy-size"))


def test_the_parent_takes_the_time_of_a_process_of_its_own() -> None:
    answer = evaluate(question(), misbehaving.SetsTheClock(), Budget(plan_s=0.5), 0)
    assert isinstance(answer, Failure)
    assert re.fullmatch(r"planning took 0\.[6-9] s, its budget is 0\.5 s", answer.cause)
    given = evaluate(question(), misbehaving.SetsTheClock(), Budget(plan_s=5.0), 0)
    assert not isinstance(given, Failure)
    assert given.spent.plan_s > 0.3  # by its own clock none; a busy parent may hear of the beginning late
    fitted = evaluate(question(), misbehaving.Learner(), Budget(plan_s=5.0), 0)
    assert not isinstance(fitted, Failure)
    assert 0.2 <= fitted.spent.fit_s < 5.0


@pytest.mark.parametrize(
    ("deed", "outcome"), [("half an answer", Outcome.TIMEOUT), ("an answer without end", Outcome.ERROR)]
)
def test_half_an_answer_and_one_without_end_are_not_waited_for(monkeypatch, deed, outcome) -> None:
    monkeypatch.setattr(planning_process, "LATE_S", 0.5)
    answer = evaluate(question(), misbehaving.Does(deed), Budget(plan_s=0.5), 0)
    assert isinstance(answer, Failure)
    assert answer.outcome is outcome


@pytest.mark.parametrize("kind", [b"+", b"-", b"x", b""])
def test_what_a_planner_says_is_never_unpickled(tmp_path, monkeypatch, kind) -> None:
    monkeypatch.setattr(planning_process, "LATE_S", 0.5)
    made = tmp_path / "made"
    answer = evaluate(question(), misbehaving.SaysPickle(made, kind), Budget(plan_s=0.5), 0)
    assert isinstance(answer, Failure)
    assert not made.exists()


@pytest.mark.parametrize("kind", [misbehaving.WrittenLate, misbehaving.OpensLate])
def test_time_is_charged_from_handing_over_the_strategy_to_the_last_byte_of_its_answer(kind) -> None:
    answer = evaluate(question(), kind(), Budget(plan_s=0.6), 0)
    assert isinstance(answer, Failure)
    assert re.fullmatch(r"planning took 0\.[89] s, its budget is 0\.6 s", answer.cause)


def test_what_an_empty_strategy_is_charged_is_little() -> None:
    taken = [evaluate(question(), misbehaving.Honest(), Budget(plan_s=5.0), 0).spent for _ in range(3)]
    assert min(one.plan_cpu_s for one in taken) < 0.05  # starting a process and reading the problem take more


def test_a_planner_that_was_killed_is_not_asked_again_with_less(monkeypatch) -> None:
    monkeypatch.setattr(planning_process, "LATE_S", 0.3)
    asked = question()
    begun = []
    made = planning_process.PlanningProcess.make_plan

    def counted(process, budget, *arguments, **options):
        begun.append(budget.plan_s)
        return made(process, budget, *arguments, **options)

    monkeypatch.setattr(planning_process.PlanningProcess, "make_plan", counted)

    def cause(kind, plan_s, seed=0):
        answer = evaluate(asked, kind(), Budget(plan_s=plan_s, fit_s=0.1), seed)
        assert isinstance(answer, Failure)
        assert (answer.outcome, answer.phase) == (Outcome.TIMEOUT, "plan")
        return answer.cause

    assert cause(misbehaving.Hangs, 0.4) == "no result from plan after 0.4 s, killed"
    assert cause(misbehaving.Hangs, 0.1) == "not asked with 0.1 s: no result from plan after 0.4 s, killed"
    assert begun == [0.4]
    # With another seed, with as much or more, or where less is to be learned in less time, it may end.
    cause(misbehaving.Hangs, 0.1, seed=1)
    cause(misbehaving.Hangs, 0.5)
    assert cause(misbehaving.Hangs, 0.5) == "no result from plan after 0.5 s, killed"
    cause(misbehaving.HangsLearned, 0.4)
    cause(misbehaving.HangsLearned, 0.1)
    assert begun == [0.4, 0.1, 0.5, 0.5, 0.4, 0.1]


@pytest.mark.parametrize("sealed", [True, False])
def test_the_same_rules_hold_in_a_process_of_its_own_and_in_this_one(sealed) -> None:
    def ended(kind, **budget):
        answer = evaluate(question(), kind(), Budget(**{"plan_s": 2.0, **budget}), 0, sealed=sealed)
        return (answer.outcome.value, answer.rule) if isinstance(answer, Failure) else "answered"

    assert ended(misbehaving.Honest) == "answered"
    assert ended(partial(misbehaving.Does, "opens the test batches")) == ("invalid", "declared-information")
    assert ended(misbehaving.Peeks) == ("invalid", "declared-information")
    assert ended(misbehaving.NoPlan) == ("invalid", "returns-a-plan")
    assert ended(misbehaving.Undeclared) == ("invalid", "declared-moves")
    assert ended(misbehaving.BadPlan) == ("invalid", "round-trip")
    assert ended(partial(misbehaving.Does, "raises")) == ("error", None)
    assert ended(partial(misbehaving.Does, "leaves")) == ("error", None)
    assert ended(misbehaving.Slow, plan_s=0.2) == ("timeout", "finishes")
    assert ended(misbehaving.SlowFit, fit_s=0.1) == ("timeout", "finishes")
    # What this process may read it may read again.
    assert WORKLOAD.bags(Split.TEST, 0, 0).batch_size == 32


def test_the_place_of_an_exception_is_in_the_strategy_not_in_the_library_it_called() -> None:
    class Divides(misbehaving.Honest):
        def plan(self, problem, budget, seed):
            return json.loads("{")  # raises far inside another package

    answer = evaluate(question(), Divides(), BUDGET, 0, sealed=False)
    assert re.search(r"JSONDecodeError: .*\(test_evaluate\.py:\d+\)$", answer.cause)
    line = int(answer.cause.rpartition(":")[2].rstrip(")"))
    assert "far inside" in Path(__file__).read_text().splitlines()[line - 1]


def test_the_judge_is_the_oracle_on_the_counted_batch() -> None:
    base = random_task(6)
    tasks = [Task(problem=base.problem, features=base.features, expected=base.expected, counted=base.expected)] * 3
    placed = place_all(get_strategy("greedy-size"), tasks, BUDGET, 0)
    costs = SimulatedOracle(counted=True).measure(tasks[0], np.stack(placed.judged[:1]))
    judged = judge(placed.judged, tasks)
    device_ms = costs.forward_ms + costs.backward_ms
    assert judged["cost_ms"] == pytest.approx(costs.overall_ms[0])
    assert judged["kernel_ms"] == pytest.approx(device_ms.max())
    assert judged["balance"] == pytest.approx(device_ms.min() / device_ms.max())
    assert judged["bound_ms"] <= judged["cost_ms"]
    assert (judged["tasks"], judged["infeasible"]) == (3, 0)
    some = judge((None, *placed.judged[1:]), tasks)
    assert (some["tasks"], some["infeasible"]) == (2, 1)
    with pytest.raises(BadInput, match="all are infeasible"):
        judge((None,) * 3, tasks)


def test_seeded_strategies_place_each_task_by_its_own_draw() -> None:
    task = random_task(8)
    placed = place_all(get_strategy("shuffle"), [task, task], BUDGET, 0)
    assert not np.array_equal(*placed.judged)


def test_a_split_table_is_no_placement() -> None:
    with pytest.raises(BadInput, match="the plan splits tables"):
        place_all(get_strategy("row-wise"), [random_task(3)], BUDGET, 0)
