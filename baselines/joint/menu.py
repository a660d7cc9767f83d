"""The forms that each table may have, all counted at once, and what each adds to the phases of a step."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.validate import COLUMN_MULTIPLE

from .groups import Groups
from .kernels import NUMBERS
from .limits import ANY_FORM, Limits
from .links import Links
from .pieces import CountedPieces, Counter, Form, Holders, PieceCut, TablePiece


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


class Option(NamedTuple):
    """A form of a table: numbers of its groups of pieces, each of which goes to one place."""

    table: int
    groups: tuple[int, ...]
    shards: int = 1
    """Column ranges that the last group stands for: all alike."""


class Menu:
    """Every option of every table, given how many hottest rows of each are in HBM (None: all)."""

    def __init__(
        self,
        problem: Problem,
        hot_rows: Sequence[int | None],
        moves: frozenset[Move],
        extent: Extent = FULL_MENU,
        seen_rows: Sequence[int] | None = None,
        *,
        limits: Limits = ANY_FORM,
        on_table: Callable[[], None] = lambda: None,
    ) -> None:
        """``seen_rows`` says how many rows of each table the train split saw; None stands for the profiles' numbers.

        ``limits`` say which forms a table may have; one that may have none of the menu's has them all, as whoever set
        the limits places it anew. ``on_table`` is called before each table is looked at, and may raise what ends that.
        """
        self.problem, self.hot_rows, self.moves, self.extent = problem, hot_rows, moves, extent
        self.counter, self.links = Counter(problem), Links(problem)
        self._seen = seen_rows or [profile.seen_rows for profile in problem.profiles]
        self._cuts: list[PieceCut] = []
        self._at: dict[PieceCut, int] = {}
        self._group_at: dict[tuple[int, ...], int] = {}
        self._pieces_of: list[tuple[int, ...]] = []
        self.options: list[Option] = []
        for index, table in enumerate(problem.tables):
            on_table()
            options = self._options(index)
            if limits.name(table):
                allowed = [one for one in options if limits.allow_cuts(table, self.cuts_of(one), one.shards)]
                options = allowed or options
            self.options += options
        self.counted: CountedPieces = self.counter.count(self._cuts, on_table)
        self.groups = Groups(self._pieces_of, self.counted, self.counter)
        self.first = np.searchsorted([option.table for option in self.options], np.arange(len(problem.tables) + 1))
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

    def of(self, table: int) -> range:
        """Return the numbers of a table's options."""
        return range(self.first[table], self.first[table + 1])

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

    def _options(self, index: int) -> list[Option]:
        """Return all options of a table, the whole table on one device first."""
        table, topology = self.problem.tables[index], self.problem.topology
        copied, warm = self._copied_rows(index)
        options: list[Option] = []
        for first in copied:
            copies = [self._piece(PieceCut(index, Holders.COPIES, 0, first, table.dim))] if first else []
            head = (self._group(*copies),) if first else ()
            if first == table.rows:
                options.append(Option(index, head))
                continue
            options += [Option(index, (*head, rest), shards) for rest, shards in self._rests(index, first)]
            options += [Option(index, (*head, *ranges)) for ranges in self._row_ranges(index, first)]
            for last in warm:
                if last <= first or (last < table.rows and last - first < topology.devices_per_node):
                    continue
                between = self._group(self._piece(PieceCut(index, Holders.NODES, first, last, table.dim)))
                if last == table.rows:
                    options.append(Option(index, (*head, between)))
                    continue
                options += [
                    Option(index, (*head, between, rest))
                    for scope in WARM_SCOPES
                    if (rest := self._rest(index, last, scope)) is not None
                ]
        return options

    def _row_ranges(self, index: int, first: int) -> list[tuple[int, ...]]:
        """Return ways to cut the rows from ``first`` on into ranges of alike lookups, each for a device of its own.

        No cut is among rows never seen: how many lookups they get together can be expected, but not which rows get any.
        """
        table, profile = self.problem.tables[index], self.problem.profiles[index]
        if Move.ROWS not in self.moves or self.hot_rows[index] is not None:
            return []
        share_before, ranges = float(profile.cdf(first)), list[tuple[int, ...]]()
        for ways in self.extent.ranges:
            shares = share_before + (1.0 - share_before) * np.arange(1, ways) / ways
            ends = [first, *profile.inverse_cdf(shares).tolist(), table.rows]
            spans = list(zip(ends, ends[1:]))
            is_known = ends[-2] <= self._seen[index] and all(start < stop for start, stop in spans)
            if is_known and ways <= self.problem.world_size:
                cuts = [PieceCut(index, Holders.RANK, *span, table.dim) for span in spans]
                ranges.append(tuple(self._group(self._piece(cut)) for cut in cuts))
        return ranges

    def _rests(self, index: int, first: int) -> list[tuple[int, int]]:
        """Return the ways to place the rows from ``first`` on, each with its number of column ranges."""
        table, topology, rests = self.problem.tables[index], self.problem.topology, []
        for scope, ways, places in (
            (Holders.RANK, self.extent.shards, topology.world_size),
            (Holders.NODE, self.extent.dealt_shards, topology.nodes),
            (Holders.WORLD, (1,), 1),
            (Holders.NODES, (1,), 1),
        ):
            for shards in ways:
                columns = (
                    Move.COLUMNS in self.moves and table.dim % (shards * COLUMN_MULTIPLE) == 0 and shards <= places
                )
                if shards > 1 and not columns:
                    continue
                rest = self._rest(index, first, scope, table.dim // shards)
                if rest is not None:
                    rests.append((rest, shards))
        return rests

    def _rest(self, index: int, first: int, scope: Holders, width: int | None = None) -> int | None:
        """Return the group of the rows from ``first`` on in one scope; None where the scope cannot have them."""
        table, topology, hot = self.problem.tables[index], self.problem.topology, self.hot_rows[index]
        world, local = topology.world_size, topology.devices_per_node
        several = topology.nodes > 1 and local > 1
        split, copies = Move.ROWS in self.moves, Move.REPLICATE in self.moves
        allowed = {
            Holders.RANK: first == 0 or split,
            Holders.NODE: several and split,
            Holders.WORLD: world > 1 and split,
            Holders.NODES: several and split and copies and hot is None,
        }
        if not allowed[scope]:
            return None
        hbm = table.rows if hot is None else max(hot, first)
        spans = [(first, hbm, Tier.HBM), (hbm, table.rows, Tier.UVM)]
        ways = {Holders.RANK: 1, Holders.NODE: local, Holders.WORLD: world, Holders.NODES: local}[scope]
        spans = [span for span in spans if span[0] < span[1]]
        # Dealing must leave no device without a row.
        if not all(stop - start >= ways for start, stop, _ in spans):
            return None
        return self._group(
            *(
                self._piece(PieceCut(index, scope, start, stop, width or table.dim, tier, number == 0))
                for number, (start, stop, tier) in enumerate(spans)
            )
        )

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

    @cached_property
    def contributions(self) -> "Contributions":
        """The milliseconds that the options add to the phases, computed once."""
        return Contributions(self)


WEIGHTS = np.array([1.0, 1.0, 1.0, 2.0])
"""How many times a step pays for forward, backward, lookups, and vectors, which come back as gradients."""
EXCHANGES = np.array([1.0, 2.0, 2.0, 1.0, 1.0])
"""How many times a step pays for lookups, vectors, their sums, and the gradients of copies a device and a node."""


class Contributions:
    """What options add, taken alone, [options, ...]; milliseconds where nothing else is said."""

    def __init__(self, menu: Menu) -> None:
        counted, counter, groups, options = menu.counted, menu.counter, menu.groups, menu.options
        group = np.array([one for option in options for one in option.groups], dtype=np.int64)
        ends = np.cumsum([len(option.groups) for option in options])
        times, first = np.ones(len(group)), np.concatenate([[0], ends[:-1]])
        times[ends - 1] = [option.shards for option in options]

        def sums(values: Floats) -> Floats:
            """Return the sums over the options' groups of ``values`` [groups, ...]."""
            return np.asarray(np.add.reduceat((values[group].T * times).T, first, axis=0))

        share = counter.holders[counted.scope] / menu.problem.world_size
        kernels = np.stack(counter.kernels.work_ms(counted.numbers), axis=1)
        self.kernels = sums(groups.sum(kernels * share[:, None]))
        """Forward and backward milliseconds, in the mean over the devices."""
        self.links = sums(groups.sum(menu.links.by_link_ms(counted) * share[:, None, None]))
        """Milliseconds of exchanges by link, in the mean over the devices, as ``Links.by_link_ms`` gives them."""
        self.alike = sums(groups.sum(counted.sources + menu.links.added_ms(counted) * share))
        """Milliseconds, in the mean over the devices, to put lookups in place to send them and to add up sums."""
        lumps = groups.sum(np.concatenate([kernels, np.stack(menu.links.lumps_ms(counted), axis=1)], axis=1))
        lumps[groups.scope > Holders.NODE] = 0.0
        self.largest = np.maximum.reduceat(lumps[group], first, axis=0)
        """Milliseconds of each phase on a device that has a part, of pieces that not all devices have."""
        self.size = sums(groups.sum(counted.size * ~counted.uvm))
        """Bytes in the HBM of all devices together."""
        self.spread = sums(groups.parcels[:, : NUMBERS + 2] * groups.share[:, None])
        """Kernel numbers, bytes received and bytes returned, if all were spread evenly over the devices."""
        self.sources = sums(groups.sources * (groups.scope < Holders.WORLD))
        """Milliseconds to put in place the lookups that are sent to some devices alone."""
        self.kinds = groups.kinds
        self.needs = np.zeros((len(options), len(self.kinds)), dtype=np.bool_)
        """True where an option needs the calls of a kind, [options, kinds]."""
        self.needs[np.repeat(np.arange(len(options)), np.diff(ends, prepend=0)), groups.kind[group]] = True
        self.table = np.array([option.table for option in options])
