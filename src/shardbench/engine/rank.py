"""What one rank does in a measured trial. Runs under the local launcher, torchrun or SLURM.

``torchrun --nproc-per-node 2 -m shardbench.engine.rank JOB_FOLDER`` runs a job folder that
``shardbench run --work`` made; every rank writes ``rank<r>.json`` (or ``rank<r>.error.json``)
there, and refuses a folder in which one lies already. ``shardbench collect`` makes records of them.
"""

import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput, Unsupported, described
from shardbench.base.generated import say
from shardbench.base.serialise import to_json
from shardbench.cost.collectives import Calls
from shardbench.engine.clock import CountedClock, clock_of, take_turns
from shardbench.engine.contenders import PlanOnRank, build
from shardbench.engine.heap import keep_freed_memory
from shardbench.engine.inputs import seeded_weights
from shardbench.engine.processes.failures import LONGEST_CAUSE, out_of_memory
from shardbench.engine.processes.job import Ran, RankError, RankResult
from shardbench.engine.processes.trial_folder import REFUSED, RankProgress, holds_results, read_job, result_text
from shardbench.engine.sent_bytes import SentBytes
from shardbench.engine.step import set_weights
from shardbench.model.machine import Topology
from shardbench.records.trial import Failure, Outcome
from shardbench.workloads.materialise import Batches

SETTLING_STEPS = 3
"""DDP's first steps exchange control messages (used parameters, rebuilt buckets) that later ones do not."""
_NO_INTERFACE = "ifa != nullptr"
"""What gloo says where it finds no interface, or none with an address."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Which collectives run between devices of a kind."""


def device_of(kind: str, rank: int, topology: Topology) -> torch.device:
    """Return the rank's device of a kind, ``cpu`` or ``cuda``; raises Unsupported where there are fewer than a node's.

    Ranks of a node follow each other, so that they never share a device; several nodes on one
    machine (emulated ones) get devices of their own where there are enough.
    """
    if kind == "cpu":
        return torch.device("cpu")
    needed, available = topology.devices_per_node, torch.cuda.device_count()
    if available < needed:
        raise Unsupported(f"the job needs {needed} CUDA devices, this machine has {available}")
    return torch.device("cuda", rank % available)


def join_group(kind: str, rank: int, topology: Topology, method: str, timeout_s: float) -> torch.device:
    """Join the ranks that meet by ``method`` (``file://`` or ``env://``); gives this rank's device, made current.

    ``timeout_s`` is how long it waits for its peers, then and in every collective. Raises BadInput where ranks of CPUs
    find no network interface.
    """
    device = device_of(kind, rank, topology)
    torch.set_num_threads(1)
    # TorchRec asks these which ranks are of a node.
    os.environ["LOCAL_WORLD_SIZE"] = str(topology.devices_per_node)
    os.environ["LOCAL_RANK"] = str(rank % topology.devices_per_node)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(BACKENDS[kind], method, timeout=timeout, rank=rank, world_size=topology.world_size)
    except RuntimeError as error:
        if _NO_INTERFACE not in str(error):
            raise
        name = os.environ.get("GLOO_SOCKET_IFNAME", "loopback")
        raise BadInput(
            f"no network interface {name} is up, over which ranks exchange: bring it up (ip link set lo up), or name "
            "another one by GLOO_SOCKET_IFNAME"
        ) from error
    return device


