"""The interface that every strategy implements: one method, and what it sees and may do."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT
from shardbench.model.plan import Plan, Tier
from shardbench.model.problem import Problem, Sees


class Move(StrEnum):
    """What a plan may do with a table."""

    TABLE = "table"
    """Put it whole on one rank."""
    COLUMNS = "columns"
    """Split its columns into ranges."""
    ROWS = "rows"
    """Split its rows into segments or deal them over ranks."""
    REPLICATE = "replicate"
    """Copy rows to several ranks or nodes."""
    UVM = "uvm"
    """Use host memory read by the device."""
    CACHE = "cache"
    """Keep a cache of host memory in HBM, which rows enter as batches ask for them; a plan that does uses UVM, too."""
    HOST = "host"
    """Use host memory looked up by the CPU."""
    SCHEDULE = "schedule"
    """Reorder samples into hot and cold mini-batches."""
    LOCAL_STEPS = "local_steps"
    """Average the copies of rows every few steps only, which trains another model."""


class Role(StrEnum):
    """Competitors are compared; a search shows how good a plan is found with more time than a planner has.

    A variant (an ablation of a competitor) runs only where a suite or the user names it, and so does a strategy whose
    plans train another model than all others, and which therefore stands in no ranking with them.
    """

    COMPETITOR = "competitor"
    SEARCH = "search"
    VARIANT = "variant"
    OTHER_MODEL = "other_model"

    @property
    def named_only(self) -> bool:
        """Tell whether such strategies run only where a suite or the user names them."""
        return self in (Role.VARIANT, Role.OTHER_MODEL)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Budget:
    """What a strategy may spend; the harness enforces the seconds from outside."""

    plan_s: PositiveFloat = 60.0
    fit_s: PositiveFloat = 600.0


@plain_dataclass(frozen=True, kw_only=True)
class Improvement:
    """A plan on the way to the best one, made only when it is wanted."""

    step_ms: Callable[[], float]
    """Gives the milliseconds of the whole step with a dense model, as the strategy predicts it; nan without asking."""
    make_plan: Callable[[], Plan]


@plain_dataclass(frozen=True)
class TableLimits:
    """What constraints say of tables, by name: nothing of one that is not named."""

    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The sharding types that a table may have."""
    tiers: Mapping[str, frozenset[Tier]] = field(default_factory=dict)
    """The kinds of memory that its rows may be in."""
    devices: tuple[tuple[str, ...], ...] = ()
    """Groups of tables that are whole on one device."""
    nodes: tuple[tuple[str, ...], ...] = ()
    """Groups of tables of which every row is on one node."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """The least columns of a part of a table."""
    caches: Mapping[str, float] = field(default_factory=dict)
    """The share of its rows that a table's cache in HBM has slots for, where it has one."""


class Strategy(ABC):
    """Makes plans. A subclass states ``name``, ``sees`` and ``moves`` and implements ``plan``.

    Planning runs in a process of its own in which the test split is sealed; only what
    ``sees`` declares can be read off the problem; a plan that uses an undeclared move is
    recorded as ``invalid``. Other packages' strategies plan behind a wall, where bubblewrap is installed; docs/rules.md
    says what nothing stops.
    """

    name: str
    sees: ClassVar[frozenset[Sees]]
    moves: frozenset[Move]
    role: ClassVar[Role] = Role.COMPETITOR
    version: ClassVar[int] = 1
    """Raise it when it makes other plans than before: what is on record by an older one is then made again."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Importable modules the strategy needs; where one is missing its trials are ``skipped``."""

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Learn from training problems (nothing to learn by default); its time is recorded."""

    @abstractmethod
    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return a plan for ``problem``, the same for the same seed.

        Raises Infeasible where there is none. Must return within ``budget.plan_s`` seconds.
        """

    def plans(self, problem: Problem, budget: Budget, seed: int, most: int) -> tuple[Plan, ...]:
        """Return ``plan``'s plan and up to ``most - 1`` others, best first, for a race; ``plan``'s alone by default.

        Raises Infeasible where there is none. Must return within ``budget.plan_s`` seconds.
        """
        return (self.plan(problem, budget, seed),)

    def improvements(self, problem: Problem, budget: Budget, seed: int) -> Iterator[Improvement]:
        """Yield ever better plans, so that whoever stops has the last one; ``plan``'s alone by default.

        Where nobody stops, the last one is ``plan``'s. Raises Infeasible where there is none.
        """
        plan = self.plan(problem, budget, seed)
        yield Improvement(step_ms=lambda: math.nan, make_plan=lambda: plan)

    def under(self, limits: TableLimits) -> "Strategy":
        """Return a strategy that plans within limits; itself by default: others mend what it plans."""
        return self
