"""Rankings of the tables used last, so that workloads of hundreds of large tables stay bounded."""

from collections import OrderedDict
from collections.abc import Callable

from shardbench.profile import AccessProfile
from shardbench.trace import Ranking

MAX_BYTES = 1 << 29
"""512 MiB of rankings: 128M rows of tables that are looked up often."""

Survey = tuple[Ranking, AccessProfile]


class RecentRankings:
    """Ranking and profile by table number, made when asked for and not kept.

    The last one stays however large it is; those before it as far as all are within
    ``max_bytes``, the ones not used for longest going first.
    """

    def __init__(self, make: Callable[[int], Survey], max_bytes: int = MAX_BYTES) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._kept: OrderedDict[int, Survey] = OrderedDict()

    def __getitem__(self, table: int) -> Survey:
        if table not in self._kept:
            self._kept[table] = self._make(table)
        self._kept.move_to_end(table)
        while len(self._kept) > 1 and self.nbytes > self._max_bytes:
            self._kept.popitem(last=False)
        return self._kept[table]

    @property
    def nbytes(self) -> int:
        """Memory of the rankings kept."""
        return sum(ranking.nbytes for ranking, _ in self._kept.values())
