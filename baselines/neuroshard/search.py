"""The search: column plans by beam search, each placed greedily over a grid of caps and rated by the networks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.base.errors import BadInput, Infeasible
from shardbench.learned.tasks.task import TableSet
from shardbench.learned.training import AnyTrained, on_arrays
from shardbench.model.plan import OnRank, Segment
from shardbench.model.problem import Problem

from . import SearchLimits
from .networks import INPUTS, NeuroShardNetworks
from .shards import NO_HALVES, ColumnShards

EVALUATIONS_A_SECOND = 1_500_000
"""Devices that one core rates in a second, at the least."""
NO_CAP = (float("inf"),)
SLACK = 1e-9
"""Share by which sums of widths may exceed a cap: rounding."""


class Simulator:
    """The networks of one training, for arrays; raises BadInput for another number of devices than they are for."""

    def __init__(self, trained: AnyTrained, devices: int) -> None:
        networks: NeuroShardNetworks = trained.networks
        if networks.devices != devices:
            raise BadInput(
                f"neuroshard's exchange networks are for {networks.devices} devices, not for {devices}: "
                "fit it on such problems"
            )
        self._scaling, self._networks = trained.scaling, networks

    def encode(self, features: Floats) -> Floats32:
        """Encode raw features [tables, 21] as what devices add up, float32 [tables, 64].

        These are the encodings after the head's first layer, which is linear: a table more is a sum more, and no
        product.
        """
        compute = self._networks.compute
        return on_arrays(
            lambda inputs: compute.encoder(inputs) @ compute.into_head.weight.T, self._scaling(features)[:, INPUTS]
        )

    @property
    def empty(self) -> Floats32:
        """Give the sum of a device without tables, float32 [64]."""
        return self._networks.compute.into_head.bias.detach().numpy()

    def set_ms(self, sums: Floats32) -> Floats32:
        """Predict forward and backward ms of devices from what they added up, [..., 64] -> [...]."""
        return on_arrays(self._networks.compute.head, sums)

    @torch.inference_mode()
    def plan_ms(self, compute_ms: Floats32, widths: Floats) -> Floats:
        """Predict plans' cost from their devices' kernels and sums of widths, [plans, devices] each -> float64 [plans].

        The slowest device's kernels, backward exchange and forward exchange; a device comes to the latter as much
        after the first one as its kernels and backward exchange take longer.
        """
        wide, compute = torch.from_numpy(widths.astype(np.float32)), torch.from_numpy(compute_ms)
        before = compute + self._networks.backward_exchange(wide)
        late = before - before.amin(dim=1, keepdim=True)
        forward = self._networks.forward_exchange(torch.cat([wide, late], dim=1))
        cost_ms: Floats = (before + forward).amax(dim=1).double().numpy()
        return cost_ms


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardPlacements:
    """The best placement of each of some column plans: ``ranks`` int64 [plans, shards], predicted ``ms`` [plans].

    Infinite where none fits.
    """

    ranks: Ints
    ms: Floats


class Placer:
    """Places shards of one problem on its devices of ``capacity_bytes`` each, by a grid of ``caps``."""

    def __init__(
        self, simulator: Simulator, shards: ColumnShards, devices: int, capacity_bytes: int, caps: tuple[float, ...]
    ) -> None:
        self.simulator, self.shards = simulator, shards
        self.devices, self.capacity_bytes, self.caps = devices, capacity_bytes, caps
        # Once, for all placements.
        self.encodings: Floats32 = simulator.encode(shards.features)
        self.alone_ms: Floats32 = simulator.set_ms(self.encodings + simulator.empty)
        """Predicted kernels of each shard alone on a device."""

    def place(self, plans: Ints) -> ShardPlacements:
        """Place column plans int64 [plans, shards] (numbers of shards), each by its best cap.

        Where no cap leaves room, once more without one; and where that fails too, largest shard first (deviation 5).
        """
        ranks = np.zeros(plans.shape, dtype=np.int64)
        ms = np.full(len(plans), np.inf)
        by_cost, by_size = -self.alone_ms.astype(np.float64), -self.shards.bytes.astype(np.float64)
        for order, caps in ((by_cost, self.caps), (by_cost, NO_CAP), (by_size, NO_CAP)):
            unplaced = np.flatnonzero(np.isinf(ms))
            if len(unplaced):
                placements = self._greedy(plans[unplaced], order, caps)
                ranks[unplaced], ms[unplaced] = placements.ranks, placements.ms
        return ShardPlacements(ranks=ranks, ms=ms)

    def _greedy(self, plans: Ints, weights: Floats, caps: tuple[float, ...]) -> ShardPlacements:
        """Place shards by ascending weight, each on the device with room whose kernels then take least."""
        count, steps = plans.shape
        order = np.argsort(weights[plans], axis=1, kind="stable")
        ordered = np.repeat(np.take_along_axis(plans, order, axis=1), len(caps), axis=0)
        mean_width = self.shards.vectors[plans].sum(axis=1) / self.devices
        limits = (np.asarray(caps)[None, :] * np.where(mean_width > 0, mean_width, 1.0)[:, None]).reshape(-1)
        state = _Filling(self, len(ordered))
        chosen = np.zeros(ordered.shape, dtype=np.int64)
        for step in range(steps):
            chosen[:, step] = state.put(ordered[:, step], limits)
        ms = self.simulator.plan_ms(state.compute_ms, state.widths)
        by_cap = np.where(state.failed, np.inf, ms).reshape(count, len(caps))
        best = by_cap.argmin(axis=1)
        rows = np.arange(count)
        ranks = np.zeros(plans.shape, dtype=np.int64)
        np.put_along_axis(ranks, order, chosen.reshape(count, len(caps), steps)[rows, best], axis=1)
        return ShardPlacements(ranks=ranks, ms=by_cap[rows, best])


class _Filling:
    """Devices of many placements while they are filled, [placements, devices]."""

    def __init__(self, placer: Placer, count: int) -> None:
        shape = (count, placer.devices)
        self._placer, self._rows = placer, np.arange(count)
        self._sums: Floats32 = np.tile(placer.simulator.empty, (*shape, 1))
        self._used: Ints = np.zeros(shape, dtype=np.int64)
        self.widths: Floats = np.zeros(shape)
        self.compute_ms: Floats32 = np.zeros(shape, dtype=np.float32)
        """Kernels' ms; a device without shards has zero: it runs none (deviation 5)."""
        self.failed: Bools = np.zeros(count, dtype=np.bool_)

    def put(self, shard: Ints, limits: Floats) -> Ints:
        """Give every placement its next shard int64 [placements]; the devices, int64 [placements].

        A placement without a legal device has failed; it goes on with its first device, and must not be used.
        """
        placer, at = self._placer, self._rows
        shards, own = placer.shards, placer.encodings[shard]
        legal = (self._used + shards.bytes[shard][:, None] <= placer.capacity_bytes) & (
            self.widths + shards.vectors[shard][:, None] <= limits[:, None] * (1.0 + SLACK)
        )
        self.failed |= ~legal.any(axis=1)
        after_ms = placer.simulator.set_ms(self._sums + own[:, None])
        device: Ints = np.where(legal, after_ms, np.float32(np.inf)).argmin(axis=1)
        self.compute_ms[at, device] = after_ms[at, device]
        self._sums[at, device] += own
        self._used[at, device] += shards.bytes[shard]
        self.widths[at, device] += shards.vectors[shard]
        return device


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnPlan:
    """The best plan found: numbers of shards and their ranks int64 [shards]; predicted ms, infinite where none fits."""

    shards: Ints
    ranks: Ints
    ms: float
    splits: int
    """Halvings of this plan."""


