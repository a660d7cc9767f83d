"""Conditions of the studies: the sequence workloads on clusters of any shape, and what a plan sends there.

FlexShard's gains over other plans are ratios theirs / ours, one row a condition and draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.cost.collectives import ALL_REDUCES, EXCHANGES, Collective, CollectiveName, collective_s
from shardbench.cost.phases import WAITS, StepPhase
from shardbench.cost.traffic import count, expect
from shardbench.datasets.sequence import CONFIG as SEQUENCE
from shardbench.datasets.yambda_like import CONFIG as YAMBDA_LIKE
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import GroupSharded, Plan, Replicated
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.model.table import DenseShape
from shardbench.studies.study import Row
from shardbench.trials.evaluate import Question, answer_of
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches
from shardbench.workloads.workload import Workload

BASE_MACHINE = "a100-40gb-2x8"
NODES = (2, 4, 16)
BASE_NODES = 4
"""A few nodes are where whole models of this size fit, 16 are 128 devices; the base is the middle one."""
LOCAL_BATCH = 1024
"""Samples a device: the mini-batch of the public single-GPU DLRM scripts (FAE's among them), in the middle, by ratio,
of 512 to 2,048; a global batch grows with the cluster."""
SHORT_LOCAL_BATCH = 256
"""Samples a device of the contrast, which all conditions had at first, with histories of HISTORY_SCALE 1."""
HISTORY_SCALE = 2.0
"""Histories of up to 40, 100 or 200, about 940 lookups a sample: the abstract speaks of long-term interests, and
this is the middle, by ratio, of 300 to 3,000, hundreds to thousands."""
DRAWS = tuple(range(6))
"""Draws of the production form's features, each with lookups of its own: the independent units. Five are the fewest
that a claim may rest on."""
DRAWS_OF_MANY = DRAWS[:2]
"""Draws on 16 nodes, where all plans of one take minutes: a range is listed there, no claim is a sample of it."""
YAMBDA, YAMBDA_DISTINCT = "yambda", "yambda-distinct"
"""The public sequence benchmark (DLRMv4): its listeners, drawn, with ids as they are and made distinct a rank."""
YAMBDA_MACHINE = "mi350x-4x8"
"""The kind of machine that one of its published runs had, in as many nodes as the base."""
YAMBDA_DRAWS = DRAWS[:5]
"""Draws of its lookups; a batch takes a minute."""
PLANNING = Budget(plan_s=600.0)
"""Wall seconds, which a busy machine stretches: TorchRec's planner alone takes minutes on 128 devices."""
COMPARED, LEAST, PLANNER = "table-row-wise", "row-wise", "torchrec-fused"
CONDITION = ("workload", "local_batch", "history_scale", "nodes", "draw")
RATIOS = (
    "traffic_x", "traffic_all_links_x", "traffic_with_copies_x", "latency_x",
    "traffic_vs_best_x", "traffic_all_links_vs_best_x", "latency_vs_best_x",
    "memory_vs_row_wise_x", "memory_vs_torchrec_x",
)  # fmt: skip

Collectives = Mapping[CollectiveName, Collective]


def cluster(nodes: int, bandwidth_ratio: float | None = None) -> Machine:
    """Return nodes of 8 A100s; ``bandwidth_ratio`` is that of the link inside a node to the one between nodes."""
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


def condition(form: str, machine: Machine, local_batch: int, **parameters: float) -> CountedQuestion:
    """Return the question of one test batch of a sequence workload, with these ``parameters``, on a machine."""
    drawn = workload(form, local_batch * machine.topology.world_size, **parameters)
    return CountedQuestion.of_batches(drawn, machine, DrawnBatches(drawn))


def workload(form: str, batch_size: int, **parameters: float) -> Workload:
    """Return a sequence workload with one test batch, and the dense model that the suite gives it."""
    if form in (YAMBDA, YAMBDA_DISTINCT):
        drawn = {"name": form, "batch_size": batch_size, "test_batches": 1, "distinct": form == YAMBDA_DISTINCT}
        shape = DenseShape(bottom=(512, 256, 512), top=(512, 256, 1))
        return YAMBDA_LIKE.model_validate({**drawn, "dense": shape, **parameters}).build(Path())
    shape = DenseShape(bottom=(512, 256, 16 if form == "taobao" else 64))
    fields = {"form": form, "name": form, "batch_size": batch_size, "test_batches": 1, "dense": shape}
    return SEQUENCE.model_validate(fields | parameters).build(Path())


class SampledQuestion(Question[Collectives]):
    """A problem whose plans are counted on some of a batch's samples a device, and their exchanges scaled up to it.

    Bytes of exchanges grow with the samples, but for the splits, which are sent once a call;
    all-reduces do not. Fewer samples differ more by device, for every plan alike.
    """

    def __init__(self, drawn: Workload, machine: Machine, local_batch: int) -> None:
        """``drawn`` has the samples that are counted, a whole number a device; plans are made for ``local_batch``."""
        world = machine.topology.world_size
        super().__init__(Problem.of(drawn.name, drawn.tables, drawn.profiles, machine, batch_size=local_batch * world))
        self._part = replace(self.problem, batch_size=drawn.batch_size)
        self._batches, self._dense = DrawnBatches(drawn), drawn.dense
        self._scale = local_batch * world / drawn.batch_size

    def judge(self, plan: Plan) -> Collectives:
        """Return the collectives of a step on the whole batch."""
        counted = count(plan, self._part, lambda i: self._batches.bags(0, i), self._dense).collectives
        growing = {*EXCHANGES} - {CollectiveName.INPUT_SPLITS}
        return {name: scaled(c, self._scale) if name in growing else c for name, c in counted.items()}


def scaled(collective: Collective, factor: float) -> Collective:
    """Return the same calls with so many times the bytes."""
    return replace(
        collective,
        sent_intra=factor * collective.sent_intra,
        sent_inter=factor * collective.sent_inter,
        received_intra=factor * collective.received_intra,
        received_inter=factor * collective.received_inter,
    )


def between_nodes_bytes(collectives: Collectives, names: Iterable[CollectiveName] = EXCHANGES) -> float:
    """Return the bytes that leave a node in the named collectives, of all ranks together."""
    return sum(float(collectives[name].sent_inter.sum()) for name in names)


def all_links_bytes(collectives: Collectives) -> float:
    """Return the bytes that leave a device in the exchanges, of all ranks together."""
    return sum(float(collectives[name].sent.sum()) for name in EXCHANGES)


def communication_ms(collectives: Collectives, machine: Machine) -> float:
    """Return the milliseconds that a step waits for all its collectives, the dense model's all-reduce among them."""
    return waits_ms(collectives, machine)["communication_ms"]


def waits_ms(collectives: Collectives, machine: Machine) -> dict[str, float]:
    """Return the milliseconds of each exchange and all-reduce, and their sum ``communication_ms``."""
    waited_s = {name: collective_s(c, machine, all_reduce=name in ALL_REDUCES) for name, c in collectives.items()}

    def phase_ms(phase: StepPhase) -> float:
        return 1e3 * sum(waited_s[name] for name in WAITS[phase])

    waits = {
        "lookups_ms": phase_ms(StepPhase.INPUT),
        "vectors_ms": phase_ms(StepPhase.OUTPUT),
        "gradients_ms": phase_ms(StepPhase.OUTPUT_BACKWARD),
    }
    waits |= {f"{name}_ms": 1e3 * waited_s[name] for name in ALL_REDUCES}
    return {"communication_ms": sum(waits.values()), **waits}


def outcome(strategy: Strategy, question: CountedQuestion) -> Row:
    """Return the row of what a strategy's plan sends, waits for and holds; sent bytes are of all ranks together.

    ``expected_communication_ms`` is that of the training profile, under which rows that are dealt
    over ranks make every rank equally busy: what the rule minimises.
    """
    problem = question.problem
    answer = answer_of(question, strategy, PLANNING)
    plan, collectives, memory = answer.plan, answer.judged.traffic.collectives, answer.planned.hbm_memory_bytes
    return {
        "strategy": strategy.name,
        **waits_ms(collectives, problem.machine),
        "expected_communication_ms": communication_ms(
            expect(plan, problem, question.dense).collectives, problem.machine
        ),
        "step_ms": answer.judged.step_ms,
        "exchanged_bytes": all_links_bytes(collectives),
        "exchanged_between_nodes_bytes": between_nodes_bytes(collectives),
        "synchronised_bytes": float(collectives[CollectiveName.ROWS_ALL_REDUCE].sent.sum()),
        "synchronised_between_nodes_bytes": between_nodes_bytes(collectives, [CollectiveName.ROWS_ALL_REDUCE]),
        "fullest_device_bytes": max(memory),
        "mean_device_bytes": float(np.mean(memory)),
        "hot_lookups_pct": _lookups_pct(plan, question, Replicated),
        "warm_lookups_pct": _lookups_pct(plan, question, GroupSharded),
    }


def _lookups_pct(plan: Plan, question: CountedQuestion, kind: type[Replicated] | type[GroupSharded]) -> float:
    tables = {table.name: i for i, table in enumerate(question.problem.tables)}
    values = [question.batches.bags(0, i).values for i in range(len(tables))]
    ranges = [(tables[s.table], s.row_start, s.row_stop) for s in plan.segments if isinstance(s.placement, kind)]
    lookups = sum(int((values[i] >= start).sum() - (values[i] >= stop).sum()) for i, start, stop in ranges)
    return 100.0 * lookups / sum(map(len, values))


def gains(rows: pd.DataFrame, ours: str, variants: Sequence[str]) -> pd.DataFrame:
    """Return ratios of every condition and draw: bytes sent, milliseconds waited and bytes held, theirs over ours.

    Against ``table-row-wise``, whose memory is the budget, and against the *best* other plan there:
    of all strategies but ours and its ``variants`` the one that waits least, in all its ratios the
    same. With copies: the synchronisation of copies between nodes is added to ours.
    """
    frames = []
    for key, group in rows.groupby(list(CONDITION), sort=True):
        plans = group.set_index("strategy")
        others = plans.drop(index=[ours, *variants], errors="ignore")
        best = str(others["communication_ms"].idxmin())
        labels = dict(zip(CONDITION, key))
        case = f"{labels['workload']}, {labels['local_batch']} samples"
        frames.append({**labels, "case": case, "best": best, **_ratios(plans, ours, best), "backend": "simulated"})
    return pd.DataFrame(frames, columns=[*CONDITION, "case", "best", *RATIOS, "backend"])


def _ratios(plans: pd.DataFrame, ours: str, best: str) -> dict[str, float]:
    between, links, waits, memory = (
        plans[name]
        for name in ("exchanged_between_nodes_bytes", "exchanged_bytes", "communication_ms", "fullest_device_bytes")
    )
    with_copies = between + plans["synchronised_between_nodes_bytes"]
    return {
        "traffic_x": between[COMPARED] / between[ours],
        "traffic_all_links_x": links[COMPARED] / links[ours],
        "traffic_with_copies_x": with_copies[COMPARED] / with_copies[ours],
        "latency_x": waits[COMPARED] / waits[ours],
        "traffic_vs_best_x": between[best] / between[ours],
        "traffic_all_links_vs_best_x": links[best] / links[ours],
        "latency_vs_best_x": waits[best] / waits[ours],
        "memory_vs_row_wise_x": memory[LEAST] / memory[ours],
        "memory_vs_torchrec_x": memory[PLANNER] / memory[ours],
    }
