"""A plan on real ranks, and the unsharded model that they must reproduce, in one process with plain torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrec.optim import RowWiseAdagrad

from shardbench.base.arrays import Floats32
from shardbench.cost.collectives import CollectiveName
from shardbench.cost.traffic import Traffic, count, mean
from shardbench.engine.dlrm import DenseModel, History
from shardbench.engine.formats import TENSOR_TYPES
from shardbench.engine.inputs import in_schedule, packed, seeded_inputs, seeded_weights
from shardbench.engine.lower import Lowered, lower
from shardbench.engine.measure import Measurement, measure, rank_job
from shardbench.engine.processes.job import RankJob
from shardbench.model.plan import PhaseKind, Plan, sharding_groups
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer, Pooling, Table
from shardbench.model.validate import validate
from shardbench.trials.simulate import totals
from shardbench.workloads.hotness import take
from shardbench.workloads.materialise import Batches, materialise
from shardbench.workloads.trace import Bags
from shardbench.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Logits of every step, float32 [batch] each, and the stepped weights, [rows, dim] a table."""

    logits: list[Floats32]
    weights: list[Floats32]
    moments: list[Floats32] | None = None
    """Row-wise Adagrad's, [rows] a table; of ranks only those of the masters of a batch schedule."""


@dataclass(frozen=True)
class OnRanks:
    """A plan that was trained by real ranks, a step on each of the batches."""

    job: RankJob
    folder: Path
    measured: Measurement
    counted: tuple[Traffic, ...]
    """What is counted of each batch."""

    @cached_property
    def sharded(self) -> Trained:
        """What the ranks dumped."""
        return read_sharded(self.job, self.folder)

    @cached_property
    def unsharded(self) -> Trained:
        """The same training in one process."""
        return train_unsharded(self.job)

    def check_sent(self) -> None:
        """Check that ranks sent of each batch, by collective and link, what is counted, and that its mean is kept."""
        for n, traffic in enumerate(self.counted):
            for rank in self.measured.ranks:
                for name in CollectiveName:
                    links = traffic.collectives[name]
                    expected = (links.sent_intra[rank.rank], links.sent_inter[rank.rank])
                    assert rank.sent[n].get(name, (0.0, 0.0)) == pytest.approx(expected, rel=1e-12), (
                        n,
                        rank.rank,
                        name,
                    )
                assert set(rank.sent[n]) <= set(CollectiveName)
        counted = {name: pair for name, pair in totals(mean(self.counted)).collectives.items() if sum(pair)}
        kept = {name: pair for name, pair in self.measured.sent.items() if sum(pair)}
        assert kept == {name: pytest.approx(pair, rel=1e-9) for name, pair in counted.items()}
        assert counted or self.job.topology.world_size == 1

    def check_trained(self, reference: Trained | None = None, *, logits: float = 1e-5, weights: float = 5e-6) -> None:
        """Check that the ranks' logits and weights are a reference's, the unsharded model's unless one is given."""
        reference = reference or self.unsharded
        assert len(self.sharded.logits) == len(self.counted)
        for ours, theirs in zip(self.sharded.logits, reference.logits, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=logits)
        for i, (ours, theirs) in enumerate(zip(self.sharded.weights, reference.weights, strict=True)):
            np.testing.assert_allclose(ours, theirs, atol=weights, err_msg=f"table {i}")


def on_ranks(
    folder: Path, workload: Workload, problem: Problem, plan: Plan, batches: int = 1, **settings: Any
) -> OnRanks:
    """Train a valid plan on real ranks in a new folder; ``settings`` are of the job."""
    validate(plan, problem, frozenset(Move))
    stored = materialise(workload, folder / "batches", range(batches))
    given = {"warmup": 1, "iterations": 2, "seed": 1, "timeout_s": 100, "learning_rate": 0.5, "dump": True, **settings}
    job = rank_job(plan, problem, workload.dense, folder / "batches", **given)
    counted = (count(plan, problem, partial(stored.bags, n), workload.dense) for n in range(batches))
    return OnRanks(job, folder / "job", measure(job, folder / "job"), tuple(counted))


