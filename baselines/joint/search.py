"""The search for plans of one problem: menu after menu, choices of options are packed and the packings improved."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from shardbench.base.errors import Infeasible
from shardbench.model.strategy import Move

from .limits import Space
from .memory import FULL, hot_rows
from .menu import Extent, Menu
from .planner import FINISHED, Planner, TimeIsOver, WorkLeft
from .relaxation import OptionRelaxation
from .robust import SeenPlan

MAKE_S, RELAX_S = 2.5e-5, 2e-5
"""Nominal seconds of making an option of a menu, and of relaxing the choice among all options, by option."""
STARTS = 4
"""Choices of options that are placed; the search goes on with the one of shortest step, then with the others."""
CLOSE = 1.05
"""Times the best start's step beyond which another one is not searched on."""
RETRIES = 8
"""Starts, each with less in HBM, where tables do not fit."""
LESS = 0.5
"""Share of the HBM that the start before planned to fill."""
IMPROVED_SHARE = 0.5
"""Least share, of the work that a menu leaves, for improving packings: others than the first are not made of it."""
NEXT_SHARE = 0.5
"""Share of the work that the first menu leaves to the next one."""
LARGER = 6.0
"""Times the work of a menu that must be there for the next one: it is larger, and its packings are to be improved."""


Starts = Generator[SeenPlan, None, list[Planner]]
"""Yields packings as they are made, and returns their planners."""


class Search:
    """Looks for plans of the shortest step, and keeps all that it comes to."""

    def __init__(self, space: Space, work: WorkLeft, *, exchanges: bool) -> None:
        """Packings are improved by ``exchanges``."""
        self._space, self._work, self._exchanges = replace(space, check=work.check_clock), work, exchanges
        self._hot: list[int | None] = []
        self._menu_s = 0.0
        self.seen: list[SeenPlan] = []
        """All packings, and what improving made of them."""
        self.first_ms = float("inf")
        """Milliseconds of the best packing's step."""
        self.ended_by = FINISHED
        """The reason that it ended: nothing helped any more, its work or the clock."""

    @property
    def left_s(self) -> float:
        """Nominal seconds of work that are left."""
        return max(self._work.nominal_s, 0.0)

    def run(self, extents: Sequence[Extent]) -> Iterator[SeenPlan]:
        """Search with menus of these extents, the smallest first, while there is work for them; yield plans on the way.

        A larger menu may pack worse, as the relaxation takes finer options. What it gets is therefore what the one
        before it left: more work must not end in a worse plan. Raises Infeasible where no start fits.
        """
        try:
            for number, extent in enumerate(extents):
                if number and self._work.nominal_s < LARGER * self._menu_s:
                    break
                self._work.ended_by, self._work.reserve_s = FINISHED, 0.0
                several = number == 0 and len(extents) > 1
                find = self._starts if number else self._fitting
                yield from self._improve((yield from find(extent, several=several)))
                if self._work.ended_by != FINISHED:
                    self.ended_by = self._work.ended_by
        except TimeIsOver:
            self.ended_by = self._work.ended_by

    def _fitting(self, extent: Extent, *, several: bool) -> Starts:
        """Return starts of the first menu, with as much in HBM as fits; raises Infeasible where none does."""
        for attempt in range(RETRIES):
            self._hot = hot_rows(self._space, LESS**attempt)
            starts = yield from self._starts(extent, several=several)
            if starts:
                return starts
            if Move.UVM not in self._space.moves or all(kept == 0 for kept in self._hot):
                raise Infeasible("no start fits: tables have no room on the devices, whatever is in host memory")
        raise Infeasible(f"none of {RETRIES} starts fits the devices")

    def _starts(self, extent: Extent, *, several: bool) -> Starts:
        """Return planners that have placed a choice of a menu's options, the shortest step first.

        With ``several`` menus a share of the work is kept for the next one, if that is enough for it.
        """
        work, problem = self._work, self._space.problem
        menu = Menu(self._space, self._hot, extent)
        room = FULL * problem.world_size * problem.topology.hbm_bytes
        choices = OptionRelaxation(menu, room).choices()[:STARTS]
        self._menu_s = len(menu.options) * (MAKE_S + RELAX_S)
        work.nominal_s -= self._menu_s
        next_s = NEXT_SHARE * work.nominal_s
        work.reserve_s = next_s if several and next_s > LARGER * self._menu_s else 0.0
        kept_s = work.reserve_s + IMPROVED_SHARE * (work.nominal_s - work.reserve_s)
        starts, packings = list[Planner](), list[SeenPlan]()
        try:
            for choice in choices:
                if starts and work.nominal_s < kept_s:
                    break
                planner = Planner(problem, menu, work)
                if planner.construct(choice.options):
                    starts.append(planner)
                    packings.append(SeenPlan(planner))
                    self.first_ms = min(self.first_ms, planner.step_ms)
                    work.may_stop = True
                    yield packings[-1]
        finally:
            self.seen += sorted(packings, key=lambda packing: packing.step_ms)
        return sorted(starts, key=lambda planner: planner.step_ms)

    def _improve(self, starts: Sequence[Planner]) -> Iterator[SeenPlan]:
        """Improve packings, the shortest step first, while work is left."""
        for planner in starts:
            if self._work.spent or not self._exchanges or planner.step_ms > CLOSE * self.first_ms:
                break
            for _ in planner.improve():
                yield SeenPlan(planner)
            self.seen.append(SeenPlan(planner))
            yield self.seen[-1]
