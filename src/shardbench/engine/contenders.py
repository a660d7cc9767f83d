"""What a rank steps for a plan: an ordinary step, the phases of a batch schedule, or CPU-only training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardbench.base.host import cores
from shardbench.engine.clock import Clock, Contender, clock_of
from shardbench.engine.inputs import Inputs, in_schedule, in_turn, packed
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.modules import Groups
from shardbench.engine.phased.hot import HotStep
from shardbench.engine.phased.step import Copies, PhasedStep
from shardbench.engine.pipelined import PipelinedStep
from shardbench.engine.processes.job import RankJob
from shardbench.engine.step import DenseSide, LocalBatch, Stamps, StepSettings, TrainingStep, local_shards
from shardbench.model.plan import BatchSchedule, DenseHome, PhaseKind, Plan
from shardbench.model.table import StepSchedule
from shardbench.workloads.materialise import Batches


@dataclass(frozen=True, kw_only=True)
class CountedBatch:
    """A distinct batch of a plan, the step that trains on it, and its share of all samples."""

    step: TrainingStep
    batch: LocalBatch
    share: float


class PlanOnRank:
    """A plan on this rank: what its iterations step, and what is counted and compared of it."""

    def __init__(
        self, contender: Contender[Any], step: TrainingStep | None = None, batches: Sequence[LocalBatch] = ()
    ) -> None:
        """Take the step that holds weights and the batches, which count alike; none on a rank that takes no part."""
        self.contender = contender
        self.steps = [step] if step is not None else []
        self.counted = [
            CountedBatch(step=one, batch=own, share=1.0 / len(batches)) for one in self.steps for own in batches
        ]
        self.copied: dict[str, float] = {}
        """Bytes of hot rows copied for one step on this rank, by direction."""

    def logits(self) -> Iterator[np.ndarray]:
        """Train in the order of a reference, a batch at a time; yield the logits of this rank's samples."""
        for number in range(len(self.contender.batches)):
            yield self.contender.take(number)[0].cpu().numpy()

    def weights(self) -> dict[str, np.ndarray]:
        """Return what this rank holds, as ``weights_<logical table>_<first row>``."""
        arrays = {}
        for step in self.steps:
            for name, shards in local_shards(step.modules).items():
                for first, tensor in shards:
                    arrays[f"weights_{name}_{first}"] = tensor.detach().cpu().numpy()
        return arrays


class PhasedPlan(PlanOnRank):
    """Pure mini-batches of a batch schedule; an iteration is a mean step (see PhasedStep)."""

    def __init__(
        self, job: RankJob, plan: Plan, schedule: BatchSchedule, inputs: Inputs, clock: Clock, *, groups: Groups
    ) -> None:
        self._schedule = schedule
        batches = packed(job, plan, inputs.store)
        self._kinds = [batch.kind for batch in batches]
        settings = _settings(job)
        dense = DenseSide(job.tables, settings, inputs.device, groups.dense)
        steps: dict[PhaseKind, TrainingStep] = {}
        lowered: dict[PhaseKind, Lowered] = {}
        for kind, has_kind, step_class in (
            (PhaseKind.COLD, schedule.has_cold, TrainingStep),
            (PhaseKind.HOT, schedule.has_hot, HotStep),
        ):
            if has_kind:
                lowered[kind] = _lowered(job, plan, inputs.device, kind)
                steps[kind] = step_class(lowered[kind], settings, inputs.device, clock, groups=groups, dense=dense)
        local = [inputs.pure(lowered[batch.kind], batch, number) for number, batch in enumerate(batches)]
        samples = sum(batch.fresh for batch in batches)
        shares = {kind: sum(b.fresh for b in batches if b.kind is kind) / samples for kind in steps}
        hot = steps.get(PhaseKind.HOT)
        copies = Copies(hot, steps[PhaseKind.COLD]) if isinstance(hot, HotStep) and len(steps) > 1 else None
        self._phased = PhasedStep(steps, copies, shares, schedule.heats / schedule.batches, clock)
        self._local = local
        # That with the masters, or without them that with the replicas.
        holder = steps[PhaseKind.COLD if PhaseKind.COLD in steps else PhaseKind.HOT]
        orders = {kind: order for kind in PhaseKind if (order := in_turn(batches, kind, job.iterations))}
        turns = [{kind: local[order[i]] for kind, order in orders.items()} for i in range(job.iterations)]
        super().__init__(Contender(step=self._phased, batches=turns), holder)
        self.counted = [
            CountedBatch(step=steps[batch.kind], batch=own, share=batch.fresh / samples)
            for batch, own in zip(batches, local)
        ]
        self.copied = self._phased.copied

    def logits(self) -> Iterator[np.ndarray]:
        """Train one epoch in the schedule's order, its copies and the last one to the hosts included."""
        for number in in_schedule(self._schedule, self._kinds):
            yield self._phased.train(self._kinds[number], self._local[number])[0].cpu().numpy()
        self._phased.end()

    def weights(self) -> dict[str, np.ndarray]:
        """Return weights, ``moments_<logical table>`` and the replicas, ``replica_<width>`` and their moments."""
        arrays = super().weights()
        for step in self.steps:
            for module in step.modules:
                arrays |= {f"moments_{name}": m.cpu().numpy() for name, m in module.moments().items()}
        hot = self._phased.steps.get(PhaseKind.HOT)
        if isinstance(hot, HotStep):
            for width, store in hot.rows.stores.items():
                arrays[f"replica_{width}"] = store.weights.cpu().numpy()
                if store.moments is not None:
                    arrays[f"replica_moments_{width}"] = store.moments.cpu().numpy()
        return arrays


