"""The forms that each table may have, all counted at once."""

from collections.abc import Sequence
from itertools import pairwise
from operator import lt
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.model.plan import Tier
from shardbench.model.strategy import Move
from shardbench.model.validate import COLUMN_MULTIPLE

from .contributions import Contributions, Groups, Links, Option
from .limits import Limits, Space
from .memory import Kept
from .pieces import Cache, CountedPieces, Counter, Form, Holders, PieceCut, TablePiece


class Extent(NamedTuple):
    """How many options a menu has."""

    shards: tuple[int, ...]
    """Equal column ranges that a table may be in, each on a device of its own."""
    dealt_shards: tuple[int, ...]
    """Equal column ranges that a table may be in, each dealt to the devices of a node of its own."""
    ranges: tuple[int, ...]
    """Ranges of rows of alike lookups, each on a device of its own."""
    break_evens: tuple[float, ...]
    """Times what keeping copies alike costs that their lookups must save, where hottest rows may be copied."""
    tiers: tuple[float, ...]
    """The break-evens of sequences, whose rows may have a copy a device, a copy a node or none."""
    lumps: tuple[float, ...]
    """Largest parts of a table that a device may get, over the phase's mean."""


TIERS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0)
LUMPS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, np.inf)
FULL_MENU = Extent(
    shards=(1, 2, 4, 8, 16),
    dealt_shards=(1, 2, 4),
    ranges=(2, 3, 4, 6, 8),
    break_evens=(0.5, 1.0, 2.0, 4.0, 16.0),
    tiers=TIERS,
    lumps=LUMPS,
)
WIDE_MENU = Extent(
    shards=(1, 2, 3, 4, 6, 8, 12, 16),
    dealt_shards=(1, 2, 3, 4),
    ranges=(2, 3, 4, 5, 6, 8, 10, 12, 16),
    break_evens=(0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0),
    tiers=TIERS,
    lumps=LUMPS,
)
"""The menu for what the full one leaves of the budget."""
LEAN_MENU = Extent(
    shards=(1, 2, 4),
    dealt_shards=(1,),
    ranges=(2, 4),
    break_evens=(1.0,),
    tiers=(0.5, 1.0, 2.0),
    lumps=(0.35, 1.0, np.inf),
)
"""The menu where the budget is short for the number of tables."""
BRIEF_MENU = Extent(shards=(1, 2), dealt_shards=(1,), ranges=(), break_evens=(1.0,), tiers=(1.0,), lumps=(0.35, np.inf))
"""The menu where making the lean one would be half of the work that the budget allows."""
WARM_SCOPES = (Holders.RANK, Holders.NODE, Holders.WORLD)
"""Where the coldest rows of a sequence may be when the rows before them have a copy a node."""


