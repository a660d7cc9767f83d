"""The way from a first plan to the best one: searches of one problem, and the choice among what they saw.

A search goes menu after menu: choices of options are packed, and the packings improved.
"""

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from shardbench.base.errors import Infeasible
from shardbench.model.expected import as_expected
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import StepSchedule
from shardbench.model.validate import has_room, memory_text

from .copies import Grouping, WholePlan, groupings
from .first import FirstPlan, first_plan
from .limits import ANY_FORM, Limits, Space
from .memory import FULL, Kept, all_fit, hot_rows
from .menu import BRIEF_MENU, FULL_MENU, LEAN_MENU, WIDE_MENU, Extent, Menu
from .planner import CLOCK, FINISHED, Planner, TimeIsOver, WorkLeft
from .relaxation import OptionRelaxation
from .robust import TIED, SeenPlan, pooled, ranked
from .state import PlanState

LEAN_TABLE_S = 2e-3
"""Seconds a table below which a budget is too short for the lean menu."""
SPENT_SHARE, LATEST_SHARE = 0.5, 0.85
"""Shares of the budget that counted work may nominally take, and after which the search stops in any case."""
ESTIMATE_S = 2e-8
"""Nominal seconds of the cost model's estimate of copies, by segment, device and device of its sharding group."""
HOPE = 1.2
"""Times the best step beyond which a brief search's plan for sharding groups is not searched on."""
CACHED_SHARE = 0.25
"""Share of the budget that counted work for plans with caches may take, beside the other work."""
GROUPED_SHARE = 0.1
"""Share of the budget that counted work for sharding groups may take, beside what is left of the other work."""
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
SHAKEN_SHARE = 0.5
"""Share of the work, of what the first of several menus leaves, for shaking the best plan."""
LARGER = 6.0
"""Times the work of a menu that must be there for the next one: it is larger, and its packings are to be improved."""
Starts = Generator[SeenPlan, None, list[Planner]]
"""Yields packings as they are made, and returns their planners."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the way has come to."""

    forms: Sequence[FirstPlan | SeenPlan | WholePlan]
    """Plans, the best one first."""
    is_counted: bool = True
    """Whether the search has begun to count."""
    first_ms: float = math.nan
    """Milliseconds of the first packing's step, without the dense model."""
    ended_by: str = "stopped"


