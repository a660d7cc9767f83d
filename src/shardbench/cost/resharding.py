"""What it takes to go from one plan to another: the bytes of rows that change their place, and the seconds of that.

Plans cut tables in the frequency order of the profile that each was made on. What moves has to be followed by ids: a
table is cut into runs of ids whose ranks go up one by one in both orders (a seen row alone, or the never-seen rows
between two seen ones), and each run into the segments of both plans.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.cost.collectives import bytes_s, moved, pairwise
from shardbench.cost.costmodel import copy_bytes_per_s
from shardbench.model.machine import Machine, Topology
from shardbench.model.plan import (
    Host,
    Plan,
    Replicated,
    Segment,
    Tier,
    deal_start,
    homes,
    master_node,
    sharding_groups,
    tier_of,
)
from shardbench.model.problem import Problem
from shardbench.workloads.trace import Ranking

RankingOf = Callable[[int], Ranking]


@dataclass(frozen=True, kw_only=True, eq=False)
class Resharding:
    """Bytes of weights and optimiser state that go from place to place, int64 [places, places].

    Places are the HBM of every rank, then the host memory that each rank reads (UVM), then that of each node's CPU.
    """

    flows: Ints
    topology: Topology

    @property
    def moved_bytes(self) -> int:
        """Return all bytes that change their place; a copy counts for each place that gets one."""
        return int(self.flows.sum())

    @property
    def intra_bytes(self) -> int:
        """Return the bytes that go from one device to another one of its node."""
        return int(self._between_devices()[_same_node(self.topology)].sum())

    @property
    def inter_bytes(self) -> int:
        """Return the bytes that go from one node to another."""
        return int(self._between_devices()[~_same_node(self.topology)].sum())

    @property
    def host_bytes(self) -> int:
        """Return the bytes that go between devices and host memory; those on their way to another node count too."""
        return int(self._over_host_link().sum())

    def seconds(self, machine: Machine) -> float:
        """Return the seconds of the busiest rank, whose links all work at once.

        Copies of a row are sent one by one, not along a tree; nothing is charged for calls.
        """
        between = self._between_devices().astype(np.float64)
        np.fill_diagonal(between, 0.0)
        exchange, duplex = pairwise(between, self.topology), machine.device != "cpu"
        links_s = bytes_s(
            moved(exchange.sent_intra, exchange.received_intra, duplex=duplex),
            moved(exchange.sent_inter, exchange.received_inter, duplex=duplex),
            machine.constants,
        )
        return float(np.maximum(links_s, self._over_host_link() / copy_bytes_per_s(machine)).max())

    def _between_devices(self) -> Ints:
        """Return the bytes that the ranks' links carry, int64 [world, world]; in a node only from HBM to HBM."""
        world = self.topology.world_size
        ranks, in_hbm = _rank_of_places(self.topology), _in_hbm(self.topology)
        away = ~_same_node(self.topology)[np.ix_(ranks, ranks)]
        carried = np.where(away | (in_hbm[:, None] & in_hbm[None, :]), self.flows, 0)
        link_bytes = np.zeros((world, world), dtype=np.int64)
        np.add.at(link_bytes, (ranks[:, None], ranks[None, :]), carried)
        np.fill_diagonal(link_bytes, 0)
        return link_bytes

    def _over_host_link(self) -> Ints:
        """Return the bytes that cross each rank's link to host memory, int64 [world]."""
        topology = self.topology
        ranks, in_hbm = _rank_of_places(topology), _in_hbm(topology)
        away = ~_same_node(topology)[np.ix_(ranks, ranks)]
        link_bytes = np.zeros(topology.world_size, dtype=np.int64)
        # In a node a device reads or writes host memory, its own half or another's; between nodes each end does.
        reads = np.where(away, ~in_hbm[:, None], in_hbm[:, None] & ~in_hbm[None, :])
        writes = np.where(away, ~in_hbm[None, :], ~in_hbm[:, None])
        np.add.at(link_bytes, ranks, np.where(reads, self.flows, 0).sum(axis=1))
        np.add.at(link_bytes, ranks, np.where(writes, self.flows, 0).sum(axis=0))
        return link_bytes


