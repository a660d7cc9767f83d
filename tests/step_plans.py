"""Random small problems whose links, latencies and memories matter, and plans of every move, for the step's bound."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from bound_plans import Instance

from shardbench.base.arrays import Ints
from shardbench.cost.bounds.demand import Demand, count_demand, expected_demand
from shardbench.cost.bounds.embedding import copies_hottest, keeps_order
from shardbench.cost.bounds.step import DEVICE_MOVES, StepBound, dense_step_ms, step_bound
from shardbench.cost.costmodel import StepTime, estimate, step_time
from shardbench.cost.traffic import Traffic, count
from shardbench.model.machine import NcclConstants
from shardbench.model.plan import GroupSharded, OnLocalRank, Plan, Replicated, ShardingGroups
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling, Precision, StepSchedule
from shardbench.model.validate import memory_bytes, used_moves

DENSE = DenseShape(features=2, bottom=(4,), top=(4, 1))
DISTINCT = 0.5
"""Share of the problems whose unpooled tables make ids distinct."""


@dataclass(frozen=True)
class Rated:
    """A plan and its mean step."""

    plan: Plan
    chosen: Ints
    step_ms: float


class StepInstance:
    """A problem of ``bound_plans`` on random links; ``expected`` rates plans under profiles, else on its batches."""

    def __init__(
        self, seed: int, *, whole: bool = False, expected: bool = False, groups: ShardingGroups | None = None
    ) -> None:
        self.inner, self.expected = Instance(seed, whole=whole), expected
        self.rng = rng = np.random.default_rng(seed + 10**6)
        problem = self.inner.problem
        constants = replace(
            problem.machine.constants,
            intra_bytes_per_s=float(10 ** rng.uniform(5, 10)),
            inter_bytes_per_s=float(10 ** rng.uniform(5, 10)),
            intra_latency_s=float(rng.choice([0.0, 1e-5, 1e-3])),
            inter_latency_s=float(rng.choice([0.0, 1e-5, 1e-3])),
            peer_latency_s=float(rng.choice([0.0, 1e-5])),
        )
        # Of their own: each of them free, about as dear as the rest, or dearer.
        rng = np.random.default_rng(seed + 2 * 10**6)
        constants = replace(
            constants,
            vector_copy_bytes_per_s=float(10 ** rng.uniform(5, 10)),
            reduce_bytes_per_s=float(10 ** rng.uniform(5, 10)),
            lookup_copy_s=float(rng.choice([0.0, 1e-8, 1e-6])),
            length_copy_s=float(rng.choice([0.0, 1e-8, 1e-6])),
            bucketise_s=float(rng.choice([0.0, 1e-7, 1e-5])),
            module_s=float(rng.choice([0.0, 1e-6, 1e-4])),
            step_floor_s=float(rng.choice([0.0, 0.0, 0.0, 1e-3])),
        )
        machine = replace(problem.machine, constants=constants, device="cpu" if seed % 3 == 1 else "cuda")  # not duplex
        if machine.device == "cuda":
            # All-reduces in switches take what a ring takes, or less.
            ratio = float(np.random.default_rng(seed + 4 * 10**6).choice([0.0, 1.0, 10.0]))
            machine = replace(machine, nccl=NcclConstants(call_s=0.0, switch_ratio=ratio))
        profiles = tuple(self._profile(table.rows) for table in problem.tables) if expected else problem.profiles
        # Each schedule on each device.
        schedule = StepSchedule.PIPELINED if seed // 3 % 2 else StepSchedule.SEQUENTIAL
        exchange = Precision(np.random.default_rng(seed + 3 * 10**6).choice([Precision.FP32, *Precision]))
        distinct = bool(np.random.default_rng(seed + 5 * 10**6).random() < DISTINCT)
        tables = tuple(replace(t, distinct=distinct and t.pooling is Pooling.NONE) for t in problem.tables)
        self.problem = replace(
            problem, tables=tables, machine=machine, profiles=profiles, schedule=schedule, exchange=exchange
        )
        self._demand: Demand | None = None
        self._bounds: dict[tuple[frozenset[Move], bool], StepBound] = {}
        self.groups = groups

    def _profile(self, rows: int) -> AccessProfile:
        counts = np.sort(self.rng.geometric(self.rng.uniform(0.05, 0.9), rows) - 1)[::-1]
        return AccessProfile.from_counts(counts, rows=rows, samples=int(self.rng.integers(1, 40)), present=1)

    @property
    def demand(self) -> Demand:
        """What the bound is proven from."""
        if self._demand is None:
            bags = self.inner.bags
            self._demand = (
                expected_demand(self.problem)
                if self.expected
                else count_demand(self.problem, lambda n, i: bags[n][i], len(bags))
            )
        return self._demand

    def limit(self, plans: list[Rated]) -> None:
        """Cut the memory so that some of these plans ask too much."""
        used = [memory_bytes(rated.plan, self.problem) for rated in plans]
        hbm = np.quantile([m.hbm.max() for m in used], self.rng.uniform(0.02, 1.0), method="higher")
        uvm = np.quantile([m.uvm.max() for m in used], self.rng.uniform(0.5, 1.0), method="higher")
        topology = replace(self.problem.topology, hbm_bytes=max(1, int(hbm)), uvm_bytes=int(uvm))
        self.problem = replace(
            self.problem, topology=topology, machine=replace(self.problem.machine, topology=topology)
        )

    def fits(self, plan: Plan) -> bool:
        """Whether every device has the memory."""
        used, topology = memory_bytes(plan, self.problem), self.problem.topology
        return bool(used.hbm.max() <= topology.hbm_bytes and used.uvm.max() <= topology.uvm_bytes)

    def plan(self, chosen: Ints) -> Plan:
        """The plan of some choices [cells], with this instance's sharding groups."""
        plan = self.inner.plan(chosen)
        if self.groups is None:
            return plan
        places = (s.placement for s in plan.segments)
        kept = (
            replace(p, local_rank=p.local_rank % self.groups.size) if isinstance(p, OnLocalRank) else p for p in places
        )
        segments = tuple(replace(s, placement=p) for s, p in zip(plan.segments, kept))
        return replace(plan, segments=segments, groups=self.groups)

    def rated(self, chosen: Ints) -> Rated:
        """The plan of some choices [cells], rated as simulated trials are."""
        plan = self.plan(chosen)
        return Rated(plan, chosen, step_ms(plan, self.problem, self))

    def random(self, plans: int) -> list[Rated]:
        """Plans that place every cell at random; some keep to few kinds of placement."""
        cells, found = self.inner.cells, []
        for number in range(plans):
            if number % 3 == 2:
                chosen = self._copies_hottest()
            elif number % 3:
                chosen = np.array([int(self.rng.integers(len(cell.choices))) for cell in cells])
            else:
                at = self.rng.random()
                chosen = np.array([int(at * len(cell.choices)) for cell in cells])
            found.append(self.rated(chosen))
        return found

    def _copies_hottest(self) -> Ints:
        """Choices that copy each table's first rows, on every device or node, and hold the others once."""
        cells = self.inner.cells
        cuts = {cell.table: np.sort(self.rng.integers(0, 60, 2)) for cell in cells}
        chosen = []
        for cell in cells:
            wanted = int((cell.rows[0] >= cuts[cell.table]).sum())
            levels = np.array([COPIED.get(type(choice[0].placement), 2) for choice in cell.choices])
            near = min((level for level in levels if level >= wanted), default=levels.max())
            chosen.append(int(self.rng.choice(np.flatnonzero(levels == near))))
        return np.array(chosen)

    def descended(self, start: Rated) -> Iterator[Rated]:
        """Plans on the way from ``start`` to a faster one: cell after cell, the best choice that fits."""
        best = start
        for at, cell in enumerate(self.inner.cells):
            for choice in range(len(cell.choices)):
                chosen = best.chosen.copy()
                chosen[at] = choice
                if not self.fits(self.plan(chosen)):
                    continue
                tried = self.rated(chosen)
                yield tried
                best = min(best, tried, key=lambda rated: rated.step_ms)

    @property
    def dense_ms(self) -> float:
        """Of the dense model."""
        return dense_step_ms(self.demand, self.problem, DENSE)

    def bounds(self, plan: Plan) -> dict[str, StepBound]:
        """The bounds that speak about a plan, by the moves that they allow."""
        ordered, own = keeps_order(plan) and copies_hottest(plan), used_moves(plan, self.problem)
        found = {"any rows": self._bound(DEVICE_MOVES, ordered=False), "own": self._bound(own, ordered=ordered)}
        if ordered:
            found["hottest first"] = self._bound(DEVICE_MOVES, ordered=True)
        return found

    def _bound(self, moves: frozenset[Move], *, ordered: bool) -> StepBound:
        key = moves, ordered
        if key not in self._bounds:
            self._bounds[key] = step_bound(self.demand, self.problem, DENSE, moves, ordered=ordered, groups=self.groups)
        return self._bounds[key]


COPIED = {Replicated: 0, GroupSharded: 1, OnLocalRank: 1}


def step_time_of(traffic: Traffic, problem: Problem) -> StepTime:
    """Time of a traffic under the problem's schedule."""
    return step_time(traffic, problem.machine, DENSE, problem.tables, problem.batch_size, schedule=problem.schedule)


def step_ms(plan: Plan, problem: Problem, instance: StepInstance) -> float:
    """Mean step of a plan, over the batches or under the profiles."""
    if instance.expected:
        return estimate(plan, problem, DENSE).step_ms
    steps = []
    for bags in instance.inner.bags:
        traffic = count(plan, problem, bags.__getitem__, DENSE)
        steps.append(step_time_of(traffic, problem).step_ms)
    return float(np.mean(steps))
