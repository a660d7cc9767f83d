"""Strategies as they declare themselves; those of other people's packages do so in a process of their own.

Such a process is behind a wall, where bubblewrap can build one: no strategy of the package runs in this one.
"""

import base64
import binascii
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata

from pydantic import TypeAdapter, ValidationError

from shardbench.base.code import files_hash, owner_of, places_of, shipped_data
from shardbench.base.deadline import within
from shardbench.base.errors import BadInput, Infeasible, described
from shardbench.base.plugins import LOADS_S, load_package
from shardbench.base.serialise import FiniteModel
from shardbench.base.temporary import temporary_folder
from shardbench.base.wall import wall_around
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.engine.processes.launch import Worker
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy
from shardbench.model.table import NAME_PATTERN
from shardbench.records.trial import Outcome
from shardbench.trials.planning import StandIn, Traits, traits_of
from shardbench.trials.planning_process import START_S, PlanningProcess
from shardbench.workloads.trace import is_sealed


class Description(FiniteModel):
    """What a strategy declares, and itself as it crosses to processes that plan."""

    name: str
    sees: frozenset[Sees]
    moves: frozenset[Move]
    role: Role
    version: int
    requires: tuple[str, ...]
    traits: Traits
    sent: str
    """Its pickle, in base 64."""
    unsent: str = ""
    """Why there is none."""

    @classmethod
    def of(cls, strategy: Strategy, pickling_s: float) -> "Description":
        """Describe a strategy, in the process that is there for it; pickling it may take so many seconds."""
        sent, unsent = b"", ""
        try:
            sent = within(pickling_s, lambda: pickle.dumps(strategy))
        except BaseException as error:
            unsent = described(error)
        declared = {name: getattr(strategy, name) for name in ("name", "sees", "moves", "role", "version", "requires")}
        return cls(**declared, traits=traits_of(strategy), sent=base64.b64encode(sent).decode(), unsent=unsent)

    def brought_by(self, module: str) -> "Description":
        """Return it with one more module: whatever its classes say, a package's strategy is not of this repository."""
        modules = tuple(sorted({*self.traits.modules, module}))
        return self.model_copy(update={"traits": self.traits.model_copy(update={"modules": modules})})


_DESCRIPTIONS = TypeAdapter(tuple[Description, ...])


class ForeignStrategy(StandIn):
    """A strategy of somebody else's package: what it declares, here; itself, in processes that plan.

    Pickled, it is that strategy, and opens in such a process alone.
    """

    def __init__(self, description: Description) -> None:
        """Raise BadInput where the description is none."""
        try:
            vars(self).update(dict(description), sent=base64.b64decode(description.sent, validate=True))
        except binascii.Error as error:
            raise BadInput(f"{description.name} cannot be told from what its process said") from error

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        unsent: str = vars(self)["unsent"]
        if unsent:
            raise pickle.PicklingError(unsent)
        return _unpickle, (vars(self)["sent"],)

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Learn in a process of its own; raises TrialFailed."""
        with PlanningProcess(self) as process:
            process.take(*problems)
            process.fit(budget, seed)
            vars(self)["sent"] = process.pickle_strategy()

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Plan in a process of its own; raises Infeasible, or TrialFailed."""
        return Plan.from_json(self._plan_text(problem, budget, seed, None), "plan")

    def plans(self, problem: Problem, budget: Budget, seed: int, most: int) -> tuple[Plan, ...]:
        """Give several plans, best first, from a process of its own; raises Infeasible, or TrialFailed."""
        reply = self._plan_text(problem, budget, seed, most)
        try:
            texts = TypeAdapter(tuple[str, ...]).validate_json(reply)
        except ValidationError as error:
            raise failed(Outcome.INVALID, "plans() gave no list of plans", "plan", "returns-a-plan") from error
        return tuple(Plan.from_json(text, "plan") for text in texts[:most])

    def _plan_text(self, problem: Problem, budget: Budget, seed: int, most: int | None) -> str:
        try:
            with PlanningProcess(self) as process:
                process.take(problem)
                return process.make_plan(budget, seed, fitted=True, most=most)[0]
        except TrialFailed as error:
            if error.failure.outcome is Outcome.INFEASIBLE:
                raise Infeasible(error.failure.cause) from error
            raise