def resharding(old: Plan, new: Plan, problem: Problem, old_ranking: RankingOf, new_ranking: RankingOf) -> Resharding:
    """Count what moves from the ``old`` plan to the ``new`` one; each has the frequency order of its own ranking.

    ``old_ranking(i)`` gives the rank of ids of ``problem.tables[i]`` that the old plan goes by. A place that has a
    row's columns already keeps them; else they come from the place that sends them fastest. Each piece of a row that
    moves brings its optimiser state.
    """
    topology = problem.topology
    links = _byte_s(problem.machine)
    flows = np.zeros(links.shape, dtype=np.int64)
    by_table = old.by_table(), new.by_table()
    for number, table in enumerate(problem.tables):
        was, becomes = (plan[table.name] for plan in by_table)
        runs = _runs(old_ranking(number), new_ranking(number), (_ends(was, "row"), _ends(becomes, "row")))
        columns = np.union1d(_ends(was, "column"), _ends(becomes, "column"))
        for start, stop in zip(columns[:-1].tolist(), columns[1:].tolist()):
            each = problem.row_bytes(stop - start)
            sides = (
                _Side.of(was, start, sharding_groups(old.groups, topology), _master(old, was)),
                _Side.of(becomes, start, sharding_groups(new.groups, topology), _master(new, becomes)),
            )
            for source, target, rows in _shared_rows(runs, *sides):
                _add(flows, source, target, each * rows, links)
    return Resharding(flows=flows, topology=topology)


def _master(plan: Plan, segments: Sequence[Segment]) -> int | None:
    """Return the node whose host has the master copy of replicated rows; None where they have none."""
    return master_node(segments) if plan.schedule is not None and plan.schedule.has_cold else None


def _ends(segments: Sequence[Segment], axis: str) -> Ints:
    ends = [(getattr(segment, f"{axis}_start"), getattr(segment, f"{axis}_stop")) for segment in segments]
    return np.unique(np.array(ends, dtype=np.int64))


Runs = tuple[Ints, Ints, Ints]
"""First rank in the old order, first rank in the new one and number of rows of each run, int64 [runs]."""


def _runs(old: Ranking, new: Ranking, ends: tuple[Ints, Ints]) -> Runs:
    seen_rows = _merged(old.seen, new.seen)
    starts = _merged(np.zeros(1, dtype=np.int64), seen_rows, seen_rows + 1)
    starts = starts[starts < old.rows]
    firsts = [old(starts), new(starts)]
    lengths = np.diff(np.append(starts, old.rows))
    for order, cuts in enumerate(ends):
        # Never-seen rows keep their order: the runs of several rows are in the order of their ranks, too.
        several = np.flatnonzero(lengths > 1)
        if not len(several):
            break
        at = several[np.maximum(np.searchsorted(firsts[order][several], cuts, side="right") - 1, 0)]
        into = cuts - firsts[order][at]
        inside = (into > 0) & (into < lengths[at])
        at, into = at[inside], into[inside]
        pieces = np.insert(np.arange(len(lengths)), at + 1, at)
        offsets = np.insert(np.zeros(len(lengths), dtype=np.int64), at + 1, into)
        stops = np.append(offsets[1:], 0)
        last = np.append(pieces[1:] != pieces[:-1], True)
        lengths = np.where(last, lengths[pieces], stops) - offsets
        firsts = [first[pieces] + offsets for first in firsts]
    return firsts[0], firsts[1], lengths


def _merged(*parts: Ints) -> Ints:
    """Return the numbers of ascending arrays, each once, ascending."""
    # A stable sort merges what is in order already; numpy's own union hashes, which takes many times as long.
    every = np.sort(np.concatenate(parts), kind="stable")
    return every[np.diff(every, prepend=-1) > 0]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Band:
    """Rows [start, ...) of one order that have their copies in the same way."""

    places: Ints
    """[deal, copies] where the rows of each position of the deal live."""
    dealt_from: int
    """Rank of which the row is at position 0 of the deal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Side:
    """Where one plan has a range of columns of a table, by bands of rows."""

    starts: Ints
    bands: list[_Band]

    @classmethod
    def of(cls, segments: Sequence[Segment], column: int, groups: Ints, master: int | None) -> "_Side":
        """Return the bands of the segments that have this column; several replicas of the same rows are one.

        ``groups`` are the plan's sharding groups, the ranks of each, int64 [groups, ranks].
        """
        by_start: dict[int, list[Segment]] = {}
        for segment in segments:
            if segment.column_start <= column < segment.column_stop:
                by_start.setdefault(segment.row_start, []).append(segment)
        starts = sorted(by_start)
        bands = [_band(by_start[start], groups, master) for start in starts]
        return cls(starts=np.array(starts, dtype=np.int64), bands=bands)


def _band(segments: Sequence[Segment], groups: Ints, master: int | None) -> _Band:
    places = np.concatenate([_places(segment, groups) for segment in segments], axis=1)
    if master is not None and isinstance(segments[0].placement, Replicated):
        places = np.concatenate([places, [[2 * groups.size + master]]], axis=1)
    deal = len(places)
    return _Band(places=places, dealt_from=segments[0].row_start - deal_start(segments[0].table, deal))


def _places(segment: Segment, groups: Ints) -> Ints:
    """Return the places of a segment's rows by their position in the deal, int64 [deal, copies]."""
    place, world = segment.placement, groups.size
    if isinstance(place, Host):
        return np.array([[2 * world + place.node]])
    # Rows behind a cache are in host memory; what of them the cache holds is fetched again.
    return homes(place, groups).T + (0 if tier_of(place) is Tier.HBM else world)


