"""A measured trial: its folder, made before ranks run, and its record, judged after, wherever the ranks ran."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import StrictModel, content_hash, from_json, to_json
from shardbench.engine.measure import gather
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.engine.processes.job import TO_DEVICE, TO_HOST, RankJob, RankResult
from shardbench.engine.processes.trial_folder import left_hash, read_job, write_job
from shardbench.model.calibrated import chip_of, is_calibrated
from shardbench.model.machine import Machine
from shardbench.records.provenance import Provenance
from shardbench.records.record import Control, Record, Timing, TrafficTotals
from shardbench.records.trial import TRAINING, Outcome

TRIAL = "trial.json"


class KeptTrial(StrictModel):
    """The file beside the job of ranks: what is known of a measured trial before they run."""

    record: Record
    """The record of a trial whose ranks never run."""
    job: str
    """The hash of the job's file."""


def write_trial(record: Record, job: RankJob, folder: Path) -> None:
    """Make ``folder`` a folder that ranks can run anywhere; raises BadInput where some began there.

    ``record`` is as of a trial whose ranks never run.
    """
    write_job(job, folder)
    write_atomically(folder / TRIAL, to_json(KeptTrial(record=record, job=read_job(folder)[1])))


def read_trial(folder: Path) -> tuple[Record, RankJob]:
    """Read the trial of a folder and its job; raises BadInput where they are not of each other or of the folder."""
    path = folder / TRIAL
    if not path.is_file():
        raise BadInput(f"no {TRIAL}: not made by this version's run --work")
    trial = from_json(KeptTrial, path.read_bytes(), TRIAL)
    job, digest = read_job(folder)
    spec, planned = trial.record.spec, trial.record.planned
    if folder.name.partition(".")[0] != spec.key:
        raise BadInput(f"{TRIAL} is of the trial {spec.key}, the folder's name is of another")
    if trial.job != digest:
        raise BadInput(f"the job (hash {digest}) is not the one of {TRIAL} ({trial.job})")
    if planned is None or planned.plan_hash != content_hash(job.plan):
        raise BadInput(f"the job's plan is not the one of {TRIAL}")
    for name in ("iterations", "warmup", "seed", "batch_size", *TRAINING, "timeout_s"):
        if getattr(job, name) != getattr(spec, name):
            raise BadInput(f"the job's {name} is {getattr(job, name)}, that of {TRIAL} {getattr(spec, name)}")
    return trial.record, job


def judge(trial: Record, folder: Path) -> Record:
    """Return the record with what the ranks in a folder measured, as far as it holds, and a failure where it does not.

    ``trial`` is the record as of a trial whose ranks never ran.
    """
    measured: dict[str, object] = {"ranks_hash": left_hash(folder)}
    try:
        measurement = gather(folder)
        hosts = _hosts(measurement.ranks, trial.provenance)
        job, _ = read_job(folder)
        sent_bytes = {name: sum(links) for name, links in measurement.sent.items()} | measurement.copied
        run = measurement.ranks[0].ran
        environment = run.environment if run is not None else Environment.here()
        measured |= {"hosts": hosts, "cores": environment.cores * hosts, "timing": measurement.timing}
        measured["measured_bytes"] = sent_bytes
        if job.control is not None:
            measured["control"] = Control(plan_hash=content_hash(job.control), step_ms=measurement.control_ms)
        _compare_bytes(sent_bytes, trial.traffic)
        if trial.calibrated_on == chip_of(environment, job.device):
            refuse_too_fast(measurement.timing, trial.least_step_ms)
    except TrialFailed as error:
        return trial.ended(error.failure, **measured)
    return trial.ended(None, **measured)


def _hosts(ranks: Sequence[RankResult], preparation: Provenance | None) -> int:
    """Count the machines that the ranks ran on; raises TrialFailed where they ran other code or unlike each other."""
    runs = [result.ran for result in ranks if result.ran is not None]
    if not runs:
        return 1
    if len(runs) < len(ranks):
        raise failed(Outcome.ERROR, "some ranks were started by a session's launcher and some were not", "start")
    for rank, run in enumerate(runs):
        version = run.provenance.judge_version
        if preparation is not None and version != preparation.judge_version:
            cause = f"rank {rank} ran judge version {version}, and {preparation.judge_version} made the folder"
            raise failed(Outcome.ERROR, f"{cause}: install one version everywhere and run it again", "start")
        # Memory and free cores of like machines may differ.
        facts = sorted(Environment.model_fields.keys() - {"memory_gib", "cores"})
        different = [fact for fact in facts if getattr(runs[0].environment, fact) != getattr(run.environment, fact)]
        if different:
            raise failed(Outcome.ERROR, f"ranks 0 and {rank} ran with different {', '.join(different)}", "start")
    return len({run.host for run in runs})


def _compare_bytes(sent_bytes: dict[str, float], traffic: TrafficTotals | None) -> None:
    """Raise TrialFailed where ranks sent or copied other bytes than counted, under any name of either."""
    if traffic is None:
        raise BadInput(f"{TRIAL} states no traffic: it was not made by this program")
    copies = {TO_DEVICE: traffic.copied_to_device_bytes, TO_HOST: traffic.copied_to_host_bytes}
    counted_bytes = {name: sum(links) for name, links in traffic.collectives.items()}
    counted_bytes |= {name: size or 0.0 for name, size in copies.items()}
    for name in sorted({*sent_bytes, *counted_bytes}):
        actual, expected = sent_bytes.get(name, 0.0), counted_bytes.get(name, 0.0)
        if abs(actual - expected) > 1e-6 * max(1.0, expected):
            cause = f"{name}: ranks sent {actual:.0f} bytes, the counter says {expected:.0f}"
            raise failed(Outcome.ERROR, cause, "bytes")


def least_step_ms(traffic: TrafficTotals, machine: Machine) -> float | None:
    """Return the milliseconds that a step takes at least; None where ``doctor --calibrate`` measured no link.

    The busiest rank sends at least its share, and no faster than the link by its own error; what goes over both links
    may go at once. What is not here: rows are read at no rate that could be stated as a limit, for those that are asked
    for twice come from a cache of unknown depth; and the proven bounds are of the cost model's times, which real ranks
    may beat.
    """
    constants, world = machine.constants, machine.topology.world_size
    link_bytes = zip(*traffic.collectives.values()) if traffic.collectives else ((), ())
    inside, across = (sum(numbers) for numbers in link_bytes)
    rates = {"intra_bytes_per_s": constants.intra_bytes_per_s, "inter_bytes_per_s": constants.inter_bytes_per_s}
    times_ms = [
        1e3 * size / world / (rate * machine.errors.get(name, 1.0))
        for size, (name, rate) in zip((inside, across), rates.items())
        if is_calibrated(machine, name)
    ]
    return max(times_ms, default=None)


def refuse_too_fast(timing: Timing, least_ms: float | None) -> None:
    """Raise TrialFailed (``invalid``) where the median step is below ``least_ms``, if that is known."""
    step_ms = statistics.median(timing.step_ms)
    if least_ms is not None and step_ms < least_ms:
        cause = (
            f"the step, {step_ms:.6g} ms, is shorter than its bytes take at the link rates calibrated on these "
            f"processors, {least_ms:.6g} ms: too good to be true, or calibrate again"
        )
        raise failed(Outcome.INVALID, cause, "bytes", "bandwidth")
