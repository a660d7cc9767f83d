"""Local search over placements of whole tables, on per-device sums of table loads."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load, in_uvm
from shardbench.model.machine import Constants
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem

TIERS = (Tier.HBM, Tier.UVM)
SPILL = TIERS.index(Tier.UVM)
CHUNK = 20_000
"""Swaps that are rated at once; the best of the first chunk with an improvement is taken."""
GAIN = 1e-12
"""Relative improvement below which two times count as equal."""


class Tables:
    """What the search knows: load of every table in each tier, bytes, capacities, cost constants."""

    def __init__(self, loads: Load, problem: Problem, constants: Constants) -> None:
        self.loads: Floats = np.stack([loads.values, in_uvm(loads).values])
        """[tier, table, field]."""
        self.constants = constants
        self.sizes: Ints = np.array([problem.weight_bytes(t) for t in problem.tables], dtype=np.int64)
        self.capacity: Ints = np.array([problem.topology.hbm_bytes, problem.topology.uvm_bytes], dtype=np.int64)
        self.world = problem.world_size
        self.alone: Floats = self.ms(self.loads)
        """Milliseconds of each table alone, [tier, table]."""

    def __len__(self) -> int:
        return len(self.sizes)

    def ms(self, sums: Floats) -> Floats:
        """Milliseconds of devices with these summed loads, [..., field] -> [...]."""
        return embedding_ms(Load(sums), self.constants)


@dataclass
class Effort:
    """What is left of the search's budget: rated candidates, and a deadline as the safety net."""

    candidates: int
    deadline: float

    @property
    def spent(self) -> bool:
        """Whether the search must stop."""
        return self.candidates <= 0 or time.monotonic() > self.deadline


class State:
    """A placement: rank and tier of every table, and what they sum up to on every device."""

    def __init__(self, tables: Tables, rank: Ints, tier: Ints) -> None:
        self.tables, self.rank, self.tier = tables, rank, tier
        self.sums: Floats = Load.zeros(tables.world).values
        self.used: Ints = np.zeros((len(TIERS), tables.world), dtype=np.int64)
        np.add.at(self.sums, rank, tables.loads[tier, np.arange(len(tables))])
        np.add.at(self.used, (tier, rank), tables.sizes)
        self.ms: Floats = tables.ms(self.sums)

    @property
    def slowest_ms(self) -> float:
        """The objective: time of the slowest device."""
        return float(self.ms.max())

    def put(self, table: int, rank: int, tier: int) -> None:
        """Move one table."""
        self.rank[table], self.tier[table] = rank, tier

    def refresh(self) -> "State":
        """The same placement, summed afresh so that rounding does not build up."""
        return State(self.tables, self.rank, self.tier)


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Changes of the slowest device: table ``out`` goes to (rank, tier), table ``back`` (or -1) takes its place."""

    out: Ints
    back: Ints
    rank: Ints
    tier: Ints


def start(tables: Tables, order: Ints) -> State | None:
    """Greedy plan: tables in ``order`` to the device with the smallest sum of single-table times.

    HBM where any device has room, else host memory; None where a table fits nowhere.
    """
    rank, tier = np.zeros(len(tables), dtype=np.int64), np.zeros(len(tables), dtype=np.int64)
    free = np.repeat(tables.capacity[:, None], tables.world, axis=1)
    total = np.zeros(tables.world)
    for table in order.tolist():
        for at in range(len(TIERS)):
            roomy = free[at] >= tables.sizes[table]
            if roomy.any():
                break
        else:
            return None
        rank[table] = int(np.where(roomy, total, np.inf).argmin())
        tier[table] = at
        free[at, rank[table]] -= tables.sizes[table]
        total[rank[table]] += tables.alone[at, table]
    return State(tables, rank, tier)


def improve(state: State, effort: Effort) -> State:
    """Descend by moves and swaps of the slowest device's tables until none helps."""
    while not effort.spent:
        slowest = int(state.ms.argmax())
        for candidates in _neighbours(state, slowest):
            effort.candidates -= len(candidates.out)
            best = _best(state, slowest, candidates)
            if best is not None:
                break
        else:
            return state
        table, back = int(candidates.out[best]), int(candidates.back[best])
        if back >= 0:
            state.put(back, slowest, int(state.tier[table]))
        state.put(table, int(candidates.rank[best]), int(candidates.tier[best]))
        state = state.refresh()
    return state