def _shared_rows(runs: Runs, old: _Side, new: _Side) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the places of two bands that share rows, and the rows [old deal, new deal] that they share."""
    old_first, new_first, lengths = runs
    in_old = np.searchsorted(old.starts, old_first, side="right") - 1
    in_new = np.searchsorted(new.starts, new_first, side="right") - 1
    pair = in_old * len(new.bands) + in_new
    # Small whole numbers are sorted by radix, many times quicker than by comparison.
    small = len(old.bands) * len(new.bands) < 1 << 16
    order = np.argsort(pair.astype(np.uint16) if small else pair, kind="stable")
    pairs, begins = np.unique(pair[order], return_index=True)
    for number, members in zip(pairs.tolist(), np.split(order, begins[1:])):
        source, target = old.bands[number // len(new.bands)], new.bands[number % len(new.bands)]
        rows = dealt_rows(
            old_first[members] - source.dealt_from,
            new_first[members] - target.dealt_from,
            lengths[members],
            (len(source.places), len(target.places)),
        )
        yield source.places, target.places, rows


def dealt_rows(first: Ints, second: Ints, lengths: Ints, deals: tuple[int, int]) -> Ints:
    """Count rows by their positions in two deals, int64 [deals], that both go up by one from row to row of a run.

    Run i has ``lengths[i]`` rows, its first at ``first[i]`` and ``second[i]``, each modulo its deal. The pairs of
    positions form gcd(deals) cycles of lcm(deals) steps, along which a run is an arc.
    """
    n, m = deals
    cycles = gcd(n, m)
    steps = n * m // cycles
    along = np.arange(steps)
    cycle, step = np.empty((n, m), dtype=np.int64), np.empty((n, m), dtype=np.int64)
    for number in range(cycles):
        cycle[(number + along) % n, along % m] = number
        step[(number + along) % n, along % m] = along
    a, b = first % n, second % m
    on, begin = cycle[a, b], step[a, b]
    whole, rest = np.divmod(lengths, steps)
    shape = (cycles, 2 * steps)
    start = on * shape[1] + begin
    size = cycles * shape[1]
    edges = np.bincount(start, minlength=size) - np.bincount(start + rest, minlength=size)
    passed = edges.reshape(shape).cumsum(axis=1)
    several = whole > 0
    counts = passed[:, :steps] + passed[:, steps:]
    np.add.at(counts, on[several], whole[several, None])
    return np.asarray(counts[cycle, step], dtype=np.int64)


def _add(flows: Ints, source: Ints, target: Ints, sizes: Ints, links: Floats) -> None:
    """Add what the places ``target`` [new deal, copies] get of ``sizes`` bytes [old deal, new deal] from ``source``."""
    at, to = np.nonzero(sizes)
    size = sizes[at, to]
    here, there = source[at][:, None, :], target[to][:, :, None]
    is_held = (here == there).any(axis=2)
    # Of equally quick senders, each receiver begins with another one.
    turn = (np.arange(source.shape[1]) - there) % source.shape[1]
    sender_index = np.argmin(links[here, there] * (1.0 + 1e-6 * turn), axis=2)
    senders = np.take_along_axis(
        np.broadcast_to(source[at][:, None, :], (*is_held.shape, source.shape[1])), sender_index[:, :, None], 2
    )
    np.add.at(flows, (senders[:, :, 0], target[to]), np.where(is_held, 0, size[:, None]))


def _rank_of_places(topology: Topology) -> Ints:
    """Return the rank whose links a place uses, int64 [places]; a node's host uses those of its first rank."""
    ranks = np.arange(topology.world_size)
    return np.concatenate([ranks, ranks, ranks[:: topology.devices_per_node]])


def _in_hbm(topology: Topology) -> Bools:
    return np.arange(2 * topology.world_size + topology.nodes) < topology.world_size


def _same_node(topology: Topology) -> Bools:
    node = np.arange(topology.world_size) // topology.devices_per_node
    return np.asarray(node[:, None] == node[None, :])


def _byte_s(machine: Machine) -> Floats:
    """Return the seconds of a byte from place to place, float64 [places, places]."""
    topology, constants = machine.topology, machine.constants
    ranks, in_hbm = _rank_of_places(topology), _in_hbm(topology)
    inside = _same_node(topology)[np.ix_(ranks, ranks)]
    host_rate = copy_bytes_per_s(machine)
    by_device = in_hbm[:, None] & in_hbm[None, :]
    rate = np.where(by_device, constants.intra_bytes_per_s, host_rate)
    return 1.0 / np.where(inside, rate, np.minimum(constants.inter_bytes_per_s, np.where(by_device, np.inf, host_rate)))
