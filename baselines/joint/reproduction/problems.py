"""The problems that the planner is studied on: workloads, and how many nodes of 8 devices they are placed on.

They cover what decides between plans: few and many tables, equal and mixed widths, one and many nodes, bags and
sequences, room for all rows and not. Batches of synthetic tables are of 16,384 samples, a quarter of the usual ones:
856 tables ask for some 400 million rows in one, which every plan is counted on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.trials.evaluate import Bounds
from shardbench.trials.simulate import CountedQuestion, Simulation
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.materialise import DrawnBatches

A100 = "a100-40gb-16x8"
WIDTHS = [16, 32, 64, 128]


@dataclass(frozen=True, kw_only=True)
class PosedProblem:
    """A workload on a machine."""

    workload: Mapping[str, Any]
    nodes: int = 16
    machine: str = A100

    def load_machine(self) -> Machine:
        """Return the machine with so many nodes."""
        machine = load_machine(self.machine)
        return replace(machine, topology=replace(machine.topology, nodes=self.nodes))


def _synthetic(tables: int, nodes: int, dims: list[int] | None = None) -> PosedProblem:
    return PosedProblem(
        workload={"dataset": "synthetic", "tables": tables, "batch_size": 16_384} | ({"dims": dims} if dims else {}),
        nodes=nodes,
    )


def _rm(form: str) -> PosedProblem:
    return PosedProblem(
        workload={
            "dataset": "rm", "form": form, "row_scale": 1 / 512, "batch_size": 32, "profile_samples": 204_800,
            "dense": {"bottom": [64], "top": [1]}, "test_batches": 8,
        },
        nodes=2,
        machine="a100-24gb-512th-2x8",
    )  # fmt: skip


def _sequence(form: str, nodes: int, **rest: Any) -> PosedProblem:
    return PosedProblem(workload={"dataset": "sequence", "form": form, "batch_size": 8192 * nodes, **rest}, nodes=nodes)


PROBLEMS: Mapping[str, PosedProblem] = {
    "synthetic-40": _synthetic(40, 1),
    "synthetic-200-wide": _synthetic(200, 16),
    "mixed-200-wide": _synthetic(200, 16, WIDTHS),
    "kaggle": PosedProblem(workload={"dataset": "criteo_like", "form": "kaggle", "batch_size": 65_536}, nodes=1),
    "dcnv2": PosedProblem(workload={"dataset": "criteo_like", "form": "terabyte_dcnv2", "batch_size": 16_384}, nodes=1),
    "rm2": _rm("rm2"),
    "production": _sequence("production", 2, history_scale=2.0),
    "taobao-wide": _sequence("taobao", 16),
    "synthetic-856": _synthetic(856, 16),
}


@lru_cache(maxsize=1)
def pose(name: str, samples_share: float = 1.0) -> CountedQuestion:
    """Return a problem that is judged on test batches; the last one is kept for the next strategy.

    ``samples_share`` is the share of the train samples over which profiles, and so the order of the rows, are counted.
    """
    posed = PROBLEMS[name]
    data = {**posed.workload, "name": name}
    if samples_share < 1.0:
        data["profile_samples"] = int(int(data.get("profile_samples", 65_536)) * samples_share)
    workload = workload_config(data, f"problem {name}").build(Path())
    batches = DrawnBatches(workload, int(data.get("test_batches", 1)))
    return CountedQuestion.of_batches(workload, posed.load_machine(), batches)


class Misled(CountedQuestion):
    """A question whose planners are shown another problem than the one that their plans are judged on."""

    def __init__(self, question: CountedQuestion, problem: Problem) -> None:
        super().__init__(problem, question.batches, question.dense, question.iterations)
        self._question = question

    def judge(self, plan: Plan) -> Simulation:
        """Judge the plan on the problem as it is."""
        return self._question.judge(plan)

    def prove_bounds(self) -> Bounds:
        """Prove the bounds of the problem as it is."""
        return self._question.bounds()