def _neighbours(state: State, slowest: int) -> Iterator[_Candidates]:
    tables = state.tables
    mine = np.flatnonzero(state.rank == slowest)
    moves = np.array(np.meshgrid(mine, np.arange(tables.world), np.arange(len(TIERS)), indexing="ij"))
    out, rank, tier = moves.reshape(3, -1)
    fits = state.used[tier, rank] + tables.sizes[out] <= tables.capacity[tier]
    fits &= (rank != slowest) | (tier != state.tier[out])
    yield _Candidates(out=out[fits], back=np.full(int(fits.sum()), -1), rank=rank[fits], tier=tier[fits])
    step = max(1, CHUNK // len(tables))
    for first in range(0, len(mine), step):
        pairs = np.meshgrid(mine[first : first + step], np.arange(len(tables)), indexing="ij")
        out, back = pairs[0].ravel(), pairs[1].ravel()
        grown = tables.sizes[out] - tables.sizes[back]
        fits = (state.rank[back] != slowest) | (state.tier[back] != state.tier[out])
        fits &= state.used[state.tier[back], state.rank[back]] + grown <= tables.capacity[state.tier[back]]
        fits &= state.used[state.tier[out], slowest] - grown <= tables.capacity[state.tier[out]]
        out, back = out[fits], back[fits]
        yield _Candidates(out=out, back=back, rank=state.rank[back], tier=state.tier[back])


def _best(state: State, slowest: int, c: _Candidates) -> int | None:
    """Index of the candidate with the smallest slowest device, ties by the sum of squares."""
    if not len(c.out):
        return None
    loads, here = state.tables.loads, state.tier[c.out]
    leaves = -loads[here, c.out]
    comes = loads[c.tier, c.out].copy()
    swap = c.back >= 0
    leaves[swap] += loads[here[swap], c.back[swap]]
    comes[swap] -= loads[c.tier[swap], c.back[swap]]
    inside = c.rank == slowest
    # A change of tiers inside the slowest device is one device's change, not two.
    leaves[inside] += comes[inside]
    mine = state.tables.ms(np.maximum(state.sums[slowest] + leaves, 0.0))
    theirs = state.tables.ms(np.maximum(state.sums[c.rank] + comes, 0.0))
    theirs[inside] = 0.0
    pair = np.maximum(mine, theirs)
    better = np.flatnonzero(pair < state.ms[slowest] * (1.0 - GAIN))
    if not len(better):
        return None
    others = np.partition(state.ms, -3)[-3] if len(state.ms) > 2 else 0.0
    squares = mine**2 + theirs**2 - np.where(inside, 0.0, state.ms[c.rank] ** 2)
    return int(better[np.lexsort((squares[better], np.maximum(pair, others)[better]))[0]])


def search(tables: Tables, restarts: int, effort: Effort, seed: int, enough_ms: float) -> tuple[State | None, float]:
    """Best local optimum over seeded greedy starts, and the first start's slowest device.

    Stops at ``enough_ms``, which no plan can beat; (None, 0) where no start fits.
    """
    rng = np.random.default_rng(seed)
    best: State | None = None
    started_ms = 0.0
    for attempt in range(restarts):
        begun = start(tables, _order(tables, attempt, rng))
        if begun is None:
            continue
        if best is None:
            started_ms = begun.slowest_ms
        found = improve(begun, effort)
        if best is None or found.slowest_ms < best.slowest_ms * (1.0 - GAIN):
            best = found
        if effort.spent or best.slowest_ms <= enough_ms:
            break
    return best, started_ms


def _order(tables: Tables, attempt: int, rng: np.random.Generator) -> Ints:
    """Order of a start: by time, by time that HBM saves a byte, by size; then the first two with noise."""
    by_size = tables.sizes.astype(np.float64)
    saved = (tables.alone[SPILL] - tables.alone[0]) / by_size
    keys = (tables.alone[0], saved, by_size)
    if attempt < len(keys):
        return np.argsort(-keys[attempt], kind="stable")
    noise = rng.lognormal(sigma=0.1 * (1 + attempt % 4), size=len(tables))
    crowded = int(tables.sizes.sum()) > tables.world * int(tables.capacity[0])
    return np.argsort(-keys[attempt % 2 if crowded else 0] * noise, kind="stable")
