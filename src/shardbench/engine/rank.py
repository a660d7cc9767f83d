"""What one rank does in a measured trial. Runs under the local launcher, torchrun or SLURM.

``torchrun --nproc-per-node 2 -m shardbench.engine.rank JOB_FOLDER`` runs a job folder that
``shardbench.engine.measure`` prepared; every rank writes ``rank<r>.json`` (or
``rank<r>.error.json``) there.
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.serialise import from_json
from shardbench.cost.collectives import Calls
from shardbench.engine.clock import Clock, clock_of
from shardbench.engine.job import JOB, RankJob, RankResult
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.sent_bytes import SentBytes
from shardbench.engine.step import LocalBatch, StepSettings, TrainingStep, local_shards, set_weights
from shardbench.engine.turns import Contender, take_turns
from shardbench.model.plan import Plan
from shardbench.model.table import DenseShape, Table
from shardbench.workloads.materialise import Batches

SETTLING_STEPS = 3
"""DDP's first steps exchange control messages (used parameters, rebuilt buckets) that later ones do not."""


def seeded_weights(table: Table, index: int, seed: int) -> torch.Tensor:
    """Reproducible fp32 weights [rows, dim] of a table."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    return torch.empty(table.rows, table.dim).uniform_(-0.1, 0.1, generator=generator)


def seeded_inputs(shape: DenseShape, batch_size: int, seed: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reproducible dense features [batch, features] and labels [batch] of a global batch."""
    rng = np.random.default_rng([seed, batch])
    dense = rng.standard_normal((batch_size, shape.features), dtype=np.float32)
    labels = (rng.random(batch_size) < 0.25).astype(np.float32)
    return torch.from_numpy(dense), torch.from_numpy(labels)


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
        torch.set_num_threads(1)
        timeout = timedelta(seconds=self.job.timeout_s)
        rendezvous = self.folder / "rendezvous"
        method = "env://" if "MASTER_ADDR" in os.environ else f"file://{rendezvous}"
        device, backend = torch.device("cpu"), "gloo"
        if self.job.device == "cuda":
            needed, found = self.job.topology.devices_per_node, torch.cuda.device_count()
            if not torch.cuda.is_available() or found < needed:
                raise Unsupported(f"the job needs {needed} CUDA devices, this machine has {found}")
            # Ranks of a node follow each other, so that they never share a device.
            device, backend = torch.device("cuda", self.rank % found), "nccl"
            torch.cuda.set_device(device)
        dist.init_process_group(backend, method, timeout=timeout, rank=self.rank, world_size=self.world)
        return device

    def run(self) -> RankResult:
        """The whole trial of this rank."""
        job = self.job
        self.phase("build")
        os.environ["LOCAL_WORLD_SIZE"] = str(job.topology.devices_per_node)
        os.environ["LOCAL_RANK"] = str(self.rank % job.topology.devices_per_node)
        clock = clock_of(self.device)
        own, step = self._contender(job.plan, clock)
        control = [self._contender(job.control, clock)[0]] if job.control is not None else []
        if job.dump:
            set_weights(step, lambda i: seeded_weights(job.tables[i], i, job.seed))
            self._dump(step, own)
        self.phase("warmup")
        for contender in (own, *control):
            for i in range(job.warmup):
                contender.take(i)
        self.phase("time")
        times, *others = take_turns([own, *control], job.iterations, clock)
        sent, calls = self._count(step, own)
        control_ms = others[0].ms["step"] if others else []
        return RankResult(
            rank=self.rank, ms=times.ms, cpu_ms=times.cpu_ms, control_ms=control_ms, sent=sent, calls=calls
        )

    def _contender(self, plan: Plan, clock: Clock) -> tuple[Contender[LocalBatch], TrainingStep]:
        job = self.job
        lowered = lower(plan, job.tables, job.topology, job.precision, optimizer=job.optimizer, device=self.device.type)
        settings = StepSettings(
            dense=job.dense, optimizer=job.optimizer, learning_rate=job.learning_rate, dense_seed=job.seed
        )
        step = TrainingStep(lowered, settings, self.device, clock)
        return Contender(step=step, batches=self._local_batches(lowered)), step

    def _local_batches(self, lowered: Lowered) -> list[LocalBatch]:
        job, store = self.job, Batches(Path(self.job.batches))
        share = job.batch_size // self.world
        start, stop = self.rank * share, (self.rank + 1) * share
        made = []
        for batch in range(len(store.numbers)):
            sparse = lowered.local_lookups(lambda i, b=batch: store.bags(b, i, start, stop))  # type: ignore[misc]
            dense, labels = seeded_inputs(job.dense, job.batch_size, job.seed, batch)
            made.append(
                LocalBatch(
                    dense=dense[start:stop].to(self.device),
                    sparse=sparse.to(self.device),
                    labels=labels[start:stop].to(self.device),
                )
            )
        return made

    def _count(
        self, step: TrainingStep, own: Contender[LocalBatch]
    ) -> tuple[list[dict[str, tuple[float, float]]], list[dict[str, Calls]]]:
        self.phase("bytes")
        sent, calls = [], []
        for _ in range(SETTLING_STEPS - self.job.warmup - self.job.iterations):
            own.take(0)
        for number in range(len(own.batches)):
            mode = SentBytes(self.job.topology.devices_per_node, step.dense_group.group_name)
            step.bytes = mode
            with mode:
                own.take(number)
            step.bytes = None
            sent.append({name: (intra, inter) for name, (intra, inter) in mode.totals.items()})
            calls.append(dict(mode.calls))
        return sent, calls

    def _dump(self, step: TrainingStep, own: Contender[LocalBatch]) -> None:
        self.phase("reference")
        logits = [own.take(number)[0].cpu().numpy() for number in range(len(own.batches))]
        arrays = {f"logits_{i}": array for i, array in enumerate(logits)}
        for name, shards in local_shards(step.modules).items():
            for first, tensor in shards:
                arrays[f"weights_{name}_{first}"] = tensor.detach().cpu().numpy()
        np.savez(self.folder / f"rank{self.rank}.npz", allow_pickle=False, **arrays)


def outcome_of(error: BaseException) -> str:
    """Outcome name for an exception that ended a rank."""
    if isinstance(error, Unsupported):
        return "skipped"
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
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