class _Rounded(torch.autograd.Function):
    """Vectors rounded to a format, and so their gradients, which a rank sends before they are divided by the ranks."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, format_: torch.dtype, ranks: int) -> torch.Tensor:
        ctx.format_, ctx.ranks = format_, ranks
        return vectors.to(format_).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (gradients[0] * ctx.ranks).to(ctx.format_).float() / ctx.ranks, None, None


def train_unsharded(job: RankJob) -> Trained:
    """One step on each materialised batch from the job's seeded weights; under a batch schedule, one epoch of it.

    Vectors and their gradients are rounded to the format of the job's exchanges, as whole rows on ranks are.
    """
    weights = [seeded_weights(t, i, job.seed).requires_grad_() for i, t in enumerate(job.tables)]
    torch.manual_seed(job.seed)
    model = DenseModel(job.dense, job.tables)
    kinds = {
        Optimizer.SGD: torch.optim.SGD,
        Optimizer.ROWWISE_ADAGRAD: RowWiseAdagrad,
        Optimizer.ADAM: torch.optim.Adam,
    }
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=job.learning_rate),
        kinds[job.optimizer](weights, lr=job.learning_rate),
    ]
    logits = []
    ranks, format_ = job.topology.world_size, TENSOR_TYPES[job.exchange]

    def exchanged(vectors: torch.Tensor) -> Any:
        return vectors if format_ is torch.float32 else _Rounded.apply(vectors, format_, ranks)

    for batch, bags in _batches(job):
        dense, labels = seeded_inputs(job.dense, job.batch_size, job.seed, batch)
        given = [
            _look_up(table, weight, bags(i).feature(feature), exchanged)
            for i, (table, weight) in enumerate(zip(job.tables, weights))
            for feature in range(table.features)
        ]
        out = model(dense, given)
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.nn.BCEWithLogitsLoss()(out, labels).backward()
        for optimizer in optimizers:
            optimizer.step()
        logits.append(out.detach().numpy())
    moments = None
    if job.optimizer is Optimizer.ROWWISE_ADAGRAD:
        moments = [optimizers[1].state[w]["sum"].numpy().ravel() for w in weights]
    return Trained(logits=logits, weights=[w.detach().numpy() for w in weights], moments=moments)


def _batches(job: RankJob) -> Iterator[tuple[int, Callable[[int], Bags]]]:
    """The batches of a job in the order of training: their numbers, and their bags by table."""
    store = Batches(Path(job.batches))
    if job.plan.schedule is None:
        for batch in range(len(store.numbers)):
            yield batch, partial(store.bags, batch)
        return
    pure = packed(job, job.plan, store)
    for batch in in_schedule(job.plan.schedule, [one.kind for one in pure]):
        yield batch, partial(store.bags_of, samples=pure[batch].samples)


def _look_up(
    table: Table, weight: torch.Tensor, bags: Bags, exchanged: Callable[[torch.Tensor], Any]
) -> torch.Tensor | History:
    ids = torch.from_numpy(bags.values.astype(np.int64))
    if table.pooling is Pooling.NONE:
        return History(exchanged(torch.nn.functional.embedding(ids, weight)), torch.from_numpy(bags.lengths))
    offsets = torch.from_numpy(bags.offsets[:-1].copy())
    return exchanged(torch.nn.functional.embedding_bag(ids, weight, offsets, mode="sum"))


def _as_is(vectors: torch.Tensor) -> torch.Tensor:
    return vectors


def read_sharded(job: RankJob, folder: Path) -> Trained:
    """What the ranks dumped, put together; raises ValueError where replicas differ."""
    schedule = job.plan.schedule
    phase = None if schedule is None else PhaseKind.COLD if schedule.has_cold else PhaseKind.HOT
    lowered = lower(job.plan, job.tables, job.topology, job.precision, phase=phase)
    dumps = [np.load(folder / f"rank{r}.npz") for r in range(job.topology.world_size)]
    steps = len([name for name in dumps[0].files if name.startswith("logits_")])
    kept = phase is PhaseKind.COLD and job.optimizer is Optimizer.ROWWISE_ADAGRAD
    moments = _moments(lowered, dumps) if kept else None
    logits = [np.concatenate([dump[f"logits_{i}"] for dump in dumps]) for i in range(steps)]
    return Trained(logits=logits, weights=_weights(lowered, dumps), moments=moments)


def _weights(lowered: Lowered, dumps: list[np.lib.npyio.NpzFile]) -> list[Floats32]:
    full = [torch.full((t.rows, t.dim), torch.nan) for t in lowered.tables]
    for table in lowered.logical:
        logical = torch.full((table.rows, table.segment.columns), torch.nan)
        prefix = f"weights_{table.name}_"
        for dump in dumps:
            for key in (k for k in dump.files if k.startswith(prefix)):
                first = int(key.removeprefix(prefix))
                part = torch.from_numpy(dump[key])
                place = logical[first : first + len(part)]
                if not (place.isnan() | (place == part)).all():
                    raise ValueError(f"replicas of {table.name} differ between ranks")
                place.copy_(part)
        s = table.segment
        rows = logical[table.local_ids(torch.arange(s.rows))]
        full[table.table][s.row_start : s.row_stop, s.column_start : s.column_stop] = rows
    return [weights.numpy() for weights in full]


def _moments(lowered: Lowered, dumps: list[np.lib.npyio.NpzFile]) -> list[Floats32]:
    full = [np.full(t.rows, np.nan, dtype=np.float32) for t in lowered.tables]
    for table in lowered.logical:
        key, held = f"moments_{table.name}", table.segment
        for dump in dumps:
            if key in dump.files:
                full[table.table][held.row_start : held.row_stop] = dump[key]
    return full


def train_in_groups(job: RankJob, copied: Sequence[tuple[int, int, int]]) -> Trained:
    """One step on each batch by sharding groups that train apart and average every few steps, in one process.

    ``copied`` are the tables and ranges of rows, (table, start, stop), that every group has a copy of; all others are
    averaged after every step, which is a step of the unsharded model.
    """
    groups, period = sharding_groups(job.plan.groups, job.topology), job.plan.sync_every
    seeded = [seeded_weights(table, i, job.seed) for i, table in enumerate(job.tables)]
    weights = [[full.clone().requires_grad_() for full in seeded] for _ in groups]
    alone = [torch.zeros(table.rows, dtype=torch.bool) for table in job.tables]
    for table, start, stop in copied:
        alone[table][start:stop] = True
    torch.manual_seed(job.seed)
    model, local = DenseModel(job.dense, job.tables), job.batch_size // job.topology.world_size
    dense_optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    # Of each group's mean loss, where all groups' losses are averaged.
    optimizer = torch.optim.SGD([w for own in weights for w in own], lr=job.learning_rate * len(groups))
    samples = [np.concatenate([np.arange(rank * local, (rank + 1) * local) for rank in ranks]) for ranks in groups]
    logits = []
    for number, (batch, bags) in enumerate(_batches(job)):
        dense, labels = seeded_inputs(job.dense, job.batch_size, job.seed, batch)
        out = torch.zeros(job.batch_size)
        for own, chosen in zip(weights, samples):
            given = [
                _look_up(table, weight, take(bags(i), chosen).feature(feature), _as_is)
                for i, (table, weight) in enumerate(zip(job.tables, own))
                for feature in range(table.features)
            ]
            out = out.index_copy(0, torch.from_numpy(chosen), model(dense[chosen], given))
        for one in (dense_optimizer, optimizer):
            one.zero_grad()
        torch.nn.BCEWithLogitsLoss()(out, labels).backward()
        for one in (dense_optimizer, optimizer):
            one.step()
        logits.append(out.detach().numpy())
        with torch.no_grad():
            for i, drifts in enumerate(alone):
                mean = torch.stack([own[i] for own in weights]).mean(dim=0)
                averaged = ~drifts if (number + 1) % period else torch.ones_like(drifts)
                for own in weights:
                    own[i][averaged] = mean[averaged]
    return Trained(logits=logits, weights=[w.detach().numpy() for w in weights[0]])