class Rank:
    """One rank's process: joins the group, builds the model, warms up, times, counts bytes."""

    def __init__(self, folder: Path) -> None:
        self.began = time.monotonic()
        self.folder = folder
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.progress = RankProgress(folder, self.rank)
        self.phase("start")
        job, self.job_hash = read_job(folder)
        self.job = job.model_copy(update={"batches": str((folder / job.batches).resolve())})
        self._check()
        self.device = self._join()

    def _check(self) -> None:
        """Raise BadInput where these ranks, or what lies here for them, are not those of the job."""
        job, topology = self.job, self.job.topology
        if topology.world_size != self.world:
            raise BadInput(f"the job is for {topology.world_size} ranks but {self.world} were started")
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        if here % topology.devices_per_node:
            raise BadInput(f"the job has {topology.devices_per_node} ranks a node, {here} were started on this machine")
        batches = Batches(Path(job.batches))
        if job.batches_hash is not None and batches.hash != job.batches_hash:
            raise BadInput("the test batches that lie here are not those of the job")
        if not batches.intact():
            raise BadInput(f"the test batches in {batches.folder.name} are damaged or not whole")

    def phase(self, name: str) -> None:
        """Leave a note for the launcher: where this rank is."""
        self.current = name
        self.progress.step()
        (self.folder / f"rank{self.rank}.phase").write_text(name)

    def _join(self) -> torch.device:
        # A step of SLURM that ended left its file behind, in which the next would find no peer.
        step = [os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in os.environ]
        # Whole: of a path that begins nowhere torch takes the first folder for a host, and waits.
        meeting = self.folder.resolve() / ".".join(["rendezvous", *step])
        method = "env://" if "MASTER_ADDR" in os.environ else f"file://{meeting}"
        return join_group(self.job.device, self.rank, self.job.topology, method, self.job.timeout_s)

    def run(self) -> RankResult:
        """Run the whole trial of this rank."""
        job = self.job
        self.phase("build")
        clock = CountedClock(clock_of(self.device), self.progress)
        place = (self.rank, self.world, self.device)
        # First, while all ranks have made the same groups: of a plan that one rank trains alone only it makes some.
        control = [build(job, job.control, place, clock).contender] if job.control is not None else []
        own = build(job, job.plan, place, clock)
        if job.dump:
            for step in own.steps:
                set_weights(step, lambda i: seeded_weights(job.tables[i], i, job.seed))
            self._dump(own)
        self.phase("warmup")
        keep_freed_memory()
        for contender in (own.contender, *control):
            # Up to the first timed one: a pipeline has its batch in flight already.
            for i in range(-job.warmup, 0):
                contender.take(i)
        self.phase("time")
        times, *others = take_turns([own.contender, *control], job.iterations, clock)
        sent, calls = self._count(own)
        return RankResult(
            rank=self.rank,
            job=self.job_hash,
            took_s=time.monotonic() - self.began,
            ms=times.ms,
            cpu_ms=times.cpu_ms,
            control_ms=others[0].ms["step"] if others else [],
            sent=sent,
            calls=calls,
            shares=[counted.share for counted in own.counted],
            copied=own.copied,
        )

    def _count(self, own: PlanOnRank) -> tuple[list[dict[str, tuple[float, float]]], list[dict[str, Calls]]]:
        self.phase("bytes")
        sent, calls = [], []
        for _ in range(SETTLING_STEPS - self.job.warmup - self.job.iterations):
            own.contender.take(0)
        for counted in own.counted:
            step = counted.step
            mode = SentBytes(self.job.topology, step.dense_group.group_name)
            step.prepare(counted.batch)
            # One of so many steps averages copies; the others are alike.
            period = step.lowered.sync_every
            step.bytes = mode
            with mode:
                for _ in range(period):
                    step(counted.batch)
            step.bytes = None
            sent.append({name: (intra / period, inter / period) for name, (intra, inter) in mode.totals.items()})
            calls.append({name: calls_of_name.times(1.0 / period) for name, calls_of_name in mode.calls.items()})
        return sent, calls

    def _dump(self, own: PlanOnRank) -> None:
        self.phase("reference")
        arrays = {f"logits_{i}": logits for i, logits in enumerate(own.logits())}
        np.savez(self.folder / f"rank{self.rank}.npz", allow_pickle=False, **(arrays | own.weights()))


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome for an exception that ended a rank."""
    if isinstance(error, Unsupported):
        return Outcome.SKIPPED
    return Outcome.OOM if out_of_memory(error) else Outcome.ERROR


def run_rank(folder: Path, ran: Ran | None = None) -> int:
    """Run this process's rank; exit code 0, or 1 with the cause in ``rank<r>.error.json``.

    REFUSED where the folder holds results already, which stay as they are. ``ran``: see RankResult.
    """
    rank = int(os.environ["RANK"])
    if holds_results(folder):
        again = "shardbench collect records them, shardbench run --work --retry makes another folder"
        say(f"rank {rank}: {folder} holds results of ranks: {again}", sys.stderr)
        return REFUSED
    runner: Rank | None = None
    try:
        runner = Rank(folder)
        result = runner.run()
    except Exception as error:
        traceback.print_exc()
        failure = Failure(
            outcome=outcome_of(error),
            cause=described(error, LONGEST_CAUSE),
            phase=runner.current if runner else "start",
            rank=rank,
        )
        report = RankError(failure=failure, ran=ran.with_load_at_end() if ran else None)
        write_atomically(folder / f"rank{rank}.error.json", to_json(report))
        return 1
    final_result = result.model_copy(update={"ran": ran.with_load_at_end() if ran else None})
    write_atomically(folder / f"rank{rank}.json", result_text(final_result))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    if len(sys.argv) != 2 or "RANK" not in os.environ:
        sys.exit("usage: torchrun --nproc-per-node N -m shardbench.engine.rank JOB_FOLDER")
    sys.exit(run_rank(Path(sys.argv[1]), Ran.begin()))
