"""Lists the scopes of tables' segments and the latencies of their calls: lemmas 9 and 12 of ``docs/bounds.md``."""

from heapq import heappop, heappush
from itertools import count, product

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.cost.collectives import calls_latency_s, group_calls, grouped
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Pooling, StepSchedule

ROOTS_WITHIN, MOST_SPLITS = 1e-3, 64
"""Share of the sum that its roots are found within, and splits after which they need not be."""
RANK, NODE, WORLD, NODES, LOCAL, COPIES = range(6)
"""The scopes: one device; dealt over a node or over all; a copy a group, dealt or on one device; a copy a device.

Groups are a plan's sharding groups: the nodes, unless it states others.
"""
ONCE = (RANK, NODE, WORLD)
"""The scopes that hold a row once."""
A_NODE = (NODES, LOCAL)
"""The scopes that hold a row once a sharding group."""
Scopes = frozenset[int]


def scopes_of(problem: Problem, moves: frozenset[Move]) -> tuple[int, ...]:
    """Return the scopes that plans made with ``moves`` may use; raises BadInput where there is none."""
    scopes = []
    if moves & {Move.TABLE, Move.ROWS}:
        scopes.append(RANK)
    if Move.ROWS in moves:
        scopes += [NODE, WORLD] if problem.topology.nodes > 1 else [WORLD]
    if {Move.ROWS, Move.REPLICATE} <= moves:
        scopes.append(NODES)
    if Move.REPLICATE in moves:
        scopes += [LOCAL, COPIES]
    if not scopes:
        raise BadInput(f"no plan can be made with the moves {', '.join(sorted(moves)) or 'none'}")
    return tuple(scopes)


class Modules:
    """Pooled tables are one module, unpooled ones of a width another; each kind of scope in it has its own calls."""

    def __init__(self, problem: Problem, moves: frozenset[Move], sets: list[Scopes], groups: Ints) -> None:
        self._group, self._replicas = group_calls(groups, problem.topology), group_calls(groups.T, problem.topology)
        scopes = scopes_of(problem, moves)
        self._problem = problem
        masks = product((False, True), repeat=len(scopes))
        uses = [Scopes(scope for scope, chosen in zip(scopes, mask) if chosen) for mask in masks if any(mask)]
        self._members = [[i for i, scope_set in enumerate(sets) if scope_set <= use] for use in uses]
        pooled = np.array([t.pooling is Pooling.SUM for t in problem.tables])
        dims = np.array([t.dim for t in problem.tables])
        widths = [] if pooled.all() else [None] if Move.COLUMNS in moves else np.unique(dims[~pooled]).tolist()
        unpooled = [~pooled if width is None else ~pooled & (dims == width) for width in widths]
        self._any_pooled = bool(pooled.any())
        self._tables = np.array([pooled, *unpooled], dtype=np.float64).T
        several, shared = problem.topology.nodes > 1, groups.shape[1] > 1
        # Whether pooled vectors are exchanged, so that unpooled tables' calls of that phase are waited for.
        self._exchanged = np.array(
            [RANK in use or (NODE in use and several) or (LOCAL in use and shared) for use in uses]
        )
        self._pooled = np.array([self._calls_s(use, pooled=True, vectors=True) for use in uses])
        self._moving = np.array([self._sent_s(use) for use in uses])
        self._unpooled = np.array(
            [[self._calls_s(use, pooled=False, vectors=sent) for use in uses] for sent in (False, True)]
        )

    def least_s(
        self, costs: Floats, backward: float = 1.0, reduced: float = 1.0, sent: Floats | None = None,
        *, links_alone: bool = False,
    ) -> float:  # fmt: skip
        """Return the least seconds of tables and calls over the kinds of scopes of each module.

        ``costs`` float64 [sets, tables]: what a table costs whose columns are served by a set of scopes. ``backward``
        and ``reduced`` are the weights of the backward pass and of all-reduces. With ``sent`` [4, sets, tables], the
        seconds that a pooled table's lookups, vectors, sums and copies move on the mean rank, nccl's chunks count.
        With ``links_alone`` modules take no time, and the exchange of lookups does whatever the schedule.
        """
        looked_up = float(links_alone or self._problem.schedule is StepSchedule.SEQUENTIAL)
        weights = np.array([float(not links_alone), looked_up, 1.0, backward, reduced])
        pooled_s, unpooled_s = self._pooled @ weights, self._unpooled @ weights
        served = np.array([costs[members].min(axis=0) for members in self._members]) @ self._tables
        unpooled = (unpooled_s[..., None] + served[:, 1:]).min(axis=1).sum(axis=1)
        if not self._any_pooled:
            return float(unpooled[0])
        others_s = pooled_s + unpooled[self._exchanged.astype(np.int64)]
        totals = others_s + served[:, 0]
        if sent is None or self._problem.machine.device != "cuda":
            return float(totals.min())
        pooled, least = self._tables[:, 0] > 0.0, np.inf
        for use in np.argsort(totals):
            if totals[use] >= least:
                break
            at = np.ix_(self._members[use], np.flatnonzero(pooled))
            latencies = [*self._moving[use], self._pooled[use, 4]]
            roots = np.sqrt(latencies) * np.array([1.0, 1.0 + backward, 1.0 + backward, reduced])
            least = min(least, others_s[use] + least_with_roots(costs[at], sent[:, at[0], at[1]], roots))
        return float(least)

    def _calls_s(self, use: Scopes, *, pooled: bool, vectors: bool) -> tuple[float, ...]:
        """Return seconds of modules, and of the calls for lookups, for vectors forward and backward, of all-reduces.

        A pipeline may hide those for lookups: their splits, lengths and indices.
        """
        rank, node, world, nodes, local, copies = (int(scope in use) for scope in range(6))
        # All copies of the groups are all-reduced together: counted with the pooled module.
        by_group = self._replicas.times(int(pooled and nodes + local > 0))
        all_reduces = grouped(self._problem.topology, copies).plus(by_group)
        reduced = calls_latency_s(all_reduces, self._problem.machine, all_reduce=True)
        modules = self._problem.machine.constants.module_s * len(use)
        lookups, vectors_s, sums_s = self._sent_s(use)
        sent = vectors_s + sums_s if pooled else self._seconds(rank + world, nodes + local, cross=node) * vectors
        return modules, 1.5 * lookups, sent, sent, reduced

    def _sent_s(self, use: Scopes) -> tuple[float, float, float]:
        """Return the latencies of the exchanges of lookups, of pooled vectors and of their sums, each way."""
        rank, node, world, nodes, local = (int(scope in use) for scope in range(5))
        return (
            2.0 * self._seconds(rank + node + world, nodes + local),
            self._seconds(rank, local, cross=node),
            self._seconds(world, nodes, node=node),
        )

    def _seconds(self, world: int, group: int = 0, *, node: int = 0, cross: int = 0) -> float:
        """Return the latency of calls, grouped as by ``Account``."""
        calls = grouped(self._problem.topology, world, node, cross).plus(self._group.times(group))
        return calls_latency_s(calls, self._problem.machine)


