"""Histories of music listeners like those of MLPerf's DLRMv4: eleven unpooled tables of Yambda-5b, drawn.

A block of samples is made of *runs*: the events of one user on one day, one sample an event, in order. A sample has
the user's latest events of three kinds as its history (items, their albums and artists), the event itself as its
candidate, and seven crossed features of one lookup each. What is published of the data and what is assumed stands in
the card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt
from scipy.special import ndtr, ndtri

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.datasets.laws.power_law import MAX_HASHED_ROWS, PowerLaw, hashed_rows
from shardbench.model.table import BatchSize, Distinct, Name, Pooling, Table, Width
from shardbench.workloads.drawn import DrawnConfig, DrawnWorkload, ProfileSamples
from shardbench.workloads.hotness import join
from shardbench.workloads.trace import Bags, Split, bag_offsets, gather_bags
from shardbench.workloads.workload import FIRST_IDS, WorkloadConfig

ROWS = {
    "item_id": 9_390_624, "artist_id": 1_293_395, "album_id": 3_367_692, "uid": 1_000_001,
    "user_x_artist": 100_000_000, "user_x_album": 40_000_000, "user_x_hour": 24_000_000, "item_x_hour": 40_000_000,
    "artist_x_hour": 32_000_000, "user_x_is_organic": 2_000_000, "user_x_artist_x_hour": 40_000_000,
}  # fmt: skip
HISTORIES = ("item_id", "artist_id", "album_id")
"""Tables of two features: the history and the candidate."""
WIDTH = 512
BLOCK, KEPT = 1_024, 8
"""Samples that are drawn at once, as many as a rank of the benchmark has, so that train samples are the same whatever
the batch; and blocks whose events are kept for the other tables."""
POOL = 1_362
"""Latest events of each kind that a history keeps."""
LISTENED, SKIPPED, LIKED = 0.6125, 0.3587, 0.019
"""Shares of all events of the kinds that a history keeps a pool of, as published but for the last digit, so that the
published rest is left, of which it keeps nothing."""
LIKES, LIKES_EXPONENT = 3.48, -0.6
"""A user's share of likes is this, times a power of its events: who hears more likes less of it."""
POOLS = 3
"""Kinds that a history has a pool of; events of all others are a kind of their own."""
EVENTS_CENTRE, EVENTS_SPREAD, EVENTS_MAX = 2_922.0, 1.35, 27_738.0
"""A user's events in all days: a cut lognormal law whose median and mean are the published 2,695 and 4,763."""
DAYS = 330.0
"""A run has a user's events divided by this, on average, and at least one: what a day has of them, and a fit."""
TRAINED_FROM = 0.6
"""Share of a user's events that lie before the first day that is trained on."""
ORGANIC = 0.5
SIZES = {"uid": ROWS["uid"], "hour": 24, "is_organic": 2, **{name: ROWS[name] for name in HISTORIES}}
CROSSED = {
    "user_x_artist": ("uid", "artist_id"), "user_x_album": ("uid", "album_id"), "user_x_hour": ("uid", "hour"),
    "item_x_hour": ("item_id", "hour"), "artist_x_hour": ("artist_id", "hour"),
    "user_x_is_organic": ("uid", "is_organic"), "user_x_artist_x_hour": ("uid", "artist_id", "hour"),
}  # fmt: skip
"""The keys of each crossed feature."""
NEW_ITEM, NEW_ALBUM, NEW_ARTIST = 0.8, 0.68, 0.22
"""Share of a user's events with a new item, of new items on a new album, of new albums by a new artist: fitted to the
shares of distinct ids in a rank's batch."""
EXPONENT, SHIFT = 1.0, 20.0
"""Popularity of artists, as a power law of their ranks."""
ALBUMS, ITEMS = 0.6, 0.9
"""The first k of n artists have (k / n) to this power of the albums, and the first albums of the items."""
NO_ALBUM, NO_ARTIST = 0.058, 0.0097
"""Share of items without an album or artist, which have row 0: what makes its owner's load the published one."""