def idle_step(batch: None) -> tuple[torch.Tensor, Stamps]:
    """Do nothing, as a rank without a part in the step; return no logits, and stamps between which nothing went on."""
    clock = clock_of(torch.device("cpu"))
    return torch.empty(0), Stamps(marks=[clock.now()], laps=[], own_clock=clock)


def _on_hosts(job: RankJob, plan: Plan, rank: int) -> PlanOnRank:
    """Build CPU-only training: a node's first rank trains whole batches with all its CPUs, other ranks idle."""
    alone = replace(job.topology, nodes=1, devices_per_node=1)
    groups = Groups.alone(alone)
    if rank > 0:
        return PlanOnRank(Contender(step=idle_step, batches=[None] * len(Batches(Path(job.batches)).numbers)))
    cpu = torch.device("cpu")
    lowered = lower(plan, job.tables, alone, job.precision, optimizer=job.optimizer, exchange=job.exchange)
    step = TrainingStep(lowered, _settings(job), cpu, clock_of(cpu), groups=groups)
    batches = Inputs(job, 0, 1, cpu).mixed(lowered)
    # A CPU machine's ranks have a core each; beside GPUs all cores that the process may use.
    threads = job.topology.devices_per_node if job.device == "cpu" else cores()

    def step_in_threads(batch: LocalBatch) -> tuple[torch.Tensor, Stamps]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            logits, stamps = step(batch)
        finally:
            torch.set_num_threads(before)
        return logits, replace(stamps, own_clock=step.clock)

    return PlanOnRank(Contender(step=step_in_threads, batches=batches), step, batches)


def build(
    job: RankJob, plan: Plan, place: tuple[int, int, torch.device], clock: Clock, *, groups: Groups | None = None
) -> PlanOnRank:
    """Build a plan of the job on this rank; ``place`` is (rank, ranks in all, device).

    ``groups`` are process groups of the plan that are there already, for whoever builds one plan after another.
    Raises Unsupported for what the engine cannot run.
    """
    rank, world, device = place
    if plan.dense is DenseHome.HOSTS:
        return _on_hosts(job, plan, rank)
    inputs = Inputs(job, rank, world, device)
    if plan.schedule is not None:
        process_groups = groups or Groups(job.topology, plan.groups)
        return PhasedPlan(job, plan, plan.schedule, inputs, clock, groups=process_groups)
    lowered = _lowered(job, plan, device, None)
    if job.schedule is StepSchedule.PIPELINED:
        pipeline = PipelinedStep(lowered, _settings(job), device, clock)
        pipeline.turn = inputs.mixed(lowered)
        return PlanOnRank(Contender(step=pipeline, batches=pipeline.turn), pipeline, pipeline.turn)
    step = TrainingStep(lowered, _settings(job), device, clock, groups=groups)
    batches = inputs.mixed(lowered)
    return PlanOnRank(Contender(step=step, batches=batches), step, batches)


def _lowered(job: RankJob, plan: Plan, device: torch.device, phase: PhaseKind | None) -> Lowered:
    return lower(
        plan, job.tables, job.topology, job.precision,
        optimizer=job.optimizer, exchange=job.exchange, device=device.type, phase=phase,
    )  # fmt: skip


def _settings(job: RankJob) -> StepSettings:
    return StepSettings(dense=job.dense, optimizer=job.optimizer, learning_rate=job.learning_rate, dense_seed=job.seed)
