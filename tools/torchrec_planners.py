"""ShardBenchPlanner beside TorchRec's own planner: the same module, sharders, topology, constraints and reservation.

``python tools/torchrec_planners.py FOLDER [NAME ...]`` writes these files, or those that are named:

- ``plans.csv``: random modules of several sizes, with memory to spare and without, planned by both: CPU seconds (median
  and range of repeats), the step that the cost model predicts for either plan on the same drawn lookups, the fullest
  device, tables whose constraint a plan breaks, and whose plan ours took. ShardBenchPlanner asks TorchRec's planner
  too, so that its seconds are TorchRec's and its own, which ``own_cpu_s`` are.
- ``told.csv``: TorchRec's planner asked for plans of the simulated problems of the suites ``quick`` and ``dlrm_v4`` on
  at most 16 devices, and told more each time (``TOLD``): the step that the cost model predicts for each plan on the
  test batches.
- ``measured.csv``: the tables of the suite ``measured``, planned for two gloo ranks by both, and the two plans' steps
  in turn in the same ranks, several process groups one after the other.
"""

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table_files import rows_csv, write_tables
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.constants import (
    CROSS_NODE_BANDWIDTH,
    DDR_MEM_BW,
    HBM_MEM_BW,
    HBM_TO_DDR_MEM_BW,
    INTRA_NODE_BANDWIDTH,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardbench.base.errors import Infeasible
from shardbench.base.statistics import log_mean
from shardbench.baselines.torchrec_planner import TorchRecFused
from shardbench.baselines.torchrec_planner.planner import ask
from shardbench.calibrate.correction import question_of
from shardbench.engine.described import UVM_DIVISOR, describe, hardware
from shardbench.engine.measure import measure, rank_job
from shardbench.engine.torchrec.sharding import translate
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.validate import validate
from shardbench.records.trial import Backend
from shardbench.torchrec import ShardBenchPlanner
from shardbench.trials.simulate import simulate
from shardbench.trials.suite import load_suite
from shardbench.workloads.materialise import materialise

GIB = 1 << 30
KERNELS = ["fused", "dense"]
REPEATS = 3
GROUPS = 4
"""Process groups of the measured comparison: half of them with the planners' roles changed."""
RESERVED = 0.15
"""Share of a device's memory that is kept free, which is TorchRec's own default."""
BATCH = 512
"""Number of samples that each rank takes."""
TOLD = ("capacities", "lengths too", "bandwidths too", "coefficients too")
"""What TorchRec's planner is told of a problem.

At first it takes 512 samples a rank and a lookup each, and is offered no host memory; then the batch and lengths of
the problem, on TorchRec's own bandwidths; then those of the machine; and at last the coefficients of its lookups.
"""
MOST_DEVICES = 16


@dataclass(frozen=True)
class Case:
    """A module and the devices it is planned for; ``filled`` is the weights' share of what the reservation leaves."""

    tables: int
    nodes: int
    ranks: int
    filled: float


CASES = [
    Case(tables, nodes, ranks, filled)
    for tables, nodes, ranks in ((20, 1, 8), (100, 1, 8), (100, 2, 16))
    for filled in (0.3, 0.6, 0.75, 0.85, 0.9, 0.95)
]


@dataclass(frozen=True)
class Inputs:
    """The module, topology and constraints that both planners are asked with."""

    module: torch.nn.Module
    topology: TorchRecTopology
    constraints: dict[str, ParameterConstraints]
    batch_size: int
    reserved: float

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of either planner; a reservation keeps what it reserved last, so each has its own."""
        return {
            "topology": self.topology,
            "batch_size": self.batch_size,
            "constraints": self.constraints,
            "storage_reservation": FixedPercentageStorageReservation(percentage=self.reserved),
        }

    def torchrecs(self) -> EmbeddingShardingPlanner:
        """Return TorchRec's planner, with its own proposers."""
        return EmbeddingShardingPlanner(**self.arguments(), stats=[], debug=False)

    def broken_constraints(self, sharding: dict[str, Any]) -> int:
        """Count the tables that are not sharded as their constraint says."""
        types = {name: constraint.sharding_types for name, constraint in self.constraints.items()}
        return sum(bool(types[name]) and how.sharding_type not in types[name] for name, how in sharding.items())


def random_module(case: Case) -> Inputs:
    """Make tables of log-uniform rows and pooling factors, of which a few are held to one sharding type."""
    rng = np.random.default_rng(case.tables)
    configs, constraints = [], {}
    for i in range(case.tables):
        name, rows = f"t{i}", int(np.exp(rng.uniform(np.log(1e3), np.log(3e6))))
        dim = int(rng.choice([16, 32, 64, 128]))
        configs.append(EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[f"f{i}"]))
        pooling = float(np.exp(rng.uniform(0, np.log(50))))
        constraints[name] = ParameterConstraints(pooling_factors=[pooling], compute_kernels=KERNELS)
    for i in range(0, case.tables, 10):
        constraints[f"t{i}"].sharding_types = ["row_wise"]
        constraints[f"t{i + 1}"].sharding_types = ["table_wise"]
    weights = sum(4 * config.num_embeddings * config.embedding_dim for config in configs)
    capacity = int(weights / case.filled / case.ranks / (1 - RESERVED))
    topology = TorchRecTopology(
        world_size=case.ranks,
        local_world_size=case.ranks // case.nodes,
        compute_device="cuda",
        hbm_cap=capacity,
        ddr_cap=0,
    )
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return Inputs(torch.nn.ModuleDict({"tables": tables}), topology, constraints, BATCH, RESERVED)


