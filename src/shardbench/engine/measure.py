"""The measured backend: a plan on real TorchRec ranks, each trial its own process group."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.job import RankJob, RankResult
from shardbench.engine.processes.launch import run_ranks
from shardbench.engine.processes.trial_folder import read_job, read_result, write_job
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape
from shardbench.records.record import RankTiming, Timing
from shardbench.records.trial import TRAINING, Failure, Outcome


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
    """Make the job for the ranks; ``settings`` are the remaining fields of RankJob.

    Raises BadInput where the iterations are no whole periods of a plan that averages its copies every few steps.
    """
    job = RankJob.model_validate(
        {
            **{name: getattr(problem, name) for name in ("tables", "topology", "batch_size", *TRAINING)},
            "plan": plan,
            "dense": dense,
            "device": problem.machine.device,
            "batches": str(batches),
            **settings,
        }
    )
    if job.iterations % plan.sync_every:
        raise BadInput(
            f"{job.iterations} iterations are no whole periods of a plan whose copies are averaged every "
            f"{plan.sync_every} steps: set iterations to a multiple of {plan.sync_every}"
        )
    return job


def measure(job: RankJob, folder: Path) -> Measurement:
    """Run the job on local ranks in ``folder``, where none began before; raises TrialFailed."""
    write_job(job, folder)
    run_on_ranks(folder, job.topology.world_size, job.timeout_s)
    return gather(folder)


def run_on_ranks(folder: Path, world_size: int, timeout_s: float) -> None:
    """Run a job folder on ``world_size`` local ranks; raises TrialFailed at the first that fails."""
    run_ranks(_run_rank, folder, world_size, timeout_s)


def _run_rank(folder: Path) -> int:
    from shardbench.engine.rank import run_rank  # noqa: PLC0415 - torch is imported in the rank, not in the runner

    return run_rank(folder)


def gather(folder: Path) -> Measurement:
    """Read the results of a job folder whose ranks have all ended.

    Raises TrialFailed where they are not whole, not of the folder's job or came too late.
    """
    job, digest = read_job(folder)
    ranks = [_result(folder, rank, job, digest) for rank in range(job.topology.world_size)]
    for result in ranks:
        if result.ms.keys() != ranks[0].ms.keys():
            raise _bad(f"ranks 0 and {result.rank} timed different phases", result.rank)
    result_names = {f"rank{rank}{kind}" for rank in range(len(ranks)) for kind in (".json", ".error.json")}
    extra = sorted({path.name for path in folder.glob("rank*.json")} - result_names)
    if extra:
        raise _bad(f"{extra[0]} is of no rank of the job, which has {len(ranks)}", None)
    late = max(ranks, key=lambda result: result.took_s)
    if late.took_s > job.timeout_s:
        cause = f"rank {late.rank} took {late.took_s:.1f} s, the limit is {job.timeout_s:g} s"
        raise TrialFailed(Failure(outcome=Outcome.TIMEOUT, cause=cause, phase="time", rank=late.rank))
    return Measurement(
        timing=_timing(ranks, job.plan.sync_every),
        control_ms=tuple(np.max([r.control_ms for r in ranks], axis=0).tolist()),
        sent=_sent(ranks),
        copied=_copied(ranks),
        ranks=tuple(ranks),
    )


def _result(folder: Path, rank: int, job: RankJob, digest: str) -> RankResult:
    path = folder / f"rank{rank}.json"
    if not path.exists():
        raise _bad(f"rank {rank} left no result", rank)
    try:
        result = read_result(path)
    except BadInput as error:
        raise _bad(str(error), rank) from error
    if result.rank != rank:
        raise _bad(f"{path.name} is of rank {result.rank}", rank)
    if result.job != digest:
        raise _bad(f"{path.name} is of another job (hash {result.job}, the folder's is {digest})", rank)
    timed = [result.ms.get("step", []), *result.ms.values(), *result.cpu_ms.values()]
    if job.control is None and result.control_ms:
        raise _bad(f"{path.name} has steps of a control plan, the job has none", rank)
    timed += [result.control_ms] if job.control is not None else []
    if any(len(times) != job.iterations for times in timed):
        raise _bad(f"{path.name} has {min(map(len, timed))} steps, the job {job.iterations}", rank)
    if not set(KERNELS) <= result.ms.keys() or (result.cpu_ms and result.cpu_ms.keys() != result.ms.keys()):
        raise _bad(f"{path.name} lacks the times of a phase", rank)
    if not len(result.sent) == len(result.calls) == len(result.shares):
        raise _bad(f"{path.name} has bytes of {len(result.sent)} batches, shares of {len(result.shares)}", rank)
    return result


def _bad(cause: str, rank: int | None) -> TrialFailed:
    return TrialFailed(Failure(outcome=Outcome.ERROR, cause=cause, phase="time", rank=rank))


def _timing(ranks: list[RankResult], period: int) -> Timing:
    """Every iteration stands for the mean of its period, the steps from one averaging of copies to the next."""

    def in_means(ms: list[float] | Floats) -> Floats:
        return np.repeat(np.reshape(ms, (-1, period)).mean(axis=1), period) if period > 1 else np.asarray(ms)

    def slowest(phase: str) -> Floats:
        return in_means(np.asarray(np.max([r.ms[phase] for r in ranks], axis=0)))

    def medians(ms: dict[str, list[float]]) -> dict[str, float]:
        return {phase: float(np.median(in_means(ms[phase]))) for phase in _phases(ms)}

    has_cpu_time = all(r.cpu_ms for r in ranks)
    return Timing(
        step_ms=tuple(slowest("step").tolist()),
        phases_ms={phase: float(np.median(slowest(phase))) for phase in _phases(ranks[0].ms)},
        embedding_ms=tuple(_embedding_ms(r.ms) for r in ranks),
        embedding_cpu_ms=tuple(_embedding_ms(r.cpu_ms) for r in ranks) if has_cpu_time else None,
        ranks=tuple(
            RankTiming(phases_ms=medians(r.ms), phases_cpu_ms=medians(r.cpu_ms) if has_cpu_time else None)
            for r in ranks
        ),
    )


def _embedding_ms(ms: dict[str, list[float]]) -> float:
    """Return the median over iterations of the kernels together."""
    return float(np.median(np.sum([ms[phase] for phase in KERNELS], axis=0)))


def _phases(ms: dict[str, list[float]]) -> list[StepPhase]:
    return [phase for phase in StepPhase if phase in ms]


def _sent(ranks: list[RankResult]) -> dict[str, tuple[float, float]]:
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for result in ranks:
        for share, batch in zip(result.shares, result.sent, strict=True):
            for name, (intra, inter) in batch.items():
                total[name][0] += intra * share
                total[name][1] += inter * share
    return {name: (intra, inter) for name, (intra, inter) in sorted(total.items())}


def _copied(ranks: list[RankResult]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for result in ranks:
        for name, size in result.copied.items():
            total[name] += size
    return total