class Menu:
    """Every option of every unit, given how many hottest rows of each table are in HBM (None: all), or its cache.

    A unit is a table, or the tables that limits keep on one device.
    """

    def __init__(self, space: Space, hot_rows: Sequence[Kept], extent: Extent = FULL_MENU) -> None:
        problem, moves, limits = space.problem, space.moves, space.limits
        self.problem, self.moves, self.extent, self.check = problem, moves, extent, space.check
        self.hot_rows = [0 if isinstance(kept, Cache) else kept for kept in hot_rows]
        self._caches = [kept if isinstance(kept, Cache) else None for kept in hot_rows]
        self.counter = Counter(problem, averaging_s=space.averaging_s, check=space.check)
        self.links = Links(problem)
        self._seen = space.seen_rows or [profile.seen_rows for profile in problem.profiles]
        self._cuts: list[PieceCut] = []
        self._at: dict[PieceCut, int] = {}
        self._group_at: dict[tuple[int, ...], int] = {}
        self._pieces_of: list[tuple[int, ...]] = []
        split, columns, topology = Move.ROWS in moves, Move.COLUMNS in moves, problem.topology
        world, nodes, local = topology.world_size, topology.nodes, topology.devices_per_node
        self._devices = {Holders.RANK: 1}
        """Devices over which a scope deals rows, of the scopes that tables may have."""
        if split and world > 1:
            self._devices[Holders.WORLD] = world
        if split and nodes > 1 and local > 1:
            self._devices[Holders.NODE] = local
            if Move.REPLICATE in moves:
                self._devices[Holders.NODES] = local
        self._shards = [
            (scope, [n for n in ways if n == 1 or (columns and n <= places)])
            for scope, ways, places in (
                (Holders.RANK, extent.shards, world),
                (Holders.NODE, extent.dealt_shards, nodes),
                (Holders.WORLD, (1,), 1),
                (Holders.NODES, (1,), 1),
            )
        ]
        """Scopes, with numbers of column ranges."""
        self._ways = [ways for ways in extent.ranges if ways <= world]
        """Numbers of ranges of rows."""
        self._cut_numbers, self._cut_ways = np.array(
            [(cut, n) for n in self._ways for cut in range(1, n)] or [(0, 1)]
        ).T
        self.options: list[Option] = []
        self.units = limits.units(problem.tables)
        """The numbers of the tables of each unit."""
        for unit, members in enumerate(self.units):
            space.check()
            self.options += self._options(unit, members[0], limits) if len(members) == 1 else self._whole(unit, members)
        self.in_nodes = [
            [unit for unit, members in enumerate(self.units) if problem.tables[members[0]].name in group]
            for group in limits.nodes
        ]
        """Units whose rows are all on one node, the same for those of a group."""
        self.counted: CountedPieces = self.counter.count(self._cuts)
        self.groups = Groups(self._pieces_of, self.counted, self.counter)
        self.contributions = Contributions(self.options, self.groups, self.counted, self.counter)
        self.first = np.searchsorted([option.unit for option in self.options], np.arange(len(self.units) + 1))
        self._forms: dict[int, Form] = {}

    def form(self, option: int) -> Form:
        """Return the pieces of an option, which are made once."""
        if option not in self._forms:
            pieces, chosen = [], self.options[option]
            for number, group in enumerate(chosen.groups):
                shards = chosen.shards if number == len(chosen.groups) - 1 else 1
                pieces += [self.pieces(group, shard) for shard in range(shards)]
            self._forms[option] = tuple(pieces)
        return self._forms[option]

    def cuts_of(self, option: Option) -> list[PieceCut]:
        """Return the pieces of an option before they are counted, of alike column ranges the first alone."""
        return [self._cuts[piece] for group in option.groups for piece in self._pieces_of[group]]

    def pieces(self, group: int, shard: int = 0) -> tuple[TablePiece, ...]:
        """Return the pieces of a group, in so many of its column ranges from the first."""
        numbers = self._pieces_of[group]
        width = self._cuts[numbers[0]].width
        return tuple(self.counter.piece(self.counted, at, shard * width) for at in numbers)

    def of(self, unit: int) -> range:
        """Return the numbers of a unit's options."""
        return range(self.first[unit], self.first[unit + 1])

    def _piece(self, cut: PieceCut) -> int:
        if cut not in self._at:
            self._at[cut] = len(self._cuts)
            self._cuts.append(cut)
        return self._at[cut]

    def _group(self, *pieces: int) -> int:
        if pieces not in self._group_at:
            self._group_at[pieces] = len(self._pieces_of)
            self._pieces_of.append(pieces)
        return self._group_at[pieces]

    def _whole(self, unit: int, members: Sequence[int]) -> list[Option]:
        """Return the one option of tables that are whole on one device."""
        cuts = [
            PieceCut(index, Holders.RANK, *span[:2], self.problem.tables[index].dim, span[2], cache=self._caches[index])
            for index in members
            for span in self._spans(index, 0)
        ]
        return [Option(unit, (self._group(*map(self._piece, cuts)),))]

    def _options(self, unit: int, index: int, limits: Limits) -> list[Option]:
        """Return the options of a table that limits allow, or else all."""
        table, options = self.problem.tables[index], self._all_options(unit, index)
        if not limits.name(table):
            return options
        return [one for one in options if limits.allow(table, self.cuts_of(one), one.shards)] or options

    def _all_options(self, unit: int, index: int) -> list[Option]:
        """Return all options of a table, the whole table on one device first."""
        table, topology = self.problem.tables[index], self.problem.topology
        copied, warm = self._copied_rows(index)
        ranges = self._row_ranges(index, [first for first in copied if first < table.rows])
        options: list[Option] = []
        for first in copied:
            copies = [self._piece(PieceCut(index, Holders.COPIES, 0, first, table.dim))] if first else []
            head = (self._group(*copies),) if first else ()
            if first == table.rows:
                options.append(Option(unit, head))
                continue
            options += [Option(unit, (*head, rest), shards) for rest, shards in self._rests(index, first)]
            for ends in ranges.get(first, ()):
                cuts = [PieceCut(index, Holders.RANK, *span, table.dim) for span in pairwise(ends)]
                options.append(Option(unit, (*head, *(self._group(self._piece(cut)) for cut in cuts))))
            for last in warm:
                if last <= first or (last < table.rows and last - first < topology.devices_per_node):
                    continue
                between = self._group(self._piece(PieceCut(index, Holders.NODES, first, last, table.dim)))
                if last == table.rows:
                    options.append(Option(unit, (*head, between)))
                    continue
                spans = self._spans(index, last)
                options += [
                    Option(unit, (*head, between, rest))
                    for scope in WARM_SCOPES
                    if (rest := self._rest(index, spans, scope, table.dim)) is not None
                ]
        return options

    def _row_ranges(self, index: int, firsts: Sequence[int]) -> dict[int, list[list[int]]]:
        """Return, by first row, the ends of ranges of alike lookups into which the rows from it on may be cut.

        Each range is for a device of its own. No cut is among rows never seen: how many lookups they get together can
        be expected, but not which rows get any.
        """
        if Move.ROWS not in self.moves or self.hot_rows[index] is not None or not self._ways or not firsts:
            return {}
        profile, rows, seen = self.problem.profiles[index], self.problem.tables[index].rows, self._seen[index]
        before = profile.cdf(firsts)[:, None]
        cuts = profile.inverse_cdf(before + (1.0 - before) * self._cut_numbers / self._cut_ways).tolist()
        ranges: dict[int, list[list[int]]] = {first: [] for first in firsts}
        for first, inner in zip(firsts, cuts):
            begin = 0
            for ways in self._ways:
                ends = [first, *inner[begin : begin + ways - 1], rows]
                begin += ways - 1
                if ends[-2] <= seen and all(map(lt, ends, ends[1:])):
                    ranges[first].append(ends)
        return ranges

    def _rests(self, index: int, first: int) -> list[tuple[int, int]]:
        """Return the ways to place the rows from ``first`` on, each with its number of column ranges."""
        spans, dim, rests = self._spans(index, first), self.problem.tables[index].dim, []
        for scope, ways in self._shards:
            for shards in ways:
                if shards > 1 and dim % (shards * COLUMN_MULTIPLE):
                    continue
                rest = self._rest(index, spans, scope, dim // shards)
                if rest is not None:
                    rests.append((rest, shards))
        return rests

    def _spans(self, index: int, first: int) -> list[tuple[int, int, Tier]]:
        """Return the rows from ``first`` on by the tier that they are in."""
        rows, hot = self.problem.tables[index].rows, self.hot_rows[index]
        hbm = rows if hot is None else max(hot, first)
        away = Tier.CACHED if self._caches[index] else Tier.UVM
        return [span for span in ((first, hbm, Tier.HBM), (hbm, rows, away)) if span[0] < span[1]]

    def _rest(self, index: int, spans: Sequence[tuple[int, int, Tier]], scope: Holders, width: int) -> int | None:
        """Return the group of the rows to a table's end in one scope; None where the scope cannot have them."""
        ways, is_cut = self._devices.get(scope, 0), spans[0][0] > 0
        if not ways or (is_cut and Move.ROWS not in self.moves):
            return None
        if scope is Holders.NODES and self.hot_rows[index] is not None:
            return None
        # Dealing must leave no device without a row.
        if min(stop - start for start, stop, _ in spans) < ways:
            return None
        pieces = [
            self._piece(PieceCut(index, scope, start, stop, width, tier, number == 0, self._caches[index]))
            for number, (start, stop, tier) in enumerate(spans)
        ]
        return self._group(*pieces)

    def _copied_rows(self, index: int) -> tuple[list[int], list[int]]:
        """Return how many hottest rows may have a copy a device, and up to which row there may be a copy a node."""
        table, profile, topology = self.problem.tables[index], self.problem.profiles[index], self.problem.topology
        if Move.REPLICATE not in self.moves or topology.world_size == 1:
            return [0], []
        several = topology.nodes > 1 and topology.devices_per_node > 1
        unpooled = bool(self.counter.unpooled[index])
        hot, constants = self.hot_rows[index], self.problem.machine.constants
        limit = table.rows if hot is None else hot
        counts, ends = np.array(profile.counts, dtype=np.float64), np.cumsum(profile.row_counts)
        a_rank = counts * (self.problem.batch_size / topology.world_size / profile.samples)
        saved = a_rank * (INDEX_BYTES + 2 * self.problem.exchange.bytes * table.dim * unpooled) * self.links.exchanged
        # Lookups of copies are not sent: nobody puts them in place for their owners.
        unsent = a_rank * 1e3 * (constants.lookup_copy_s + constants.bucketise_s)
        # Nor are vectors converted, at either end.
        unsent += a_rank * 2 * self.problem.exchange.bytes * table.dim * unpooled * self.links.converted
        cost = 2.0 * table.dim * self.problem.precision.bytes * self.links.reduced

        def rows(worth: Floats, times: float) -> int:
            count = int(np.count_nonzero(worth >= times * cost))
            return min(int(ends[count - 1]), limit) if count else 0

        if Move.ROWS not in self.moves:
            return sorted({0, table.rows} if limit == table.rows else {0}), []
        break_evens = self.extent.tiers if unpooled else self.extent.break_evens
        copied = {0} | {rows(saved + unsent, times) for times in break_evens}
        if limit == table.rows:
            copied.add(table.rows)
        if not several or self.hot_rows[index] is not None or not unpooled:
            return sorted(copied), []
        # What a node's copy saves is asked by all of its devices, each of which keeps a share of it.
        local = topology.devices_per_node
        warm = {rows(saved * local, times) for times in break_evens} - {0}
        return sorted(copied), sorted(warm)
