"""The measured backend: a plan on real TorchRec ranks, each trial its own process group."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.serialise import from_json, to_json
from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.engine.failures import TrialFailed
from shardbench.engine.job import JOB, RankJob, RankResult
from shardbench.engine.launch import run_ranks
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape
from shardbench.records.record import RankTiming, Timing
from shardbench.records.trial import Failure, Outcome


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times and bytes of all ranks."""

    timing: Timing
    control_ms: tuple[float, ...]
    """Slowest rank's control step in each iteration's turn; empty without a control."""
    sent: dict[str, tuple[float, float]]
    """Mean bytes per iteration, all ranks: collective -> (inside nodes, across)."""
    copied: dict[str, float]
    """Mean bytes of hot rows copied per iteration, all ranks, by direction; empty without a batch schedule."""
    ranks: tuple[RankResult, ...]


def rank_job(plan: Plan, problem: Problem, dense: DenseShape, batches: Path, **settings: object) -> RankJob:
    """Job for the ranks; ``settings`` are the remaining fields of RankJob."""
    return RankJob.model_validate(
        {
            "plan": plan,
            "tables": problem.tables,
            "topology": problem.topology,
            "dense": dense,
            "batch_size": problem.batch_size,
            "precision": problem.precision,
            "optimizer": problem.optimizer,
            "device": problem.machine.device,
            "batches": str(batches),
            **settings,
        }
    )


def write_job(job: RankJob, folder: Path) -> None:
    """Make ``folder`` (emptied first) a job folder, for ranks that are started here or by hand."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / JOB).write_text(to_json(job))


def measure(job: RankJob, folder: Path) -> Measurement:
    """Run the job on local ranks in ``folder`` (emptied first); raises TrialFailed."""
    write_job(job, folder)
    run_ranks(folder, job.topology.world_size, job.timeout_s)
    return gather(folder, job.topology.world_size)


def gather(folder: Path, world_size: int) -> Measurement:
    """Results of a job folder whose ranks have all ended; raises TrialFailed where one is missing."""
    ranks = []
    for rank in range(world_size):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            failure = Failure(outcome=Outcome.ERROR, cause=f"rank {rank} left no result", phase="time", rank=rank)
            raise TrialFailed(failure)
        ranks.append(from_json(RankResult, path.read_text(), path.name))
    return Measurement(
        timing=_timing(ranks),
        control_ms=tuple(np.max([r.control_ms for r in ranks], axis=0).tolist()),
        sent=_sent(ranks),
        copied=_copied(ranks),
        ranks=tuple(ranks),
    )


def _timing(ranks: list[RankResult]) -> Timing:
    def slowest(phase: str) -> Floats:
        return np.asarray(np.max([r.ms[phase] for r in ranks], axis=0))

    has_cpu_time = all(r.cpu_ms for r in ranks)
    return Timing(
        step_ms=tuple(slowest("step").tolist()),
        phases_ms={phase: float(np.median(slowest(phase))) for phase in _phases(ranks[0].ms)},
        embedding_ms=tuple(_embedding_ms(r.ms) for r in ranks),
        embedding_cpu_ms=tuple(_embedding_ms(r.cpu_ms) for r in ranks) if has_cpu_time else None,
        ranks=tuple(
            RankTiming(phases_ms=_medians(r.ms), phases_cpu_ms=_medians(r.cpu_ms) if has_cpu_time else None)
            for r in ranks
        ),
    )


def _embedding_ms(ms: dict[str, list[float]]) -> float:
    """Median over iterations of the kernels together."""
    return float(np.median(np.sum([ms[phase] for phase in KERNELS], axis=0)))


def _medians(ms: dict[str, list[float]]) -> dict[str, float]:
    return {phase: float(np.median(ms[phase])) for phase in _phases(ms)}


def _phases(ms: dict[str, list[float]]) -> list[StepPhase]:
    """Those that were timed, in their order."""
    return [phase for phase in StepPhase if phase in ms]


def _sent(ranks: list[RankResult]) -> dict[str, tuple[float, float]]:
    total: dict[str, list[float]] = {}
    for result in ranks:
        for share, batch in zip(result.shares, result.sent, strict=True):
            for name, (intra, inter) in batch.items():
                sums = total.setdefault(name, [0.0, 0.0])
                sums[0] += intra * share
                sums[1] += inter * share
    return {name: (intra, inter) for name, (intra, inter) in sorted(total.items())}


def _copied(ranks: list[RankResult]) -> dict[str, float]:
    total: dict[str, float] = {}
    for result in ranks:
        for name, size in result.copied.items():
            total[name] = total.get(name, 0.0) + size
    return total
