"""What of the CUDA path can run without a GPU: devices, backends, clocks, and the modules that a plan becomes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_cuda import DDP, fake_devices
from problems import RandomWorkload, machine

from shardbench.base.errors import Unsupported
from shardbench.calibrate.cases import MESSAGE_BYTES, KernelCase, plan_cases
from shardbench.calibrate.kernels import KernelBench, Messages
from shardbench.calibrate.session import PlanStep
from shardbench.engine.clock import CudaClock, clock_of
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.measure import rank_job
from shardbench.engine.processes.job import RankJob
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.rank import Rank, device_of, join_group, outcome_of
from shardbench.engine.step import StepSettings, TrainingStep
from shardbench.model.caching import WAYS, slots_of
from shardbench.model.plan import (
    GroupSharded,
    OnLocalRank,
    OnRank,
    Plan,
    Replicated,
    RowWise,
    Tier,
    row_ranges,
    tier_of,
    whole_table,
    whole_tables,
)
from shardbench.model.table import Optimizer, Precision
from shardbench.workloads.materialise import materialise

ROWS, DIM, SEQUENCES = 1001, 16, frozenset({7, 8, 9})
UVM_POINT = KernelCase(tables=2, rows=100, dim=8, batch=8, pooling=2, tier=Tier.UVM)
UP_TO_EIGHT = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a CUDA build of torch fakes 8 devices")
Facts = dict[str, Any]


def plan_of(workload: RandomWorkload, nodes: int, local: int) -> Plan:
    """Every placement and tier, whole tables, ranges of rows and columns, sequences."""
    world = nodes * local
    everyone, last_node = RowWise(ranks=tuple(range(world))), tuple(range(world - local, world))
    cold = RowWise(ranks=everyone.ranks, tier=Tier.UVM)
    whole = [
        OnRank(rank=world - 1),
        OnRank(rank=1, tier=Tier.UVM),
        everyone,
        cold,
        RowWise(ranks=last_node, tier=Tier.UVM),
        GroupSharded(),
        Replicated(ranks=everyone.ranks),
        OnRank(rank=1, tier=Tier.UVM),
        cold,
        Replicated(ranks=everyone.ranks),
    ]
    segments = [whole_table(table, place) for table, place in zip(workload.tables, whole)]
    segments += [whole_table(workload.tables[10], OnRank(rank=rank), (8 * rank, 8 * rank + 8)) for rank in (0, 1)]
    rows = (100, Replicated(ranks=everyone.ranks)), (500, OnRank(rank=1)), (ROWS, cold)
    segments += row_ranges(workload.tables[11], *rows)
    segments.append(whole_table(workload.tables[12], OnLocalRank(local_rank=1, tier=Tier.UVM)))
    behind_caches = [
        OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.5),
        RowWise(ranks=everyone.ranks, tier=Tier.CACHED, cache_ratio=0.25),
        OnRank(rank=0, tier=Tier.CACHED, cache_ratio=1.0),
        OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.1),
    ]
    segments += [whole_table(table, place) for table, place in zip(workload.tables[13:], behind_caches)]
    return Plan(world_size=world, segments=tuple(segments))


def lowered_for_cuda(nodes: int, local: int) -> tuple[Lowered, StepSettings]:
    workload = RandomWorkload([(ROWS, DIM)] * 17, 64, unpooled=SEQUENCES)
    plan = plan_of(workload, nodes, local)
    lowered = lower(plan, workload.tables, machine(nodes, local).topology, Precision.FP32, device="cuda")
    settings = StepSettings(dense=workload.dense, optimizer=Optimizer.SGD, learning_rate=0.1, dense_seed=0)
    return lowered, settings


def build(nodes: int, local: int, rank: int, devices: int) -> Facts:
    """What one rank makes of the plan on a machine with some devices; runs in a process of its own."""
    lowered, settings = lowered_for_cuda(nodes, local)
    backends: list[str] = []
    with fake_devices(devices, rank, nodes * local, backends):
        device = join_group("cuda", rank, lowered.topology, "file:///nowhere", 1.0)
        clock = clock_of(device)
        step = TrainingStep(lowered, settings, device, clock)
        calibrated = KernelBench([UVM_POINT], device, clock)
    shards = {name: own for module in step.modules for name, own in module.shards().items()}
    (timed,) = calibrated._fused.values()
    return {
        "device": str(device),
        "backend": backends,
        "clock": type(clock).__name__,
        "shards": {name: [(at, *t.shape, str(t.device)) for at, t in own] for name, own in shards.items()},
        "sharding": {name: kind for m in step.modules for name, kind in sharding_types(m).items()},
        "kernels": {name: kernel for module in step.modules for name, kernel in kernels(module).items()},
        "caches": {slots for module in step.modules for slots in caches(module)},
        "replicas on": {str(one) for replicas in DDP for one in replicas.device_ids},
        "dense": {str(p.device) for p in step.dense.parameters()},
        "calibrated": [(spec[2].name, spec[3].name) for spec in timed.embedding_specs],
    }


def sharding_types(module: Any) -> dict[str, str]:
    plan = getattr(module.module, "module_sharding_plan", {})
    return {name: sharding.sharding_type for name, sharding in plan.items()}


def kernels(module: Any) -> dict[str, tuple[Any, ...]]:
    """Of every logical table that has rows here: TorchRec's kernel and FBGEMM's rows, columns, location and device."""
    found = {}
    for lookup in getattr(module.module, "_lookups", ()):
        for kernel in (k for k in lookup.modules() if hasattr(k, "_emb_module")):
            for table, spec in zip(kernel._config.embedding_tables, kernel._emb_module.embedding_specs, strict=True):
                place = [str(one.name) for one in spec[2:]]
                found[table.name] = (table.compute_kernel.value, *spec[:2], *place)
    return found


def caches(module: Any) -> list[tuple[int, int, int]]:
    """Slots, ways and width of every cache that FBGEMM made."""
    lookups = getattr(module.module, "_lookups", ())
    modules = [k._emb_module for lookup in lookups for k in getattr(lookup, "_emb_modules", ())]
    held = [one for one in modules if hasattr(one, "lxu_cache_weights") and one.lxu_cache_weights.numel()]
    return [(one.lxu_cache_weights.shape[0], *one.lxu_cache_state.shape[1:], one.max_D_cache) for one in held]


def caches_of(nodes: int, local: int, rank: int) -> set[tuple[int, int, int]]:
    """The same, as a plan's memory is counted: half and a tenth of two tables share one of rank 1."""
    wanted_rows = [0.25 * -(-ROWS // (nodes * local)), *{0: [1.0 * ROWS], 1: [0.6 * ROWS]}.get(rank, [])]
    return {(slots_of(rows), WAYS, DIM) for rows in wanted_rows}


def wanted(nodes: int, local: int, rank: int) -> dict[str, tuple[str, str, list[tuple[int, int, int]], bool]]:
    """Logical table -> (sharding type, kernel, this rank's [(first row, rows, columns)], whether without TorchRec)."""
    lowered, _ = lowered_for_cuda(nodes, local)
    found = {}
    for t in lowered.logical:
        place, rows, columns = t.segment.placement, t.segment.rows, t.segment.columns
        tier = {Tier.HBM: "fused", Tier.UVM: "fused_uvm", Tier.CACHED: "fused_uvm_caching"}[tier_of(place)]
        if isinstance(place, OnRank):
            kind, own = "table_wise", [(0, rows, columns)] if place.rank == rank else []
        elif isinstance(place, OnLocalRank):
            kind, own = "table_wise", [(0, rows, columns)] if place.local_rank == rank % local else []
        elif isinstance(place, Replicated):
            kind, tier, own = "data_parallel", "dense", [(0, rows, columns)]
        else:
            ranks = (
                place.ranks
                if isinstance(place, RowWise)
                else tuple(range(rank // local * local, rank // local * local + local))
            )
            # TorchRec knows one node as the world.
            kind = "table_row_wise" if isinstance(place, RowWise) and len(ranks) < nodes * local else "row_wise"
            block = -(-rows // len(ranks))
            own = [(ranks.index(rank) * block, block, columns)] if rank in ranks else []
        plain = isinstance(place, Replicated) and t.table in SEQUENCES
        found[t.name] = kind, tier, own, plain
    return found


@pytest.mark.parametrize(
    ("nodes", "rank", "devices", "index"),
    [
        pytest.param(1, 7, 8, 7, id="1x8 rank 7"),
        pytest.param(2, 1, 8, 1, id="2x8 rank 1"),
        pytest.param(2, 15, 8, 7, id="2x8 rank 15"),
        pytest.param(2, 9, 16, 9, id="both nodes on one machine", marks=UP_TO_EIGHT),
    ],
)
def test_a_cuda_rank_builds_what_the_plan_says(tmp_path, nodes, rank, devices, index):
    made = call_in_child(build, (nodes, 8, rank, devices), timeout_s=120, phase="build", log=tmp_path / "log")
    assert made["device"] == f"cuda:{index}"
    assert (made["backend"], made["clock"]) == (["nccl"], "CudaClock")
    assert made["replicas on"] == {f"cuda:{index}"}
    assert made["dense"] == {f"cuda:{index}"}
    assert made["calibrated"] == [("MANAGED", "CUDA")] * 2
    assert made["caches"] == caches_of(nodes, 8, rank)
    plan = wanted(nodes, 8, rank)
    assert made["shards"] == {
        name: [(*own, f"cuda:{index}") for own in shards] for name, (_, _, shards, _) in plan.items()
    }
    sharded = {name: facts for name, facts in plan.items() if not facts[3]}
    assert made["sharding"] == {name: kind for name, (kind, _, _, _) in sharded.items()}
    location = {
        "fused": ("DEVICE", "CUDA"), "fused_uvm": ("MANAGED", "CUDA"), "fused_uvm_caching": ("MANAGED_CACHING", "CUDA"),
        "dense": (),
    }  # fmt: skip
    assert made["kernels"] == {
        name: (kernel, rows, columns, *location[kernel])
        for name, (_, kernel, shards, _) in sharded.items()
        for _, rows, columns in shards
    }


def test_a_plan_with_a_cache_is_not_lowered_for_cpus():
    workload = RandomWorkload([(ROWS, DIM)], 64)
    table = workload.tables[0]
    cached = Plan(
        world_size=2, segments=(whole_table(table, RowWise(ranks=(0, 1), tier=Tier.CACHED, cache_ratio=0.5)),)
    )
    topology = machine(1, 2).topology
    assert lower(cached, workload.tables, topology, Precision.FP32, device="cuda").logical
    with pytest.raises(Unsupported, match=r"^table 'table0': a CPU has no HBM to cache its rows in$"):
        lower(cached, workload.tables, topology, Precision.FP32, device="cpu")


def test_the_plan_has_every_placement_in_all_tiers():
    # Guards the test above: what it never builds it cannot find wrong.
    kinds = {(kind, kernel) for rank in range(16) for kind, kernel, _, _ in wanted(2, 8, rank).values()}
    every = ("fused", "fused_uvm", "fused_uvm_caching")
    both = {(kind, kernel) for kind in ("table_wise", "row_wise") for kernel in every}
    assert kinds == both | {("table_row_wise", "fused_uvm"), ("data_parallel", "dense")}
    lowered, _ = lowered_for_cuda(2, 8)
    assert {(key.pooled, key.scope.value) for key in lowered.modules} == {
        (True, "world"), (True, "group"), (False, "world"), (False, "local")
    }  # fmt: skip


@pytest.mark.parametrize(("nodes", "local", "found"), [(1, 2, 2), (2, 2, 2), (2, 2, 4), (1, 2, 8), (2, 3, 8)])
def test_ranks_of_a_machine_share_no_device(monkeypatch, nodes, local, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    topology = machine(nodes, local).topology
    together = nodes if found >= nodes * local else 1  # as many nodes as this machine can stand for
    for first in range(0, nodes, together):
        ranks = range(first * local, (first + together) * local)
        indices = [device_of("cuda", rank, topology).index for rank in ranks]
        assert len(set(indices)) == len(indices)
        assert max(indices) < found


@pytest.mark.parametrize("found", [0, 1])
def test_too_few_devices_are_one_clear_line(monkeypatch, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(Unsupported, match=f"^the job needs 2 CUDA devices, this machine has {found}$"):
        device_of("cuda", 0, machine(1, 2).topology)
    assert device_of("cpu", 1, machine(1, 2).topology) == torch.device("cpu")


def test_memory_that_runs_out_anywhere_on_a_device_is_oom():
    assert outcome_of(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")) == "oom"
    assert outcome_of(RuntimeError("CUDA error: out of memory")) == "oom"
    assert outcome_of(RuntimeError("CUDA error: invalid device ordinal")) == "error"
    assert outcome_of(Unsupported("no")) == "skipped"


class Event:
    """Of a device on which nothing is done before somebody waits for it."""

    done, pending = 0, 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: int | None = None

    def record(self) -> None:
        Event.pending += 1
        self.at = Event.pending

    def elapsed_time(self, later: "Event") -> float:
        assert self.at is not None and later.at is not None, "an event that was never recorded"
        assert max(self.at, later.at) <= Event.done, "an event was read before anybody waited for it"
        return float(later.at - self.at)


def wait() -> None:
    Event.done = Event.pending


def run_by_events(job: RankJob, folder: Path) -> tuple[Any, ...]:
    """A rank's trial and what a calibration times, on a CPU but by CUDA's clock, whose events are Event."""
    torch.cuda.Event, torch.cuda.synchronize = Event, wait  # type: ignore[misc]
    (folder / "job.json").write_text(job.model_dump_json())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RANK", "0")
        environment.setenv("WORLD_SIZE", "1")
        environment.setattr("shardbench.engine.rank.clock_of", lambda _: CudaClock())
        result = Rank(folder).run()
    point = KernelCase(tables=2, rows=100, dim=8, batch=8, pooling=2)
    kernels_ms = KernelBench([point], torch.device("cpu"), CudaClock()).round(0)
    messages_ms = Messages(1, torch.device("cpu"), CudaClock()).round()
    plan_ms = PlanStep(plan_cases(1, quick=True)[0], machine(1, 1), torch.device("cpu"), CudaClock()).round()
    dist.destroy_process_group()
    return result.ms, result.cpu_ms, kernels_ms, messages_ms, plan_ms


def test_events_are_read_only_after_they_happened(tmp_path):
    workload = RandomWorkload([(100, 16), (50, 16)], 16, unpooled=frozenset({1}))
    materialise(workload, tmp_path / "batches", range(2))
    plan = Plan(world_size=1, segments=tuple(whole_tables(workload.tables, [0, 0])))
    problem = workload.problem(machine(1, 1))
    settings = {"warmup": 1, "iterations": 4, "seed": 0, "timeout_s": 60}
    job = rank_job(plan, problem, workload.dense, tmp_path / "batches", **settings)
    ms, cpu_ms, kernels_ms, messages_ms, plan_ms = call_in_child(
        run_by_events, (job, tmp_path), timeout_s=100, phase="time", log=tmp_path / "log"
    )
    assert cpu_ms == {}
    phases = np.sum([times for name, times in ms.items() if name != "step"], axis=0)
    assert np.array_equal(phases, ms["step"])  # events are numbered: no phase overlaps another, none is left out
    assert all(np.all(np.array(ms[name]) > 0) for name in ("lookup_backward", "dense", "update"))
    assert all(forward > 0 and backward > 0 for times in kernels_ms for forward, backward in times)
    assert len(messages_ms) == len(MESSAGE_BYTES)
    assert all(time > 0 for name in ("lookup_backward", "dense", "update", "step") for time in plan_ms[name])
