"""What one rank does in a measured trial. Runs under the local launcher, torchrun or SLURM.

``torchrun --nproc-per-node 2 -m shardbench.engine.rank JOB_FOLDER`` runs a job folder that
``shardbench.engine.measure`` prepared; every rank writes ``rank<r>.json`` (or
``rank<r>.error.json``) there.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import from_json
from shardbench.cost.collectives import Calls
from shardbench.engine.clock import clock_of
from shardbench.engine.contenders import PlanOnRank, build
from shardbench.engine.inputs import seeded_weights
from shardbench.engine.job import JOB, TO_DEVICE, TO_HOST, RankJob, RankResult
from shardbench.engine.join import join_group
from shardbench.engine.sent_bytes import SentBytes
from shardbench.engine.turns import take_turns

SETTLING_STEPS = 3
"""DDP's first steps exchange control messages (used parameters, rebuilt buckets) that later ones do not."""


class Rank:
    """One rank's process: joins the group, builds the model, warms up, times, counts bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.phase("start")
        self.job = from_json(RankJob, (folder / JOB).read_text(), str(folder / JOB))
        if self.job.topology.world_size != self.world:
            raise BadInput(f"the job is for {self.job.topology.world_size} ranks but {self.world} were started")
        self.device = self._join()

    def phase(self, name: str) -> None:
        """Leave a note for the launcher: where this rank is."""
        self.current = name
        (self.folder / f"rank{self.rank}.phase").write_text(name)

    def _join(self) -> torch.device:
        method = "env://" if "MASTER_ADDR" in os.environ else f"file://{self.folder / 'rendezvous'}"
        return join_group(self.job.device, self.rank, self.job.topology, method, self.job.timeout_s)

    def run(self) -> RankResult:
        """The whole trial of this rank."""
        job = self.job
        self.phase("build")
        clock = clock_of(self.device)
        place = (self.rank, self.world, self.device)
        # First, while all ranks have made the same groups: of a plan that one rank trains alone only it makes some.
        control = [build(job, job.control, place, clock).contender] if job.control is not None else []
        own = build(job, job.plan, place, clock)
        if job.dump:
            own.set_weights(lambda i: seeded_weights(job.tables[i], i, job.seed))
            self._dump(own)
        self.phase("warmup")
        for contender in (own.contender, *control):
            for i in range(job.warmup):
                contender.take(i)
        self.phase("time")
        times, *others = take_turns([own.contender, *control], job.iterations, clock)
        sent, calls = self._count(own)
        to_device, to_host = own.copied_bytes()
        return RankResult(
            rank=self.rank,
            ms=times.ms,
            cpu_ms=times.cpu_ms,
            control_ms=others[0].ms["step"] if others else [],
            sent=sent,
            calls=calls,
            shares=[counted.share for counted in own.counted],
            copied={TO_DEVICE: to_device, TO_HOST: to_host} if to_device else {},
        )

    def _count(self, own: PlanOnRank) -> tuple[list[dict[str, tuple[float, float]]], list[dict[str, Calls]]]:
        self.phase("bytes")
        sent, calls = [], []
        for _ in range(SETTLING_STEPS - self.job.warmup - self.job.iterations):
            own.contender.take(0)
        for counted in own.counted:
            step = counted.step
            mode = SentBytes(self.job.topology.devices_per_node, step.dense_group.group_name)
            step.bytes = mode
            with mode:
                step(counted.batch)
            step.bytes = None
            sent.append({name: (intra, inter) for name, (intra, inter) in mode.totals.items()})
            calls.append(dict(mode.calls))
        return sent, calls

    def _dump(self, own: PlanOnRank) -> None:
        self.phase("reference")
        arrays = {f"logits_{i}": logits for i, logits in enumerate(own.logits())}
        np.savez(self.folder / f"rank{self.rank}.npz", allow_pickle=False, **(arrays | own.weights()))


def outcome_of(error: BaseException) -> str:
    """Outcome name for an exception that ended a rank."""
    if isinstance(error, Unsupported):
        return "skipped"
    # Kernels of managed memory and NCCL say it in errors of other types.
    full = any(words in str(error).lower() for words in ("can't allocate memory", "out of memory"))
    if full or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "oom"
    return "error"


def run_rank(folder: Path) -> int:
    """Run this process's rank; exit code 0, or 1 with the cause in ``rank<r>.error.json``."""
    rank = int(os.environ["RANK"])
    runner: Rank | None = None
    try:
        runner = Rank(folder)
        result = runner.run()
    except Exception as error:
        traceback.print_exc()
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
        phase = runner.current if runner else "start"
        report = {"outcome": outcome_of(error), "cause": cause, "phase": phase, "rank": rank}
        (folder / f"rank{rank}.error.json").write_text(json.dumps(report))
        return 1
    partial = folder / f"rank{rank}.json.partial"
    partial.write_text(result.model_dump_json())
    partial.replace(folder / f"rank{rank}.json")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    if len(sys.argv) != 2 or "RANK" not in os.environ:
        sys.exit("usage: torchrun --nproc-per-node N -m shardbench.engine.rank JOB_FOLDER")
    sys.exit(run_rank(Path(sys.argv[1])))
