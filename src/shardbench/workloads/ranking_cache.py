"""Rankings kept in bounded memory, so that workloads of hundreds of large tables stay affordable."""

from collections.abc import Callable
from weakref import WeakValueDictionary

from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Ranking

MAX_BYTES = 1 << 29
"""512 MiB of rankings: 64M rows that were looked up."""

Survey = tuple[Ranking, AccessProfile]


class CompactRanking(Ranking):
    """A Ranking in less memory: it has an array of all rows only where seen ones and their ranks may take as much."""

    DENSE_ROWS_PER_LOOKUP = 2


class RankingMemory:
    """Bytes of rankings that all workloads of a process may keep together; ``max_bytes`` may be set at any time."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        # By id, since a weak set knows no order; the one active last is last.
        self._users: WeakValueDictionary[int, RecentRankings] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Return the memory of the rankings that are kept."""
        return sum(user.nbytes for user in self._users.values())

    def make_room(self, user: "RecentRankings", table: int) -> None:
        """Drop rankings until all fit: first other users', the one not active for longest first, then ``user``'s."""
        self._users.pop(id(user), None)
        self._users[id(user)] = user
        excess = self.nbytes - self.max_bytes
        for other in list(self._users.values()):
            while excess > 0 and (freed := other.drop_last_in_turn(table if other is user else None)):
                excess -= freed


PROCESS_MEMORY = RankingMemory()
"""What rankings share unless told otherwise."""


class RecentRankings:
    """Ranking and profile by table number, made when asked for and not kept.

    Profiles, which are small, stay. So does the ranking asked for last, however large it is;
    others as far as ``memory`` lasts, those of workloads used earlier going first. Of this
    workload's goes the one whose turn is last if tables are asked for in order, again and again,
    as they are (for the profiles, then for each batch): dropping the one not used for longest
    would drop each just before its turn, and keep none for the next round.
    """

    def __init__(self, make: Callable[[int], Survey], memory: RankingMemory | None = None) -> None:
        self._make = make
        self._memory = PROCESS_MEMORY if memory is None else memory
        self._rankings: dict[int, Ranking] = {}
        self._profiles: dict[int, AccessProfile] = {}
        self.nbytes = 0
        """Memory of the rankings that are kept."""

    def __reduce__(self) -> tuple[type["RecentRankings"], tuple[Callable[[int], Survey]]]:
        # A copy in another process starts empty, within that process's memory.
        return RecentRankings, (self._make,)

    def __getitem__(self, table: int) -> Survey:
        if table not in self._rankings:
            self._rankings[table], self._profiles[table] = self._make(table)
            self.nbytes += self._rankings[table].nbytes
        self._memory.make_room(self, table)
        return self._rankings[table], self._profiles[table]

    def profile(self, table: int) -> AccessProfile:
        """Return the profile of one table, which is surveyed once only."""
        return self._profiles[table] if table in self._profiles else self[table][1]

    def drop_last_in_turn(self, using: int | None) -> int:
        """Forget the ranking whose turn after table ``using`` is last; return the bytes freed, 0 where none is left."""
        others = [table for table in self._rankings if table != using]
        if not others:
            return 0
        before = [table for table in others if using is not None and table < using]
        freed = self._rankings.pop(max(before or others)).nbytes
        self.nbytes -= freed
        return freed
