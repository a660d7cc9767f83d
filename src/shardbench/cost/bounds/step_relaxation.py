"""Bounds what plans of some moves add to a step, table by table, at prices: lemmas 7 to 12 of ``docs/bounds.md``."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.cost.bounds.capacity import Curve
from shardbench.cost.bounds.demand import NEAR_COPY, NEAR_NODE, NEAR_RANK, Demand, block_lookups
from shardbench.cost.bounds.embedding import ROUNDING
from shardbench.cost.bounds.step_calls import (
    A_NODE,
    COPIES,
    LOCAL,
    NODE,
    NODES,
    ONCE,
    RANK,
    WORLD,
    Modules,
    Scopes,
    scopes_of,
)
from shardbench.cost.bounds.step_kernels import KernelBounds, conversion_s, hides_sources
from shardbench.cost.bounds.step_rows import Curves, RowSums, Way
from shardbench.cost.collectives import switched_ratio
from shardbench.cost.costmodel import hides_all_reduce
from shardbench.model.plan import ShardingGroups, sharding_groups
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices at which the relaxation sells what plans share."""

    forward: float = 1.0
    """Weight of the devices' forward work; the rest is that of the host's dispatch."""
    lookups: float = 1.0
    """Weight, 0..1, of the link between nodes in the exchange of lookups; the rest is that of the link inside nodes."""
    vectors: float = 1.0
    """Weight of that link in the exchange of vectors."""
    sums: float = 1.0
    """Weight of that link in the reductions of pooled vectors."""
    rows: float = 1.0
    """Weight of that link in the all-reduce of copies."""
    backward: float = 1.0
    """Weight of the backward pass; the rest is that of all-reduces where they go on beside it."""
    hbm_byte: float = 0.0
    """Seconds that a byte of HBM costs."""


@dataclass(frozen=True)
class _Link:
    """Seconds a byte inside a node and across, weighted."""

    intra: float
    inter: float
    inter_used: bool

    @property
    def far(self) -> float:
        """Seconds a byte over the link between nodes, or over the only link."""
        return self.inter if self.inter_used else self.intra

    def near(self, rank: Floats, node: Floats) -> Floats:
        """Return the seconds a byte saved where ``rank`` bytes stay on the rank and ``node`` bytes in the node."""
        if not self.inter_used:
            return np.asarray(self.intra * rank)
        return np.asarray(min(self.intra, self.inter) * rank + max(self.inter - self.intra, 0.0) * node)


