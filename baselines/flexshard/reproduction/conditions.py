"""Conditions of the studies: the sequence workloads on clusters of any shape, and what a plan sends there."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from shardbench.cost.collectives import ALL_REDUCES, EXCHANGES, CollectiveName, collective_s
from shardbench.cost.phases import WAITS, StepPhase
from shardbench.cost.traffic import Traffic, expect
from shardbench.datasets.sequence import CONFIG as SEQUENCE
from shardbench.model.machine import Machine, load_machine
from shardbench.model.plan import NodeSharded, Plan, Replicated
from shardbench.model.problem import Problem
from shardbench.model.strategy import Strategy
from shardbench.model.table import DenseShape
from shardbench.runs.evaluate import answer_of
from shardbench.runs.simulate import CountedQuestion
from shardbench.studies.study import Row
from shardbench.workloads.materialise import DrawnBatches

LOCAL_BATCH = 256
BASE_MACHINE = "a100-40gb-2x8"


def cluster(nodes: int, bandwidth_ratio: float | None = None) -> Machine:
    """Nodes of 8 A100s; ``bandwidth_ratio`` slows (or speeds) the link between nodes to that part of the one inside."""
    machine = load_machine(BASE_MACHINE)
    constants = machine.constants
    if bandwidth_ratio is not None:
        constants = replace(constants, inter_bytes_per_s=constants.intra_bytes_per_s / bandwidth_ratio)
    return replace(
        machine,
        name=f"a100-40gb-{nodes}x8",
        topology=replace(machine.topology, nodes=nodes),
        constants=constants,
    )


def condition(form: str, machine: Machine, local_batch: int = LOCAL_BATCH, **parameters: float) -> CountedQuestion:
    """One test batch of a sequence workload on a machine; ``parameters`` are those of the workload."""
    shape = DenseShape(bottom=(512, 256, 16 if form == "taobao" else 64))
    world = machine.topology.world_size
    config = SEQUENCE.model_validate(
        {"form": form, "name": form, "batch_size": local_batch * world, "test_batches": 1, "dense": shape} | parameters
    )
    workload = config.build(Path())
    problem = Problem.of(form, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)
    return CountedQuestion(problem, DrawnBatches(workload), workload.dense)


def outcome(strategy: Strategy, given: CountedQuestion) -> Row:
    """What a strategy's plan sends, waits for and holds, on the test batch; sent bytes are of all ranks together.

    ``expected_communication_ms`` is that of the training profile, under which rows that are dealt
    over ranks make every rank equally busy: what the rule minimises.
    """
    problem = given.problem
    answer = answer_of(given, strategy)
    plan, traffic, memory = answer.plan, answer.judged.traffic, answer.planned.hbm_memory_bytes
    expected = _waits_ms(expect(plan, problem, given.dense), problem.machine)
    return {
        "strategy": strategy.name,
        **_waits_ms(traffic, problem.machine),
        "expected_communication_ms": expected["communication_ms"],
        "step_ms": answer.judged.step_ms,
        "exchanged_bytes": sum(float(traffic.collectives[name].sent.sum()) for name in EXCHANGES),
        "exchanged_between_nodes_bytes": sum(float(traffic.collectives[c].sent_inter.sum()) for c in EXCHANGES),
        "synchronised_bytes": float(traffic.collectives[CollectiveName.ROWS_ALL_REDUCE].sent.sum()),
        "fullest_device_bytes": max(memory),
        "mean_device_bytes": float(np.mean(memory)),
        "hot_lookups_pct": _lookups_pct(plan, given, Replicated),
        "warm_lookups_pct": _lookups_pct(plan, given, NodeSharded),
        "backend": "simulated",
    }


def _waits_ms(traffic: Traffic, machine: Machine) -> dict[str, float]:
    waited_s = {name: collective_s(collective, machine) for name, collective in traffic.collectives.items()}

    def phase_ms(phase: StepPhase) -> float:
        return 1e3 * sum(waited_s[name] for name in WAITS[phase])

    waits = {
        "lookups_ms": phase_ms(StepPhase.INPUT),
        "vectors_ms": phase_ms(StepPhase.OUTPUT),
        "gradients_ms": phase_ms(StepPhase.OUTPUT_BACKWARD),
    }
    waits |= {f"{name}_ms": 1e3 * waited_s[name] for name in ALL_REDUCES}
    return {"communication_ms": sum(waits.values()), **waits}


def _lookups_pct(plan: Plan, given: CountedQuestion, kind: type[Replicated] | type[NodeSharded]) -> float:
    tables = {table.name: i for i, table in enumerate(given.problem.tables)}
    values = [given.batches.bags(0, i).values for i in range(len(tables))]
    ranges = [(tables[s.table], s.row_start, s.row_stop) for s in plan.segments if isinstance(s.placement, kind)]
    found = sum(int((values[i] >= start).sum() - (values[i] >= stop).sum()) for i, start, stop in ranges)
    return 100.0 * found / sum(map(len, values))
