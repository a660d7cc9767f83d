"""Every strategy there is: the folders of ``shardbench.baselines`` and installed entry points.

Both take one path: an object that gives strategies (a function, a Strategy class or an
instance) and the name of the package it came from. What others bring is described in processes of their own. A suite
may name plans that somebody else made in the place of strategies, by their files.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path

from shardbench.base.closest import unknown
from shardbench.base.code import BASELINES, COMMON, REPRODUCTION, is_here, others_code
from shardbench.base.errors import BadInput
from shardbench.base.plugins import Brought, brought, collect, load_package
from shardbench.base.reading import JSON_BYTES, file_text
from shardbench.base.serialise import content_hash
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.records.provenance import GIVEN_PLAN
from shardbench.trials.described import describe_apart, strategies_of
from shardbench.trials.planning import traits_of

GROUP = BASELINES
"""Package whose folders are searched, and the entry-point group of other people's packages."""


def strategies() -> dict[str, Strategy]:
    """Return all strategies by name, sorted; those whose ``requires`` are missing are listed too.

    Packages that cannot be read are left out: ``broken_packages`` says why.
    """
    return {name: entry.value for name, entry in _collect_strategies()[0].items()}


def broken_packages() -> tuple[str, ...]:
    """Say why packages are left out, one line each, naming the package.

    One cannot be imported, gives something that is no strategy, or gives a name that is taken.
    """
    return _collect_strategies()[1]


def get_strategy(name: str) -> Strategy:
    """Return the strategy of that name; raises BadInput that names the closest or all, and packages that are broken."""
    by_name, broken = _collect_strategies()
    if name not in by_name:
        raise BadInput(unknown("strategy", name, by_name, "shardbench list strategies", broken))
    return by_name[name].value


def reproduction_names() -> list[str]:
    """List the baselines that bring studies or claims of a paper, and the studies of all strategies; sorted."""
    parent = importlib.import_module(GROUP)
    folders = sorted(module.name for module in pkgutil.iter_modules(parent.__path__) if module.ispkg)
    owners = [name for name in folders if importlib.util.find_spec(f"{GROUP}.{name}.{REPRODUCTION}") is not None]
    return sorted([*owners, *(package.rpartition(".")[2] for package in COMMON)])


def reproduction_home(owner: str) -> str:
    """Return the name of the package with the studies and claims of ``owner``."""
    common = {package.rpartition(".")[2]: package for package in COMMON}
    return common.get(owner, f"{GROUP}.{owner}.{REPRODUCTION}")


@cache
def strategy_version(name: str) -> str | None:
    """Return the version of a strategy; None for one that is not here, or that has no file to read.

    That of other people's strategies has a hash of their packages: nobody here raises it when they edit them.
    """
    by_name, _ = _collect_strategies()
    if name not in by_name:
        return None
    strategy = by_name[name].value
    theirs = others_code(*traits_of(strategy).modules, by_name[name].module)
    return None if theirs is None else f"{strategy.version} {theirs}".strip()


def _collect_strategies() -> tuple[dict[str, Brought[Strategy]], tuple[str, ...]]:
    return collect("strategy name", _providers(), strategies_of)


def missing_modules(strategy: Strategy) -> tuple[str, ...]:
    """List those of the strategy's ``requires`` that cannot be imported here."""
    return tuple(module for module in strategy.requires if not is_here(module))


def _providers() -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield who gives strategies, by which module, and what loads them; that raises BadInput where it cannot."""
    parent = importlib.import_module(GROUP)
    for place in parent.__path__:
        for path, cause in _strays(Path(place)):
            yield str(path), "", partial(_refuse, f"{path} {cause}")
    for module in sorted(pkgutil.iter_modules(parent.__path__), key=lambda m: m.name):
        package = f"{GROUP}.{module.name}"
        if (Path(str(getattr(module.module_finder, "path", ""))) / module.name).is_dir():
            yield package, package, partial(_load, package)
    for package, module_name, point in brought(GROUP):
        yield package, module_name, partial(describe_apart, package, module_name, point.value)


def _load(package: str) -> object:
    source = getattr(load_package(package, partial(importlib.import_module, package)), "strategies", None)
    if source is None:
        raise BadInput(f"package {package} has no strategies(): add a function that returns its strategies")
    return source


def _refuse(cause: str) -> object:
    raise BadInput(cause)


def _strays(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield Python files in ``place`` that are in no package, and what to do: their strategies would not be seen."""
    for path in sorted(place.iterdir()):
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir() and not (path / "__init__.py").is_file() and any(path.rglob("*.py")):
            yield path, "has Python files but no __init__.py: add one with a function strategies()"
        if path.suffix == ".py" and path.name != "__init__.py":
            yield path, f"is in no folder of its own: make it {path.with_suffix('') / '__init__.py'}"


class HandedPlan(Strategy):
    """A plan that somebody else made, as a strategy that gives it whatever the problem."""

    sees = frozenset({Sees.TABLES})
    # Validation reads off the plan which it uses; copies that drift apart train another model.
    moves = frozenset(Move) - {Move.LOCAL_STEPS}

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.fixed_plan = name, plan

    @cached_property
    def plan_hash(self) -> str:
        """Return the hash by which records know the plan."""
        return content_hash(self.fixed_plan)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan that was handed in."""
        return self.fixed_plan


def get_entrant(entry: str) -> Strategy:
    """Return a strategy by its name, or a plan by the path of its file (.json), whose name it has; raises BadInput."""
    if not entry.endswith(".json"):
        return get_strategy(entry)
    path = Path(entry)
    return HandedPlan(path.stem, Plan.from_json(file_text(path, "plan", JSON_BYTES), f"plan {path}"))


def entrant_version(entrant: Strategy) -> str | None:
    """Return the version of a strategy; a plan's is its hash: whoever made it, another plan's trial is not its."""
    return f"{GIVEN_PLAN}{entrant.plan_hash}" if isinstance(entrant, HandedPlan) else strategy_version(entrant.name)