class HistoriesConfig(WorkloadConfig):
    """What is stated of the benchmark's tables and histories, drawn or recorded."""

    batch_size: BatchSize = 8_192
    """1,024 samples a rank on eight ranks."""
    dim: Width = WIDTH
    pool: PositiveInt = POOL
    """Latest events of each of three kinds that a history keeps."""
    distinct: Distinct = False
    """Whether ids are made distinct before ranks exchange them, as the benchmark does."""

    def tables(self, rows: Mapping[str, int]) -> tuple[Table, ...]:
        """Return the tables of these rows by name; histories share theirs with the candidates."""
        return tuple(
            Table(
                name=name, rows=of_table, dim=self.dim, pooling=Pooling.NONE, features=1 + (name in HISTORIES),
                distinct=self.distinct,
            )
            for name, of_table in rows.items()
        )  # fmt: skip


class YambdaLikeConfig(HistoriesConfig, DrawnConfig):
    """The benchmark's tables, or a scaled form of them for ranks on a small machine."""

    dataset: Literal["yambda_like"] = "yambda_like"
    name: Name = "yambda-like"
    row_scale: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Multiplies the rows of every table."""
    profile_samples: ProfileSamples = 8_192
    """Train samples that profiles are counted over: 22 million lookups of each history."""
    day: Annotated[int, Field(ge=0, le=10_000, exclude_if=lambda day: day == 0)] = 0
    """The day whose artists are heard; 0 is not written, so that hashes are those of before days could be chosen."""
    renewed: Annotated[float, Field(ge=0.0, lt=1.0, exclude_if=lambda share: share == 0.0)] = 0.0
    """Share of the artists, all alike, whose place another one has taken after a day, with other albums and items."""

    def build(self, data: Path) -> "YambdaLike":
        """Return the workload, which needs no files."""
        return YambdaLike(self)


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of some users, and what each sample takes of them.

    ``ids`` int64 [events] by history table: rows, sorted by user, kind and time. ``begins`` and ``lengths`` int64
    [samples x kinds]: where a sample's pools lie among them; ``own`` int64 [samples]: where its own event does.
    ``keys`` int64 [samples] by name: what is crossed.
    """

    ids: dict[str, Ints]
    begins: Ints
    lengths: Ints
    own: Ints
    keys: dict[str, Ints]

    @classmethod
    def of(
        cls, ids: dict[str, Ints], kind: Ints, counts: Ints, *, run: Ints, own: Ints, keys: dict[str, Ints], pool: int
    ) -> "Events":
        """Sort events by kind, and give each sample the latest ``pool`` before its own event of each.

        ``ids`` int64 [events] by history table and ``kind`` int64 [events] are of runs of ``counts`` events of one
        user, in the order of time; ``run`` and ``own`` int64 [samples]: the run and the event of each sample. ``keys``
        are what is crossed beside the rows of the own event.
        """
        firsts = np.cumsum(counts) - counts
        part = np.repeat(np.arange(len(counts)), counts) * (POOLS + 1) + kind
        order = np.argsort(part, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        part_begins = np.searchsorted(part[order], np.arange(len(counts) * (POOLS + 1))).reshape(-1, (POOLS + 1))
        seen = np.stack([_before(kind == one, own, firsts[run]) for one in range(POOLS)], axis=1)
        kept = np.minimum(seen, pool)
        return cls(
            ids={name: rows[order] for name, rows in ids.items()},
            begins=(part_begins[run, :POOLS] + seen - kept).ravel(),
            lengths=kept.ravel(),
            own=places[own],
            keys=keys | {name: rows[own] for name, rows in ids.items()},
        )

    def bags(self, table: str) -> Bags:
        """Return the history and the candidate of every sample."""
        pools = gather_bags(self.ids[table], self.begins, self.lengths)
        history = Bags(values=pools.values, offsets=pools.offsets[::POOLS])
        return Bags.shared([history, _single(self.ids[table][self.own])])


def single_lookups(table: str, keys: Mapping[str, Ints], rows: int, number: int) -> Bags:
    """Return the one lookup of every sample in a table without histories, of ``rows`` rows and this number.

    It is a key, or the hash of the keys that are crossed, int64 [samples] by name.
    """
    if table in keys:
        return _single(keys[table])
    crossed = np.zeros(len(keys["uid"]), dtype=np.int64)
    for key in CROSSED[table]:
        crossed = crossed * SIZES[key] + keys[key]
    return _single(hashed_rows(crossed, rows, number))


class YambdaLike(DrawnWorkload):
    """Listeners drawn on demand; all tables of a block of samples are of the same events."""

    _config: YambdaLikeConfig
    _kept: dict[tuple[Split, int], Events]

    def __init__(self, config: YambdaLikeConfig) -> None:
        super().__init__(config)
        self._rows = {name: max(2, round(rows * config.row_scale)) for name, rows in ROWS.items()}
        self.tables = config.tables(self._rows)

    @property
    def block_samples(self) -> int:
        """Return how many samples are drawn together."""
        return min(BLOCK, self.batch_size)

    def events(self, split: Split, block: int) -> Events:
        """Return the events of a block of samples, from which the lookups of all its tables are made."""
        if (split, block) not in self._kept:
            if len(self._kept) >= max(KEPT, self._batch_blocks):
                self._kept.clear()
            self._kept[split, block] = self._events(self._generator(split, block, 0))
        return self._kept[split, block]

    @property
    def _batch_blocks(self) -> int:
        return -(-self.batch_size // self.block_samples)

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        first = batch * self._batch_blocks
        blocks = [self._block(split, number, table) for number in range(first, first + self._batch_blocks)]
        return join(blocks).samples(0, self.batch_size)

    def _train(self, table: int) -> Iterator[Bags]:
        return (self._block(Split.TRAIN, number, table) for number in count())

    def _first_ids(self, table: int) -> Ints:
        return self.ranking(table)(self._block(Split.TEST, 0, table).values[:FIRST_IDS])

    def _block(self, split: Split, number: int, table: int) -> Bags:
        events, name = self.events(split, number), self.tables[table].name
        if name in HISTORIES:
            return events.bags(name)
        return single_lookups(name, events.keys, self._rows[name], table)

    def _events(self, generator: np.random.Generator) -> Events:
        """Draw runs until they have a block of samples, and the events of each up to its last one."""
        users, lifetimes, samples = self._runs(generator)
        past = (generator.uniform(TRAINED_FROM, 1.0, len(samples)) * lifetimes).astype(np.int64)
        counts = past + samples
        firsts = np.cumsum(counts) - counts
        ids = self._ids(counts, generator)
        kind = _kinds(lifetimes, counts, generator)
        run = np.repeat(np.arange(len(samples)), samples)
        own = (firsts + past)[run] + np.arange(len(run)) - np.repeat(np.cumsum(samples) - samples, samples)
        keys = {
            "uid": users[run],
            "hour": generator.integers(0, SIZES["hour"], len(counts))[run],
            "is_organic": (generator.random(len(run)) < ORGANIC).astype(np.int64),
        }
        return Events.of(ids, kind, counts, run=run, own=own, keys=keys, pool=self._config.pool)

    def _runs(self, generator: np.random.Generator) -> tuple[Ints, Floats, Ints]:
        """Draw runs: the user's row, its events in all days, and the run's samples, which are a block together."""
        activity = generator.random(self.block_samples)  # every run has a sample at least
        lifetimes = user_events(activity)
        samples = generator.geometric(1.0 / np.maximum(1.0, lifetimes / DAYS))
        runs = int(np.searchsorted(np.cumsum(samples), self.block_samples)) + 1
        samples = samples[:runs]
        samples[-1] -= int(samples.sum()) - self.block_samples
        # The most active users have the first rows.
        users = ((1.0 - activity[:runs]) * self._rows["uid"]).astype(np.int64)
        return users, lifetimes[:runs], samples

    def _ids(self, counts: Ints, generator: np.random.Generator) -> dict[str, Ints]:
        """Draw item, album and artist of every event int64 [events], of runs of ``counts`` events.

        An event repeats an earlier one of its run, evenly drawn, or has a new item; a new item likewise is on the album
        of an earlier one or on a new album, and that by an earlier artist or by a new one.
        """
        new_item, items = _repeats(counts, NEW_ITEM, generator)
        new_album, albums = _repeats(items, NEW_ALBUM, generator)
        new_artist, artists = _repeats(albums, NEW_ARTIST, generator)
        # Row 0 is nobody's.
        owners = {name: self._rows[name] - 1 for name in HISTORIES}
        law = PowerLaw(rows=owners["artist_id"], exponent=EXPONENT, shift=SHIFT)
        artist = law.sample(generator, int(artists.sum()))[new_artist]
        album = _within(artist, owners["artist_id"], owners["album_id"], ALBUMS, generator)[new_album]
        item = _within(album, owners["album_id"], owners["item_id"], ITEMS, generator)[new_item]
        artist, album = artist[new_album][new_item], album[new_item]
        gone = _is_chosen(artist, 1.0 - (1.0 - self._config.renewed) ** self._config.day, 2)
        if gone.any():
            item, artist, album = (
                np.where(gone, hashed_rows(ids, owners[name], 3), ids)
                for name, ids in zip(HISTORIES, (item, artist, album), strict=True)
            )
        return {
            "item_id": item + 1,
            "artist_id": np.where(_is_chosen(item, NO_ARTIST, 0), 0, artist + 1),
            "album_id": np.where(_is_chosen(item, NO_ALBUM, 1), 0, album + 1),
        }


def _repeats(counts: Ints, new: float, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Let each of a run's things be new by this chance, as its first one is, or else repeat any earlier one.

    Returns the number of the new thing that each is or repeats, int64 [n], and how many of these each run has.
    """
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    earlier = (generator.random(len(within)) * within).astype(np.int64)
    is_new = (generator.random(len(within)) < new) | (within == 0)
    source = np.arange(len(within)) - np.where(is_new, 0, within - earlier)
    while not bool(is_new[source].all()):
        source = source[source]
    numbers = np.cumsum(is_new) - 1
    runs = np.repeat(np.arange(len(counts)), counts)
    return numbers[source], np.bincount(runs[is_new], minlength=len(counts))


def _within(owners: Ints, all_owners: int, rows: int, popular: float, generator: np.random.Generator) -> Ints:
    """Draw one of what each owner has, int64 [n]: of k owners all have (k / owners)^``popular`` of the rows.

    The first row of an owner is drawn most often.
    """
    begins, ends = ((rows * (k / all_owners) ** popular).astype(np.int64) for k in (owners, owners + 1))
    drawn = begins + ((ends - begins) * generator.random(len(owners)) ** 2).astype(np.int64)
    return np.minimum(drawn, rows - 1)


def _is_chosen(items: Ints, share: float, key: int) -> Bools:
    """Tell of every item, always the same, whether it is one of this share."""
    return hashed_rows(items, MAX_HASHED_ROWS, key) < share * MAX_HASHED_ROWS


def user_events(activity: Floats) -> Floats:
    """Return the events of users in all days float64 [n], of whom a share ``activity`` in [0, 1) has fewer."""
    uncut = float(ndtr(np.log(EVENTS_MAX / EVENTS_CENTRE) / EVENTS_SPREAD))
    return np.asarray(EVENTS_CENTRE * np.exp(EVENTS_SPREAD * ndtri(activity * uncut)))


def kind_shares(lifetimes: Floats) -> Floats:
    """Return the shares float64 [n, kinds] of users' events that are listened to, skipped, liked and of other kinds."""
    likes = np.minimum(LIKES * np.maximum(lifetimes, 1.0) ** LIKES_EXPONENT, 1.0)
    others = (1.0 - likes) / (1.0 - LIKED)
    return np.stack([LISTENED * others, SKIPPED * others, likes, (1.0 - LISTENED - SKIPPED - LIKED) * others], axis=1)


def _kinds(lifetimes: Floats, counts: Ints, generator: np.random.Generator) -> Ints:
    """Draw the kind of every event int64 [events], in the order of ``kind_shares``."""
    drawn = generator.random(int(counts.sum()))
    ends = np.cumsum(kind_shares(lifetimes), axis=1).T[:POOLS]
    return np.asarray(np.sum([drawn >= np.repeat(end, counts) for end in ends], axis=0, dtype=np.int64))


def _before(is_kind: Bools, events: Ints, firsts: Ints) -> Ints:
    """Count the events of a kind before each event, from the first one of its run on."""
    counts = bag_offsets(is_kind.astype(np.int64))
    return counts[events] - counts[firsts]


def _single(rows: Ints) -> Bags:
    return Bags(values=rows, offsets=np.arange(len(rows) + 1))


CONFIG = YambdaLikeConfig
