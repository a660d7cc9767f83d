"""One strategy compared in process, and task contests: the same numbers as the cost model and the oracle give."""

import numpy as np
import pytest
from learned_tasks import random_task
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import step_time
from shardbench.cost.traffic import count
from shardbench.model.discovery import get_strategy
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.strategy import Budget
from shardbench.runs.compare import Question
from shardbench.studies.contest import Placed, judge, place_all, placement_of
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task
from shardbench.workloads.trace import Split

BUDGET = Budget()


@pytest.fixture
def question() -> Question:
    return Question.of(RandomWorkload([(100, 16), (50, 16), (400, 32)], 32), machine(devices=2))


def test_an_answer_is_what_counting_and_cost_model_say(question: Question) -> None:
    answer = question.ask("greedy-lookup")
    assert not isinstance(answer, str)
    workload = question.workload
    traffic = count(answer.plan, question.problem, lambda i: workload.bags(Split.TEST, 0, i), workload.dense)
    again = step_time(traffic, question.problem.machine, workload.dense, question.problem.tables, 32)
    assert answer.time.step_ms == again.step_ms
    assert answer.slowest_ms == again.embedding_ms.max()
    assert answer.spread_ms == pytest.approx(np.std(again.embedding_ms))
    assert answer.off_hbm_share == 0.0
    assert sum(answer.hbm_memory_bytes) == 4 * (100 * 16 + 50 * 16 + 400 * 32)


def test_half_the_lookups_off_hbm_are_half(question: Question) -> None:
    class Half(type(get_strategy("shuffle"))):  # type: ignore[misc]
        name = "half"

        def plan(self, problem, budget, seed):
            tiers = [Tier.HBM, Tier.HBM, Tier.UVM]
            return Plan(world_size=2, segments=whole_tables(problem.tables, [0, 1, 0], tiers))

    answer = question.ask(Half())
    assert not isinstance(answer, str)
    asked = [len(question.batches[i].values) for i in range(3)]
    assert answer.off_hbm_share == pytest.approx(asked[2] / sum(asked))


def test_an_infeasible_problem_is_a_reason(question: Question) -> None:
    answer = question.on(machine(devices=2, hbm=100, uvm=100)).ask("greedy-size")
    assert isinstance(answer, str)
    assert "fits on no device" in answer


def test_the_judge_is_the_oracle_on_the_counted_batch() -> None:
    base = random_task(6)
    tasks = [Task(problem=base.problem, features=base.features, expected=base.expected, counted=base.expected)] * 3
    placed = place_all(get_strategy("greedy-size"), tasks, BUDGET, 0)
    costs = SimulatedOracle(counted=True).measure(tasks[0], np.stack(placed.placements[:1]))
    judged = judge(placed, tasks)
    device_ms = costs.forward_ms + costs.backward_ms
    assert judged["cost_ms"] == pytest.approx(costs.overall_ms[0])
    assert judged["kernel_ms"] == pytest.approx(device_ms.max())
    assert judged["balance"] == pytest.approx(device_ms.min() / device_ms.max())
    assert judged["bound_ms"] <= judged["cost_ms"]
    assert (judged["tasks"], judged["infeasible"]) == (3, 0)
    some = judge(Placed(placements=(None, *placed.placements[1:]), plan_cpu_s=0.0), tasks)
    assert (some["tasks"], some["infeasible"]) == (2, 1)
    with pytest.raises(BadInput, match="all are infeasible"):
        judge(Placed(placements=(None,) * 3, plan_cpu_s=0.0), tasks)


def test_seeded_strategies_place_each_task_by_its_own_draw() -> None:
    task = random_task(8)
    placed = place_all(get_strategy("shuffle"), [task, task], BUDGET, 0)
    assert not np.array_equal(*placed.placements)


def test_a_split_table_is_no_placement() -> None:
    task = random_task(3)
    with pytest.raises(BadInput, match="row-wise splits tables"):
        placement_of(get_strategy("row-wise").plan(task.problem, BUDGET, 0), task, get_strategy("row-wise"))