def fullest_bytes(sharding: dict[str, Any], inputs: Inputs, ranks: int) -> int:
    """Return the bytes of fp32 weights on the rank that has most; a table without shards is on all of them."""
    sizes = np.zeros(ranks, dtype=np.int64)
    for config in inputs.module["tables"].embedding_bag_configs():  # type: ignore[index]
        how = sharding[config.name]
        if how.sharding_spec is None:
            sizes += 4 * config.num_embeddings * config.embedding_dim
            continue
        for rank, shard in zip(how.ranks, how.sharding_spec.shards, strict=True):
            sizes[rank] += 4 * shard.shard_sizes[0] * shard.shard_sizes[1]
    return int(sizes.max())


class Timed(ShardBenchPlanner):
    """The planner, and the CPU seconds that TorchRec's planner took of its last plan's."""

    theirs_s = 0.0

    def _theirs(self, *arguments: Any) -> Any:
        start = time.process_time()
        answer = super()._theirs(*arguments)
        self.theirs_s = time.process_time() - start
        return answer


def plans(cases: Sequence[Case] = CASES, repeats: int = REPEATS) -> Iterator[dict[str, object]]:
    """Yield two rows for each case, one for each planner; the row of a planner without a plan says why."""
    _warm_up()
    for case in cases:
        inputs = random_module(case)
        seconds: dict[str, list[float]] = {"torchrec": [], "shardbench": [], "own": []}
        sharding_of: dict[str, dict[str, Any] | str] = {}
        for _ in range(repeats):
            # A planner is made anew: each keeps what it enumerated.
            ours = Timed(**inputs.arguments())
            for name, planner in (("torchrec", inputs.torchrecs()), ("shardbench", ours)):
                start = time.process_time()
                try:
                    plan = planner.plan(inputs.module, [EmbeddingBagCollectionSharder()])
                    sharding_of[name] = dict(plan.plan["tables"])
                except PlannerError as error:
                    sharding_of[name] = " ".join(str(error).partition("Possible solutions")[0].split())[:120]
                seconds[name].append(time.process_time() - start)
            seconds["own"].append(seconds["shardbench"][-1] - ours.theirs_s)
        for name, sharding in sharding_of.items():
            own_s = statistics.median(seconds["own"]) if name == "shardbench" else None
            yield {
                "tables": case.tables, "nodes": case.nodes, "ranks": case.ranks,
                "memory": f"{100 * case.filled:.0f} % full", "planner": name,
                "outcome": "infeasible" if isinstance(sharding, str) else "ok", "n": repeats,
                "plan_cpu_s": round(statistics.median(seconds[name]), 3),
                "least_cpu_s": round(min(seconds[name]), 3), "most_cpu_s": round(max(seconds[name]), 3),
                "own_cpu_s": None if own_s is None else round(own_s, 3), **_judged(case, inputs, name, sharding, ours),
            }  # fmt: skip


