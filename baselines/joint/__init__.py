"""Joint planner: all device moves at once, for the shortest predicted step."""

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from functools import partial
from typing import ClassVar

from shardbench.model.plan import Plan, Tier
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Improvement, Move, Role, Strategy, TableLimits

from .course import Course
from .limits import Limits, Space


class Joint(Strategy):
    """All device moves at once, table by table, for the shortest step that the cost model predicts."""

    name = "joint"
    version = 4
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
    moves = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE, Move.UVM})
    exchanges: bool = True
    """True where packings are improved by exchanges."""
    rates: bool = True
    """True where the plan is chosen by its mean step under draws of the machine, False where by the nominal one."""
    limits: TableLimits = TableLimits()
    """The forms and the places that tables may have."""

    def under(self, limits: TableLimits) -> "Joint":
        """Return the same planner with what limits leave alone on the menu, and with caches where they name them."""
        limited = copy(self)
        limited.limits = limits
        if any(Tier.CACHED in tiers for tiers in limits.tiers.values()):
            limited.moves = self.moves | {Move.CACHE}
        return limited

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the best plan found; all draws are the same every time.

        Its notes hold the first plan's step, its own step, and the reason that the search ended.

        Raises Infeasible where no start fits.
        """
        return self.plans(problem, budget, seed, 1)[0]

    def plans(self, problem: Problem, budget: Budget, seed: int, most: int) -> tuple[Plan, ...]:
        """Return ``plan``'s plan and other good ones that the searches saw, at most ``most``, best first.

        Raises Infeasible where no start fits.
        """
        course = self._course(problem, budget)
        (found,) = deque(course.run(), maxlen=1)
        return tuple(course.finished(found, number) for number in range(min(most, len(found.forms))))

    def improvements(self, problem: Problem, budget: Budget, seed: int) -> Iterator[Improvement]:
        """Yield ever better plans, the first one before anything is counted.

        The last is the best one under draws of the machine. Raises Infeasible where no start fits.
        """
        course = self._course(problem, budget)
        for found in course.run():
            yield Improvement(step_ms=partial(course.step_ms, found), make_plan=partial(course.finished, found))

    def _course(self, problem: Problem, budget: Budget) -> Course:
        space = Space(problem, self.moves, Limits.of(self.limits, problem))
        return Course(space, budget.plan_s, exchanges=self.exchanges, rates=self.rates)


class Variant(Joint):
    """The planner without some of its parts, or one that chooses in another way, to show what each gains.

    It is one that runs only where a suite or study names it.
    """

    role: ClassVar[Role] = Role.VARIANT

    def __init__(
        self, name: str, *, moves: frozenset[Move] = Joint.moves, exchanges: bool = True, rates: bool = True
    ) -> None:
        self.name, self.moves, self.exchanges, self.rates = name, moves, exchanges, rates


VARIANTS = (
    Variant("joint-no-columns", moves=Joint.moves - {Move.COLUMNS}),
    # No table is dealt or cut by row.
    Variant("joint-no-rows", moves=Joint.moves - {Move.ROWS}),
    Variant("joint-no-copies", moves=Joint.moves - {Move.REPLICATE}),
    Variant("joint-no-uvm", moves=Joint.moves - {Move.UVM}),
    Variant("joint-whole-tables", moves=frozenset({Move.TABLE})),
    # The relaxation and the packing of its choices alone.
    Variant("joint-packed-only", exchanges=False),
)
"""The planner without some of its parts."""
NOMINAL = Variant("joint-nominal", rates=False)
"""The planner that takes the shortest step under the constants as they are, whatever ties with it."""


def strategies() -> Iterable[Strategy]:
    """Return the planner, the planner without some of its parts, and the planner that knows no draws."""
    return (Joint(), *VARIANTS, NOMINAL)