class Relaxation:
    """The tables of a problem, relaxed for a set of moves; ``ordered`` and ``groups`` as in ``step_bound``."""

    def __init__(
        self,
        demand: Demand,
        problem: Problem,
        moves: frozenset[Move],
        *,
        ordered: bool = False,
        reduced_s: float = 0.0,
        groups: ShardingGroups | None = None,
    ) -> None:
        """``reduced_s`` are seconds of the dense model's all-reduce; they count where the backward pass may hide it."""
        self.hides = hides_all_reduce(problem.machine)
        self._reduced_s = reduced_s if self.hides else 0.0
        self.problem, self.moves, self.demand = problem, moves, demand
        self._groups, self._by_node = _Groups.of(sharding_groups(groups, problem.topology), problem), groups is None
        topology, tables = problem.topology, problem.tables
        self.world, self.local, self.nodes = topology.world_size, topology.devices_per_node, topology.nodes
        self.scopes = scopes_of(problem, moves)
        self.kernels = KernelBounds(demand.loads, demand.first_by_rank, problem, moves)
        self._sets = self._scope_sets()
        self._modules = Modules(problem, moves, self._sets, self._groups.ranks)
        self.dims, self.pooled = self.kernels.dims, self.kernels.pooled
        self.features = np.array([t.features for t in tables], dtype=np.float64)
        self.rows = np.array([t.rows for t in tables], dtype=np.float64)
        self.row_bytes = np.array([problem.weight_bytes(t) / t.rows for t in tables])
        self.blocks = np.array([block_lookups(t, problem) for t in tables], dtype=np.float64)
        self.lookups = demand.sources.sum(axis=1)
        self.capacity = float(self.world * topology.hbm_bytes)
        self._number_s = conversion_s(problem)
        self._busy = float(demand.loads.bags.any(axis=1).mean())
        self._row_sums = RowSums(demand.counts, self.rows, demand.prefixes if ordered else None)
        curves = demand.hottest_first if ordered else demand.any_rows
        self._curves = Curves(curves if Move.ROWS in moves else [Curve.line(t.rows) for t in tables])
        by_node = demand.sources.reshape(len(tables), self.nodes, self.local).sum(axis=2)
        self._own, self._own_node = demand.sources, np.repeat(by_node, self.local, axis=1)

    def _scope_sets(self) -> list[Scopes]:
        """Return the sets of scopes of a column: at most one that holds a row once, one a node, and one of copies.

        Rows on single ranks beside dealt ones, and no others, are two more sets where finding owners takes time.
        """
        if Move.ROWS not in self.moves:
            return [Scopes({scope}) for scope in self.scopes]
        alike = [
            [Scopes(), *(Scopes({scope}) for scope in self.scopes if scope in kind)]
            for kind in (ONCE, A_NODE, [COPIES])
        ]
        sets = [scopes for parts in product(*alike) if (scopes := Scopes().union(*parts))]
        if self.problem.machine.constants.bucketise_s > 0.0:
            sets += [Scopes({RANK, scope}) for scope in (NODE, WORLD) if scope in self.scopes]
        return sets

    def first_prices(self) -> Prices:
        """Return the prices to start from: the slower link at its full price, HBM for nothing."""
        inter = float(self.nodes > 1)
        return Prices(lookups=inter, vectors=inter, sums=inter, rows=inter)

    @property
    def hbm_scale(self) -> float:
        """Seconds a byte of HBM: in the middle, by ratio, of prices that may be of use."""
        work = self.kernels
        gains = work.forward_uvm + work.backward_uvm - work.forward - work.backward
        seconds = float(gains.clip(min=0.0).sum()) or float((work.forward + work.backward).sum())
        return max(seconds, 1e-12) / (self.capacity * 16.0)

    def free_prices(self) -> tuple[tuple[str, ...], ...]:
        """Names of the prices that are not given by the machine's shape or the moves; those to be changed together."""
        constants = self.problem.machine.constants
        names: list[tuple[str, ...]] = [("forward",)] if constants.dispatch_s > constants.launch_s else []
        if self.nodes > 1 and self.local > 1:
            # Near lookups are told apart only where lookups and vectors have prices alike.
            names += [("lookups", "vectors"), ("lookups",), ("vectors",)]
            names += [("sums",)] if Move.ROWS in self.moves else []
            names += [("rows",)] if Move.REPLICATE in self.moves else []
        if self.hides and (self._reduced_s > 0.0 or Move.REPLICATE in self.moves):
            names.append(("backward",))
        if self.kernels.in_uvm or COPIES in self.scopes:
            names.append(("hbm_byte",))
        return tuple(names)

    def value_ms(self, prices: Prices, *, chunked: bool = True) -> float:
        """Return milliseconds beside the dense model that no plan of the moves beats, whatever the prices are.

        Without ``chunked`` it is less, and found sooner, where exchanges wait for their first chunks.
        """
        constants, t = self.problem.machine.constants, prices.forward
        first = t * constants.launch_s + (1.0 - t) * max(constants.dispatch_s, constants.launch_s)
        b, reduced = prices.backward, self._reduced(prices)
        moved = self._moved(prices, self.kernels.sent) / self.world if chunked else None
        tables = self._modules.least_s(self._costs(prices) / self.world, b, reduced, moved)
        memory = prices.hbm_byte * self.capacity / self.world
        launches = self._busy * (first + b * constants.backward_launch_s)
        return 1e3 * (launches + tables + reduced * self._reduced_s - memory)

    def links_ms(self, prices: Prices, dense_s: float) -> float:
        """Return milliseconds that no plan of the moves beats, the dense model's ``dense_s`` among them, by its links.

        Zero but where a pipeline exchanges lookups while no other exchange goes on.
        """
        if not hides_sources(self.problem):
            return 0.0
        moved = self._moved(prices, 1.0) / self.world
        constants = self.problem.machine.constants
        kernel_s = max(constants.dispatch_s, constants.launch_s) * bool(self.pooled.any())
        seconds = [
            self._modules.least_s(
                moved[0] + moved[3] + (1.0 + b) * moved[1:3].sum(axis=0), b, 1.0, moved, links_alone=True
            )
            for b in (1.0, 0.0)
        ]
        return 1e3 * (self._reduced_s + min(seconds[0], seconds[1] + dense_s + kernel_s))

    def calls_ms(self) -> float:
        """Return milliseconds of modules' calls and of latencies that every plan waits for."""
        return 1e3 * self._modules.least_s(np.zeros((len(self._sets), len(self.dims))), 1.0, float(not self.hides))

    def _reduced(self, prices: Prices) -> float:
        """Return the weight of all-reduces: of them and the backward pass together 1 where they go on side by side."""
        return 1.0 - prices.backward if self.hides else 1.0

    def _costs(self, prices: Prices) -> Floats:
        """Return least seconds that each table adds where its columns are served by a set of scopes, [sets, tables]."""
        lookups, vectors = self._link(prices.lookups, self.kernels.sent), self._link(prices.vectors)
        fixed = self._fixed(prices, lookups, vectors, self._link(prices.sums))
        work = self._work(prices)
        a_row = self._row_costs(prices, self._link(prices.rows, inside=switched_ratio(self.problem.machine)))
        both_ways = 1.0 + prices.backward
        wide = np.where(self.pooled, 0.0, both_ways * self.problem.exchange.bytes * self.dims)
        # Each end converts a vector or its gradient, wherever the other is.
        converted = np.where(self.pooled, 0.0, both_ways * self._number_s * self.dims)
        once = INDEX_BYTES * lookups.far + wide * vectors.far
        copied = (INDEX_BYTES * lookups.intra + wide * vectors.intra) * self._by_node
        near, near_copies = self._near(lookups, vectors, wide, once), self._near_copies(lookups, copied)
        again = INDEX_BYTES * lookups.far * self.lookups - near.indices + self._lengths(lookups)
        alone = self.kernels.alone(prices.forward, prices.backward, again)
        # In one group on one node a copy a group is on a single rank as well.
        single = [{RANK}, {LOCAL}] if self.nodes == len(self._groups.ranks) == 1 else [{RANK}]
        costs: list[Floats] = []
        least: dict[tuple[bool, bool, bool, bool], Floats] = {}
        constants, nothing = self.problem.machine.constants, np.zeros(len(self.dims))
        for scopes in self._sets:
            kinds = not scopes.isdisjoint(ONCE), not scopes.isdisjoint(A_NODE), COPIES in scopes
            lines = *kinds, constants.bucketise_s > 0.0 and scopes.isdisjoint((RANK, LOCAL))
            if lines not in least:
                mixed = sum(kinds) > 1
                sent = self.kernels.sent * (constants.lookup_copy_s + constants.bucketise_s * lines[3])
                of_one, of_copies = (kind.share if mixed else 0.0 for kind in (near, near_copies))
                in_group = copied + sent + converted * (self._groups.ranks.shape[1] > 1)
                # With prefixes, rows with a copy a device are a table's first, and those with a copy a node come next.
                ways: list[Way] = [
                    (a_row[COPIES][0], nothing, a_row[COPIES][1], nothing),
                    (a_row[NODES][0], in_group - of_copies, nothing, a_row[NODES][1]),
                    (nothing, once + sent + converted - of_one, nothing, nothing),
                ]
                rows = self._row_sums.least([way for way, used in zip(ways, reversed(kinds)) if used])
                near_kinds = [near_kind for near_kind, is_used in zip((near, near_copies), lines) if is_used]
                saving = sum(near_kind.excess if mixed else near_kind.most for near_kind in near_kinds)
                if lines[1] or lines[2]:
                    saving = saving + prices.backward * self.kernels.first_credit
                least[lines] = work + rows - saving
            cost = least[lines] + sum(fixed[scope] for scope in scopes)
            costs.append(cost + alone if scopes in single else cost)
        return np.array(costs)

    def _link(self, weight: float, times: float = 1.0, inside: float = 1.0) -> _Link:
        """Return ``times`` the prices of bytes where the link between nodes has so much weight, those in a node less.

        There, ``inside`` of them count.
        """
        constants = self.problem.machine.constants
        several, shared = self.nodes > 1, self.local > 1
        weight = weight if several and shared else float(several)
        return _Link(
            intra=times * inside * (1.0 - weight) / constants.intra_bytes_per_s if shared else 0.0,
            inter=times * weight / constants.inter_bytes_per_s if several else 0.0,
            inter_used=several,
        )

    def _fixed(self, prices: Prices, lookups: _Link, vectors: _Link, sums: _Link) -> dict[int, Floats]:
        """Return the seconds of each scope that do not depend on its rows, all devices together, [tables] each."""
        world, local, work = self.world, self.local, self.kernels
        copies, group = self._groups.ranks.shape
        samples = self.problem.batch_size // world * self.features
        both_ways, numbers = 1.0 + prices.backward, np.where(self.pooled, samples * self.dims, 0.0)
        both = prices.backward + prices.forward
        # How often all devices together go through the table and through its bags, and each rank sends its lengths.
        devices = {
            RANK: (1, 1, 1), NODE: (local, local, local), WORLD: (world, world, world),
            NODES: (world, group, group), LOCAL: (copies, 1, 1), COPIES: (world, 1, 0),
        }  # fmt: skip
        a_device = prices.forward * (work.vector_s + work.placing_bags_s[0]) + prices.backward * work.placing_bags_s[1]
        own = {
            scope: both * (tables * work.table_s + bags * work.bag_s) + bags * a_device + receivers * work.lengths_sent
            for scope, (tables, bags, receivers) in devices.items()
        }
        # The numbers that all devices together give to exchanges and get from them; groups of one have none.
        several = float(local > 1)
        converted = {
            RANK: 2 * world, NODE: 2 * world + several * world * (local + 1), WORLD: world * (world + 1),
            NODES: (group > 1) * world * (group + 1), LOCAL: (group > 1) * 2 * world, COPIES: 0,
        }  # fmt: skip
        # No fewer are given than got, and to give one costs more of the way forward than of the way back.
        number_s = both_ways / 2.0 * self._number_s
        # What arrives is added up on the way forward alone.
        added = 1.0 / self.problem.machine.constants.reduce_bytes_per_s
        adding = self._summed(_Link(intra=added, inter=added, inter_used=self.nodes > 1))
        sent = self._sent(lookups, vectors, sums)
        return {
            scope: seconds + number_s * converted[scope] * numbers + sent[scope][0] + both_ways * sum(sent[scope][1:])
            + self.problem.exchange.bytes * numbers * adding.get(scope, 0.0)
            for scope, seconds in own.items()
        }  # fmt: skip

    def _sent(self, lookups: _Link, vectors: _Link, sums: _Link) -> dict[int, Floats]:
        """Return the seconds of each scope's lengths, and of pooled vectors' exchanges and reductions one way.

        [3, tables] each, all devices together.
        """
        groups, samples = self._groups, self.problem.batch_size // self.world * self.features
        lengths, inner = self._lengths(lookups), samples * LENGTH_BYTES
        numbers = np.where(self.pooled, self.problem.exchange.bytes * samples * self.dims, 0.0)
        away, nothing = (self.world - self.local) * vectors.inter, np.zeros(len(self.dims))
        inside, summed = away + (self.local - 1) * vectors.intra, self._summed(sums)
        sent = {
            RANK: (lengths, numbers * inside, nothing),
            NODE: (self.local * lengths, numbers * away, numbers * summed[NODE]),
            WORLD: (self.world * lengths, nothing, numbers * summed[WORLD]),
            NODES: (inner * groups.peers(lookups).sum(), nothing, numbers * summed[NODES]),
            LOCAL: (inner * groups.peers(lookups).min(), numbers * groups.peers(vectors).min(), nothing),
            COPIES: (nothing, nothing, nothing),
        }
        return {scope: np.array(parts) for scope, parts in sent.items()}

    def _moved(self, prices: Prices, weight: float) -> Floats:
        """Return the least seconds of tables' lookups, pooled vectors, sums and copies, [4, sets, tables].

        All devices together. The lookups, which have a weight, are those of every batch: where no row has copies, all
        but those that are near in any. The copies are those of rows all of which have some.
        """
        lookups = self._link(prices.lookups, weight)
        sent = self._sent(lookups, self._link(prices.vectors), self._link(prices.sums))
        moved = np.array([np.sum([sent[scope] for scope in scopes], axis=0) for scopes in self._sets])
        rows = self._link(prices.rows, inside=switched_ratio(self.problem.machine))
        a_row = self._row_costs(replace(prices, backward=0.0, hbm_byte=0.0), rows)
        scope_rows = dict.fromkeys(ONCE, np.zeros(len(self.dims))) | dict.fromkeys(A_NODE, a_row[NODES][0])
        scope_rows[COPIES] = a_row[COPIES][0]
        copied = np.array([np.min([scope_rows[scope] for scope in scopes], axis=0) for scopes in self._sets])
        all_lookups = self.demand.loads.all_lookups
        nothing = np.zeros(len(self.dims))
        near = self._near(lookups, self._link(0.0, 0.0), nothing, INDEX_BYTES * lookups.far + nothing).indices
        least = INDEX_BYTES * lookups.far * all_lookups.min(axis=0) - len(all_lookups) * near
        held_once = np.array([scopes <= set(ONCE) for scopes in self._sets])
        moved[held_once, 0] += np.maximum(least, 0.0)
        if np.ptp(self._groups.beside):
            # The rank that exchanges most for its sums need not add up most.
            moved[:, 2] = 0.0
        return np.concatenate([moved.transpose(1, 0, 2), (copied * self.rows)[None]])

    def _summed(self, link: _Link) -> dict[int, float]:
        """Return the seconds of all ranks to sum up a byte that each of them gives for each rank of a scope."""
        world, local = self.world, self.local
        across = (self.nodes - 1) / self.nodes * link.inter
        return {
            NODE: world * (local - 1) * link.intra,
            WORLD: world * (world / local) * ((local - 1) * link.intra + across),
            NODES: self._groups.summed(link),
        }

    def _work(self, prices: Prices) -> Floats:
        """Return least seconds of the kernels' work and copies and of the memory that rows held once need, [tables]."""
        work = self.kernels
        t, b = prices.forward, prices.backward
        placing_s: Floats = t * work.placing_s[0] + b * work.placing_s[1]
        hot = t * work.forward + b * work.backward
        if not work.in_uvm:
            return np.asarray(placing_s + hot + prices.hbm_byte * self.row_bytes * self.rows)
        cold = t * work.forward_uvm + b * work.backward_uvm
        saving = self._curves.most(np.maximum(cold - hot, 0.0), prices.hbm_byte * self.row_bytes)
        return np.asarray(placing_s + cold - saving)

    def _row_costs(self, prices: Prices, rows: _Link) -> dict[int, tuple[Floats, Floats]]:
        """Return seconds that copies of a row add on all devices, and for each further one asked, [tables] each."""
        size = self._reduced(prices) * 2.0 * self.dims * self.problem.precision.bytes * self.world / self.local
        across = (self.nodes - 1) / self.nodes * rows.inter
        more = prices.hbm_byte * self.row_bytes
        work, t, b = self.kernels, prices.forward, prices.backward
        # A group's copy may be in host memory.
        reduced = self._reduced(prices) * 2.0 * self.dims * self.problem.precision.bytes * self._groups.reduced(rows)
        a_group = reduced + (0.0 if work.in_uvm else len(self._groups.ranks) - 1) * more
        a_rank = size * ((self.local - 1) * rows.intra + across) + (self.world - 1) * more
        return {
            NODES: (a_group, (t * work.another[0] + b * work.another[1]) * self._by_node),
            COPIES: (a_rank, t * work.another_hbm[0] + b * work.another_hbm[1]),
        }

    def _lengths(self, lookups: _Link) -> Floats:
        """Return the seconds to send the lengths of a table to one device, [tables]."""
        sent = self.problem.batch_size // self.world * self.features * LENGTH_BYTES
        return np.asarray(sent * ((self.world - self.local) * lookups.inter + (self.local - 1) * lookups.intra))

    def _near(self, lookups: _Link, vectors: _Link, wide: Floats, once: Floats) -> "_Near":
        """Return the most seconds that rows held once save because they are near."""
        if Move.ROWS not in self.moves:
            indices = INDEX_BYTES * lookups.near(self._own, self._own_node)
            saving = indices + wide[:, None] * vectors.near(self._own, self._own_node)
            nothing = np.zeros(len(self.dims))
            return _Near(indices=indices.max(axis=1), most=saving.max(axis=1), share=nothing, excess=nothing)
        near = self.demand.near

        def seconds(near: Floats) -> Floats:
            rank, node = near[:, NEAR_RANK], near[:, NEAR_NODE]
            return INDEX_BYTES * lookups.near(rank, node) + wide * vectors.near(rank, node)

        dear = self._lengths(lookups) >= 2.0 * self.blocks * once * (1.0 - ROUNDING)
        indices = INDEX_BYTES * lookups.near(near.most[:, NEAR_RANK], near.most[:, NEAR_NODE])
        return _Near(
            indices=np.where(dear, indices, INDEX_BYTES * lookups.far * self.lookups),
            most=np.where(dear, seconds(near.most), once * self.lookups),
            share=np.where(dear, seconds(near.share), once),
            excess=np.where(dear, seconds(near.excess), 0.0),
        )

    def _near_copies(self, lookups: _Link, copied: Floats) -> "_Near":
        """Return the most seconds that rows save because they are near where every node has a copy."""
        if Move.ROWS not in self.moves:
            most = self._own.reshape(-1, self.nodes, self.local).sum(axis=1).max(axis=1)
            nothing = np.zeros(len(self.dims))
            return _Near(indices=nothing, most=copied * most, share=nothing, excess=nothing)
        sent = self.problem.batch_size * self.features * LENGTH_BYTES
        # The least that a range more sends: to one device a node.
        dear = sent / self.local * (self.local - 1) * lookups.intra >= 2.0 * self.blocks * copied * (1.0 - ROUNDING)
        near = self.demand.near
        return _Near(
            indices=np.zeros(len(self.dims)),
            most=np.where(dear, copied * near.most[:, NEAR_COPY], copied * self.lookups),
            share=np.where(dear, copied * near.share[:, NEAR_COPY], copied),
            excess=np.where(dear, copied * near.excess[:, NEAR_COPY], 0.0),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Groups:
    """The sharding groups of a plan, and how many ranks of a group are on one node."""

    ranks: Ints
    """The ranks of each group, [groups, size]."""
    beside: Floats
    """Ranks of a rank's group on its node, itself among them, [groups, size]."""
    copies_beside: Floats
    """The same of the equal ranks of all groups, [groups, size]."""

    @classmethod
    def of(cls, ranks: Ints, problem: Problem) -> "_Groups":
        nodes = ranks // problem.topology.devices_per_node
        beside = (nodes[:, :, None] == nodes[:, None, :]).sum(axis=2)
        copies_beside = (nodes[:, None, :] == nodes[None, :, :]).sum(axis=1)
        return cls(ranks=ranks, beside=beside.astype(np.float64), copies_beside=copies_beside.astype(np.float64))

    def peers(self, link: _Link) -> Floats:
        """Return the seconds to exchange a byte with each other rank of the group, all groups together, [size]."""
        return np.asarray(((self.beside - 1.0) * link.intra + (self._size - self.beside) * link.inter).sum(axis=0))

    def summed(self, link: _Link) -> float:
        """Return the seconds of all ranks to sum up a byte for each rank of the group."""
        inside, across = 1.0 - 1.0 / self.beside, 1.0 / self.beside - 1.0 / self._size
        return self._size * float((inside * link.intra + across * link.inter).sum())

    def reduced(self, link: _Link) -> float:
        """Return the least seconds of the groups together to average a byte, in one of the two passes."""
        inside, across = 1.0 - 1.0 / self.copies_beside, 1.0 / self.copies_beside - 1.0 / len(self.ranks)
        return float((inside * link.intra + across * link.inter).sum(axis=0).min())

    @property
    def _size(self) -> int:
        return int(self.ranks.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Near:
    """The most seconds saved by lookups that are near, [tables]; as in ``LocalLookups``."""

    indices: Floats
    """Seconds saved by all rows' indices alone."""
    most: Floats
    """Seconds saved by all rows."""
    share: Floats
    """Seconds saved by a lookup of some rows, beside ``excess``."""
    excess: Floats