def least_with_roots(costs: Floats, sent: Floats, roots: Floats) -> float:
    """Return no more than the least sum, over tables' sets, of costs and of ``roots`` x square roots of what is sent.

    ``costs`` [sets, tables], ``sent`` [kinds, sets, tables] and ``roots`` [kinds]; a kind's root is of its sum over
    tables. A root is concave: between two sums it lies over its chord, which is linear, so that each table chooses for
    itself. The box of sums with the least is cut where its choice falls, until chords are near enough to their roots.
    """
    tables = np.arange(costs.shape[1])

    def relaxed(low: Floats, high: Floats) -> tuple[float, int, Floats, Floats, Floats, Floats]:
        ends = np.sqrt(low) + np.sqrt(high)
        slopes = np.divide(roots, ends, out=np.zeros_like(ends), where=ends > 0.0)
        total = costs + np.tensordot(slopes, sent, 1)
        chosen = sent[:, total.argmin(axis=0), tables].sum(axis=1)
        starts = roots * np.sqrt(low) - slopes * low
        over = roots * np.sqrt(chosen) - starts - slopes * chosen
        return float(starts.sum() + total.min(axis=0).sum()), next(numbers), low, high, chosen, over

    numbers = count()
    boxes = [relaxed(sent.min(axis=1).sum(axis=1), sent.max(axis=1).sum(axis=1))]
    for _ in range(MOST_SPLITS):
        value, _, low, high, chosen, over = boxes[0]
        kind = int(over.argmax())
        if over[kind] <= ROOTS_WITHIN * value:
            break
        heappop(boxes)
        below, above = high.copy(), low.copy()
        below[kind] = above[kind] = chosen[kind]
        heappush(boxes, relaxed(low, below))
        heappush(boxes, relaxed(above, high))
    return boxes[0][0]