def search(placer: Placer, limits: SearchLimits, affordable: float = float("inf")) -> ColumnPlan:
    """Halve one shard of each kept plan after the other; no randomness.

    No halving is begun with which more than ``affordable`` devices would have been rated (deviation 7).
    """
    beam = placer.shards.whole[None]
    placed = placer.place(beam)
    best = ColumnPlan(shards=beam[0], ranks=placed.ranks[0], ms=float(placed.ms[0]), splits=0)
    ratings = beam.size
    for split in range(1, limits.splits + 1):
        plans = halved(beam, placer, limits.candidates)
        ratings += plans.size
        if not len(plans) or ratings * len(limits.caps) * placer.devices > affordable:
            break
        placed = placer.place(plans)
        # Of equals, and where nothing fits yet, the plan that was proposed first: that of the largest shard.
        kept = np.argsort(placed.ms, kind="stable")[: limits.beams]
        beam, first = plans[kept], int(kept[0])
        if placed.ms[first] < best.ms:
            best = ColumnPlan(shards=plans[first], ranks=placed.ranks[first], ms=float(placed.ms[first]), splits=split)
    return best


def halved(beam: Ints, placer: Placer, candidates: int) -> Ints:
    """List every different plan with one candidate shard of a kept plan halved, int64 [plans, shards + 1], sorted.

    There is no plan where every shard is as narrow as it may be.
    """
    plans: dict[tuple[int, ...], None] = {}
    for plan in beam:
        for shard in candidates_of(plan, placer, candidates).tolist():
            half = int(placer.shards.half[shard])
            rest = np.delete(plan, int(np.flatnonzero(plan == shard)[0]))
            plans[tuple(np.sort(np.append(rest, (half, half))).tolist())] = None
    return np.array(list(plans), dtype=np.int64).reshape(len(plans), beam.shape[1] + 1)