def _unpickle(sent: bytes) -> object:
    if not is_sealed():
        raise TypeError("a strategy of another package is opened in a process that plans, and nowhere else")
    return pickle.loads(sent)  # noqa: S301 - whatever it does, it does here


def describe_apart(package: str, module: str, value: str) -> list[Strategy]:
    """Return the strategies that an entry point gives, described in a process of its own; raises BadInput.

    ``module`` is that of ``value``, the entry point's ``module:attribute``.
    """
    descriptions = _descriptions_of(package, module, value, files_hash(owner_of(module)))
    if isinstance(descriptions, str):
        raise BadInput(descriptions)
    return [ForeignStrategy(one) for one in descriptions]


@cache
def _descriptions_of(package: str, module: str, value: str, code: str | None) -> tuple[Description, ...] | str:
    """Return descriptions, or what is wrong, once for the ``code`` that the package has."""
    # Loading, making what it brings and pickling one of them have LOADS_S each.
    limit_s = 3.0 * LOADS_S + START_S
    wall = wall_around(tuple(places_of(module)), tuple(shipped_data()))
    with (
        FORK_SERVER.without_engine(),
        temporary_folder() as folder,
        Worker(folder / "log", wall=wall) as worker,
    ):
        try:
            reply = worker.call(_describe, (package, value, LOADS_S), timeout_s=limit_s, phase="start", text=True)
            descriptions = _DESCRIPTIONS.validate_json(reply)
            return tuple(one.brought_by(module) for one in descriptions)
        except TrialFailed as error:
            return error.failure.cause
        except ValidationError:
            return f"package {package} cannot be told from what its process said"


def _describe(package: str, value: str, loads_s: float, *, held: dict[str, object]) -> str:
    point = metadata.EntryPoint(name="", value=value, group="")
    strategies = strategies_of(load_package(package, point.load, loads_s), package, loads_s)
    return _DESCRIPTIONS.dump_json(tuple(Description.of(strategy, loads_s) for _, strategy in strategies)).decode()


def strategies_of(source: object, package: str, loads_s: float = LOADS_S) -> list[tuple[str, Strategy]]:
    """Return what a package gives by name; raises BadInput."""
    contents = source
    if callable(source) and not isinstance(source, Strategy):
        try:
            contents = _call_source(source, loads_s)
        except BaseException as error:
            raise BadInput(f"package {package} failed to make its strategies: {described(error)}") from error
    if isinstance(contents, Strategy):
        contents = [contents]
    if not isinstance(contents, Iterable):
        raise BadInput(f"package {package} gives {contents!r}, not an iterable of Strategy")
    members = list(contents)
    for member in members:
        if not isinstance(member, Strategy):
            raise BadInput(f"package {package} gives {member!r}, which is not a Strategy")
        fault = declaration_fault(member)
        if fault:
            raise BadInput(f"package {package}: {type(member).__name__} {fault}")
    return [(member.name, member) for member in members]


def _call_source(source: Callable[[], object], loads_s: float) -> object:
    """Return what a function of a package gives; a generator runs only when it is read."""
    return within(loads_s, lambda: list(contents) if isinstance(contents := source(), Iterator) else contents)


def declaration_fault(strategy: Strategy) -> str:
    """Say what is wrong with a strategy's declarations; an empty string if nothing is."""
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name.endswith("\n"):
        return f"must state a name of letters, digits and _.+- that begins with a letter or digit, not {name!r}"
    for attribute, kind in (("sees", Sees), ("moves", Move)):
        members = getattr(strategy, attribute, None)
        if not isinstance(members, frozenset) or not all(isinstance(member, kind) for member in members):
            return f"must state {attribute} as a frozenset of {kind.__name__}"
    if not strategy.moves:
        return "declares no moves, so it could make no plan"
    if not isinstance(strategy.role, Role):
        return "must state role as a Role"
    if (Move.LOCAL_STEPS in strategy.moves) != (strategy.role is Role.OTHER_MODEL):
        return f"must have the role {Role.OTHER_MODEL} if it declares the move {Move.LOCAL_STEPS}, and only then"
    requires = strategy.requires
    if not isinstance(requires, tuple) or not all(isinstance(module, str) for module in requires):
        return "must state requires as a tuple of module names"
    return ""