class Search:
    """Looks for plans of the shortest step, and keeps all that it comes to."""

    def __init__(self, space: Space, work: WorkLeft, *, exchanges: bool) -> None:
        """Packings are improved by ``exchanges``."""
        self._space, self._work, self._exchanges = replace(space, check=work.check_clock), work, exchanges
        self._hot: list[Kept] = []
        self._menu_s = self._shaken_s = 0.0
        """Nominal seconds that the last menu took, and those that are kept for shaking."""
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
        before it left: more work must not end in a worse plan. The best plan is shaken last. Raises Infeasible where
        no start fits.
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
            if self._shaken_s > 0.0:
                yield from self._shake()
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

        With ``several`` menus shares of the work are kept for shaking, and for the next one if that is enough for it.
        """
        work, problem = self._work, self._space.problem
        menu = Menu(self._space, self._hot, extent)
        room = FULL * problem.world_size * problem.topology.hbm_bytes
        choices = OptionRelaxation(menu, room).choices()[:STARTS]
        self._menu_s = len(menu.options) * (MAKE_S + RELAX_S)
        work.nominal_s -= self._menu_s
        if several and self._exchanges and not self._shaken_s:
            self._shaken_s = SHAKEN_SHARE * self.left_s
            work.nominal_s -= self._shaken_s
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

    def _shake(self) -> Iterator[SeenPlan]:
        """Shake the plan of shortest step while work is left."""
        best, work = min(self.seen, key=lambda plan: plan.step_ms), self._work
        work.nominal_s, work.reserve_s, work.ended_by = self.left_s + self._shaken_s, 0.0, FINISHED
        planner = Planner.of(self._space.problem, best.menu, best.placed, work)
        for _ in planner.shake():
            yield SeenPlan(planner)
        self.seen.append(SeenPlan(planner))
        self.ended_by = work.ended_by


class Course:
    """The way of one problem."""

    def __init__(self, space: Space, plan_s: float, *, exchanges: bool, rates: bool) -> None:
        """Packings are improved by ``exchanges``; ``rates`` says whether plans are rated under draws of the machine."""
        self._deadline = time.monotonic() + LATEST_SHARE * plan_s
        self._problem, self._moves, self._limits, self._plan_s = space.problem, space.moves, space.limits, plan_s
        self._exchanges, self._rates = exchanges, rates
        seen_rows = [profile.seen_rows for profile in space.problem.profiles]
        self._space = replace(space, moves=space.moves - {Move.CACHE}, seen_rows=seen_rows)

    @cached_property
    def _nominal(self) -> PlanState:
        return PlanState(as_expected(self._problem))

    def run(self) -> Iterator[Found]:
        """Yield ever better plans; the last is the best one under draws.

        Raises Infeasible where nothing fits.
        """
        if not has_room(self._problem, self._moves):
            raise Infeasible(f"all memory together is too small: {memory_text(self._problem)}")
        first = first_plan(self._problem, self._moves)
        if first is not None:
            yield Found(forms=[first], is_counted=False)
        problem, nominal = self._nominal.problem, self._nominal
        searches = self._searches(problem, has_plan=first is not None)
        # Limits that are kept come before time, and the first plan knows none.
        best_key = first_key = (0 if self._limits == ANY_FORM else math.inf, math.inf)
        if first is not None:
            best_key = first_key = best_key[0], first.whole_ms(nominal)
        try:
            for search, extents in searches:
                for form in search.run(extents):
                    key = (self._broken(form), nominal.with_sums(form.state).whole_ms)
                    if key < best_key:
                        best_key = key
                        yield Found(forms=[form], first_ms=searches[0][0].first_ms)
                # Where memory is short, caches promise more than the searches to come.
                _ = self._cached_forms
        except Infeasible:
            if first is None:
                raise
        seen = [form for search, _ in searches for form in search.seen if self._broken(form) <= best_key[0]]
        pool = pooled(problem, seen) if seen else []
        forms: list[FirstPlan | SeenPlan | WholePlan] = [
            *(ranked(problem, pool, self._plan_s, self._deadline) if self._rates else pool)
        ]
        if first is not None and best_key == first_key:
            forms.insert(0, first)
        search, best = searches[0][0], forms[0]
        found = Found(forms=forms, first_ms=search.first_ms, ended_by=search.ended_by)
        yield found
        # The best one under draws may have a longer step than the shortest.
        best_ms = nominal.with_sums(best.state).whole_ms if isinstance(best, SeenPlan) else best_key[1]
        left_s = sum(search.left_s for search, _ in searches)
        broken = self._broken(best) if isinstance(best, SeenPlan) else best_key[0]
        cached = self._cached((broken, best_ms))
        if cached is not None:
            found, best_ms = replace(found, forms=[cached, *found.forms]), cached.whole_ms
            yield found
        yield from self._copied(found, best_ms, GROUPED_SHARE * self._plan_s + left_s)

    def step_ms(self, found: Found) -> float:
        """Return the whole step of the best plan; nan before anything is counted."""
        form = found.forms[0]
        if not found.is_counted or isinstance(form, WholePlan):
            return form.whole_ms if isinstance(form, WholePlan) else math.nan
        state = self._nominal
        return state.with_sums(form.state).whole_ms if isinstance(form, SeenPlan) else form.whole_ms(state)

    @cached_property
    def _cached_forms(self) -> list[SeenPlan]:
        """Plans that a search with caches saw."""
        space = replace(self._space, problem=self._nominal.problem, moves=self._moves)
        if Move.CACHE not in self._moves or all_fit(space, 1.0):
            return []
        work = WorkLeft(nominal_s=CACHED_SHARE * self._plan_s, deadline=self._deadline, may_stop=True)
        search = Search(space, work, exchanges=self._exchanges)
        with suppress(Infeasible):
            deque(search.run([BRIEF_MENU, LEAN_MENU, FULL_MENU]), maxlen=0)
        return search.seen

    def _cached(self, best_key: tuple[float, float]) -> WholePlan | None:
        """Return the best plan with caches, if it keeps more limits or has a shorter step than ``best_key`` says."""
        rated = ((self._broken(form), form.step_ms, number) for number, form in enumerate(self._cached_forms))
        broken, _, number = min(rated, default=(math.inf, math.inf, -1))
        best = WholePlan(self._nominal.problem, self._cached_forms[number]) if number >= 0 else None
        # Tables that share a cache take slots from each other, which the search does not know. A tie is no gain.
        tie_ms = (TIED - 1.0) * (best_key[1] - self._nominal.overlap.dense_ms)
        return best if best is not None and (broken, best.whole_ms + tie_ms) < best_key else None

    def _copied(self, found: Found, best_ms: float, nominal_s: float) -> Iterator[Found]:
        """Yield what was found behind plans that sharding groups copy, each of a shorter step than ``best_ms``.

        A brief search tells which groups are best; for these the rest of the work is.
        """
        if Move.REPLICATE not in self._moves or not self._limits.may_copy(self._problem.tables):
            return
        # Nothing hides the averaging, nor the dense model.
        most_ms = best_ms - self._nominal.overlap.dense_ms
        several = [one for one in groupings(self._nominal.problem) if one.averaging_ms < most_ms]
        best: WholePlan | None = None
        for menus, shares in (([BRIEF_MENU], len(several) + 1), ([LEAN_MENU, FULL_MENU], 1)):
            share_s = nominal_s / shares
            for grouping in several:
                copied, spent_s = self._of_groups(grouping, menus, share_s)
                nominal_s -= spent_s
                if copied is not None and (best is None or copied.whole_ms < best.whole_ms):
                    best = copied
                    if TIED * best.whole_ms < best_ms:
                        yield replace(found, forms=[best, *found.forms])
            several = [best.grouping] if best and best.grouping and best.whole_ms < HOPE * best_ms else []

    def _of_groups(
        self, grouping: Grouping, menus: Sequence[Extent], nominal_s: float
    ) -> tuple[WholePlan | None, float]:
        """Return the best plan for sharding groups that limits allow, if any, and the nominal seconds spent."""
        limits, one = self._limits, grouping.one
        within = Limits(tiers=limits.tiers, columns=limits.columns)
        work = WorkLeft(nominal_s=nominal_s, deadline=self._deadline, may_stop=True)
        space = replace(self._space, problem=one, limits=within, averaging_s=grouping.averaging_s)
        search = Search(space, work, exchanges=self._exchanges)
        if has_room(one, self._moves):
            with suppress(Infeasible):
                deque(search.run(menus), maxlen=0)
        copied = (
            WholePlan(grouping.whole, form, grouping)
            for form in sorted(search.seen, key=lambda form: form.step_ms)
            if not form.broken(within, one)
        )
        best = next((plan for plan in copied if limits.allow_types(plan.segments, self._problem)), None)
        left_s = search.left_s
        if best is not None:
            left_s -= ESTIMATE_S * len(best.segments) * self._problem.world_size * one.world_size
        # What the estimate of its step has no time for is left.
        in_time = left_s >= 0.0 and search.ended_by != CLOCK
        return best if in_time else None, nominal_s - max(left_s, 0.0)

    def _broken(self, form: SeenPlan) -> int:
        return 0 if self._limits == ANY_FORM else form.broken(self._limits, self._problem)

    def _searches(self, problem: Problem, *, has_plan: bool) -> list[tuple[Search, list[Extent]]]:
        """Return the searches, each with a share of the work, and the extents of their menus."""
        problems, limits = [problem], [self._limits]
        # What a pipeline hides depends on all tables at once. A plan that hides nothing is often short as well, so that
        # half of the work goes into one.
        if problem.schedule is StepSchedule.PIPELINED:
            problems.append(replace(problem, schedule=StepSchedule.SEQUENTIAL))
        # The best plan of all may keep the limits, and a smaller menu leads elsewhere.
        if self._limits != ANY_FORM:
            limits.append(ANY_FORM)
        plan_s = self._plan_s / (len(problems) * len(limits))
        is_brief = plan_s < LEAN_TABLE_S * len(problem.tables)
        extents = [BRIEF_MENU] if is_brief else [LEAN_MENU, FULL_MENU, WIDE_MENU]
        searches = list[tuple[Search, list[Extent]]]()
        for one, each in product(problems, limits):
            may_stop = has_plan or bool(searches)
            work = WorkLeft(nominal_s=SPENT_SHARE * plan_s, deadline=self._deadline, may_stop=may_stop)
            search = Search(replace(self._space, problem=one, limits=each), work, exchanges=self._exchanges)
            searches.append((search, extents))
        return searches

    def finished(self, found: Found, number: int = 0) -> Plan:
        """Return one of the plans; its notes say its step, the first packing's, and the reason that the search ended.

        A plan that was made before anything was counted has no steps.
        """
        form, notes = found.forms[number], dict[str, float | int | str]()
        if isinstance(form, SeenPlan):
            predicted_ms = form.under(self._nominal).times().step_ms
            notes |= {"first_ms": found.first_ms, "predicted_ms": predicted_ms}
        elif isinstance(form, WholePlan):
            overlap = self._nominal.overlap
            predicted_ms = form.whole_ms - overlap.dense_ms - overlap.reduced_ms
            notes |= {"first_ms": found.first_ms, "predicted_ms": predicted_ms}
        notes["ended_by"] = found.ended_by
        groups = form.made.groups if isinstance(form, WholePlan) else None
        return Plan(world_size=self._problem.world_size, segments=form.segments, notes=notes, groups=groups)