def candidates_of(plan: Ints, placer: Placer, candidates: int) -> Ints:
    """List different shards of a plan that can be halved: the largest, then those with the longest kernels."""
    divisible = np.unique(plan[placer.shards.half[plan] != NO_HALVES])
    by_size = divisible[np.argsort(-placer.shards.bytes[divisible], kind="stable")][:candidates]
    by_cost = divisible[np.argsort(-placer.alone_ms[divisible], kind="stable")][:candidates]
    ordered = np.concatenate([by_size, by_cost])
    return ordered[np.sort(np.unique(ordered, return_index=True)[1])]


def plan_shards(
    trained: AnyTrained, tables: TableSet, limits: SearchLimits, plan_s: float = float("inf")
) -> tuple[ColumnShards, ColumnPlan]:
    """Give the shards that tables can be cut into, and the plan of them that the networks call the fastest.

    Raises Infeasible where no plan of the search fits, BadInput for another number of devices than was trained for.
    """
    shards = ColumnShards.of(tables)
    simulator = Simulator(trained, tables.devices)
    placer = Placer(simulator, shards, tables.devices, tables.capacity_bytes, limits.caps)
    column_plan = search(placer, limits, EVALUATIONS_A_SECOND * plan_s)
    if column_plan.ms == float("inf"):
        raise Infeasible(
            f"task {tables.problem.name}: no plan of at most {limits.splits} column splits fits: "
            f"{int(tables.sizes_bytes.sum())} bytes of tables, the largest of {int(tables.sizes_bytes.max())}, "
            f"on {tables.devices} devices of {tables.capacity_bytes}"
        )
    return shards, column_plan


def place(trained: AnyTrained, tasks: Sequence[TableSet]) -> list[Ints]:
    """Place the whole tables of tasks, int64 [tables] a task: the search without any column split."""
    return [plan_shards(trained, task, SearchLimits(splits=0))[1].ranks for task in tasks]


def segments(problem: Problem, shards: ColumnShards, column_plan: ColumnPlan) -> tuple[Segment, ...]:
    """Lay a table's shards side by side, in the order of the plan, each on its rank; none are joined (deviation 9)."""
    starts = [0] * len(problem.tables)
    pieces = []
    for shard, rank in zip(column_plan.shards.tolist(), column_plan.ranks.tolist()):
        number, columns = int(shards.table[shard]), int(shards.columns[shard])
        table, start = problem.tables[number], starts[number]
        starts[number] += columns
        pieces.append(
            Segment(
                table=table.name,
                row_stop=table.rows,
                column_start=start,
                column_stop=start + columns,
                placement=OnRank(rank=rank),
            )
        )
    return tuple(pieces)