def _warm_up() -> None:
    inputs = random_module(Case(10, 1, 2, 0.3))
    for planner in (inputs.torchrecs(), ShardBenchPlanner(**inputs.arguments())):
        planner.plan(inputs.module, [EmbeddingBagCollectionSharder()])


def _judged(
    case: Case, inputs: Inputs, name: str, sharding: dict[str, Any] | str, ours: ShardBenchPlanner
) -> dict[str, object]:
    judged: dict[str, object] = dict.fromkeys(("step_ms", "fullest_pct", "constraints_broken", "taken", "cause"))
    if isinstance(sharding, str):
        return judged | {"cause": sharding}
    if ours.answer is not None:
        question: Any = ours.answer.question
        plan = ours.answer.plan if name == "shardbench" else translate(sharding, question.problem)
        judged["step_ms"] = round(simulate(plan, question.problem, question.batches, question.dense, 1).step_ms, 5)
    usable_bytes = (1 - RESERVED) * inputs.topology.devices[0].storage.hbm
    return judged | {
        "fullest_pct": round(100 * fullest_bytes(sharding, inputs, case.ranks) / usable_bytes, 1),
        "constraints_broken": inputs.broken_constraints(sharding),
        "taken": ours.taken if name == "shardbench" else None,
    }


def inputs_of(problem: Problem) -> Inputs:
    """Return the problem as a module. CPU machines pass for CUDA ones: TorchRec's planner offers these more types."""
    configs = [
        EmbeddingBagConfig(
            name=table.name, num_embeddings=table.rows, embedding_dim=table.dim, feature_names=[f"f_{table.name}"]
        )
        for table in problem.tables
    ]
    constraints = {
        table.name: ParameterConstraints(
            pooling_factors=[profile.mean_pooling],
            compute_kernels=KERNELS,
            sharding_types=["table_wise", "column_wise", "row_wise", "data_parallel"],
        )
        for table, profile in zip(problem.tables, problem.profiles)
    }
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    module = torch.nn.ModuleDict({"tables": tables})
    return Inputs(module, describe(problem), constraints, problem.batch_size // problem.world_size, 0.0)


def measured(groups: int = GROUPS, iterations: int = 20) -> Iterator[dict[str, object]]:
    """Yield a row for each plan with its steps in all process groups; ours with the tables' profiles and without.

    Our plans step in turn in the same ranks as TorchRec's; either steps first in half of the process groups.
    """
    suite = load_suite("measured")
    job = next(job for job in suite.jobs if (job.workload, job.machine) == ("mixed", "cpu-1x2"))
    workload = suite.workload(job).build(Path())
    problem = question_of(workload, job).problem
    plan_of = _plans_of(problem)
    for plan, _ in plan_of.values():
        validate(plan, problem, frozenset(Move))
    theirs, _ = plan_of["torchrec"]
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        source = materialise(workload, folder / "batches", range(2))
        for name, (plan, plan_s) in plan_of.items():
            ours_ms, theirs_ms = list[float](), list[float]()
            for number in range(groups):
                pair = (plan, theirs) if number % 2 == 0 else (theirs, plan)
                job_of_pair = rank_job(
                    pair[0], problem, workload.dense, source.folder, control=pair[1], warmup=3, iterations=iterations,
                    seed=0, timeout_s=300,
                )  # fmt: skip
                result = measure(job_of_pair, folder / f"{name}-{number}")
                both = float(np.median(result.timing.step_ms)), float(np.median(result.control_ms))
                own_ms, other_ms = both if number % 2 == 0 else both[::-1]
                ours_ms.append(own_ms)
                theirs_ms.append(other_ms)
            yield {
                "workload": "mixed", "machine": "cpu-1x2", "planner": name, "n": groups, "iterations": iterations,
                "plan_cpu_s": round(plan_s, 3), **_mean("step_ms", ours_ms),
                **_mean("of_torchrecs", np.divide(ours_ms, theirs_ms).tolist()),
                "predicted_ms": round(simulate(plan, problem, source, workload.dense, 2).step_ms, 4),
            }  # fmt: skip


def _plans_of(problem: Problem) -> dict[str, tuple[Plan, float]]:
    """Return each planner's plan, and the CPU seconds that it took."""
    inputs = inputs_of(problem)
    plan_of: dict[str, tuple[Plan, float]] = {}
    for name, profiles in (("shardbench", None), ("shardbench with profiles", problem.profiles)):
        table_profiles = {} if profiles is None else {t.name: p for t, p in zip(problem.tables, profiles)}
        planner = ShardBenchPlanner(**inputs.arguments(), machine=problem.machine, profiles=table_profiles)
        start = time.process_time()
        planner.plan(inputs.module, [EmbeddingBagCollectionSharder()])
        assert planner.answer is not None
        plan_of[name] = planner.answer.plan, time.process_time() - start
    start = time.process_time()
    sharding = inputs.torchrecs().plan(inputs.module, [EmbeddingBagCollectionSharder()]).plan["tables"]
    seconds = time.process_time() - start
    return plan_of | {"torchrec": (translate(sharding, problem), seconds)}


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    mean = log_mean(values)
    ends = {"": mean.value, "_low": mean.low, "_high": mean.high}
    return {f"{name}{end}": round(value or 0.0, 4) for end, value in ends.items()}


def told() -> Iterator[dict[str, object]]:
    """Yield a row for each problem and what TorchRec's planner is told of it."""
    for suite in map(load_suite, ("quick", "dlrm_v4")):
        for job in suite.jobs:
            machine = job.load_machine()
            if job.backend is not Backend.SIMULATED or machine.topology.world_size > MOST_DEVICES:
                continue
            question = question_of(suite.workload(job).build(Path()), job)
            problem = question.problem
            for what, asked in zip(TOLD, (_by_default(problem), _by_default(problem), problem, problem)):
                config = hardware(machine) if what == TOLD[-1] else None
                row: dict[str, object] = {
                    "suite": suite.name, "workload": problem.name, "machine": machine.name,
                    "precision": problem.precision.value, "exchange": problem.exchange.value, "told": what,
                }  # fmt: skip
                try:
                    sharding = ask(asked, replace(TorchRecFused.offer, blind=what == TOLD[0]), config=config)
                    step_ms = question.judge(translate(sharding, problem)).step_ms
                    yield row | {"outcome": "ok", "step_ms": round(step_ms, 5)}
                except Infeasible as error:
                    yield row | {"outcome": "infeasible", "cause": str(error)[:120]}


def _by_default(problem: Problem) -> Problem:
    """Return the problem on a machine with the bandwidths that TorchRec takes where nobody states any."""
    constants = replace(
        problem.machine.constants,
        intra_bytes_per_s=1e3 * INTRA_NODE_BANDWIDTH,
        inter_bytes_per_s=1e3 * CROSS_NODE_BANDWIDTH,
        hbm_bytes_per_s=1e3 * HBM_MEM_BW,
        host_bytes_per_s=1e3 * DDR_MEM_BW,
        uvm_bytes_per_s=1e3 * HBM_TO_DDR_MEM_BW / UVM_DIVISOR,
    )
    return replace(problem, machine=replace(problem.machine, constants=constants))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    write_tables(
        {
            "plans.csv": lambda _: rows_csv(plans()),
            "told.csv": lambda _: rows_csv(told()),
            "measured.csv": lambda _: rows_csv(measured()),
        }
    )
