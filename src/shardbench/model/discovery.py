"""Every strategy there is: the folders of ``shardbench.baselines`` and installed entry points.

Both take one path: an object that gives strategies (a function, a Strategy class or an
instance) and the name of the package it came from.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from shardbench.base import plugins
from shardbench.base.closest import unknown
from shardbench.base.code import BASELINES, COMMON, REPRODUCTION, class_code
from shardbench.base.deadline import within
from shardbench.base.errors import BadInput, described
from shardbench.base.plugins import Brought, brought, collected, loaded
from shardbench.model.problem import Sees
from shardbench.model.strategy import Move, Role, Strategy
from shardbench.model.table import NAME_PATTERN

GROUP = BASELINES
"""Package whose folders are searched, and the entry-point group of other people's packages."""


def strategies() -> dict[str, Strategy]:
    """Return all strategies by name, sorted; those whose ``requires`` are missing are listed too.

    Packages that cannot be read are left out: ``broken_packages`` says why.
    """
    return {name: found.value for name, found in _found()[0].items()}


def broken_packages() -> tuple[str, ...]:
    """Say why packages are left out, one line each, naming the package.

    One cannot be imported, gives something that is no strategy, or gives a name that is taken.
    """
    return _found()[1]


def get_strategy(name: str) -> Strategy:
    """Return the strategy of that name; raises BadInput that names the closest or all, and packages that are broken."""
    known, broken = _found()
    if name not in known:
        raise BadInput(unknown("strategy", name, known, "shardbench list strategies", broken))
    return known[name].value


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


def strategy_codes(names: Iterable[str]) -> dict[str, str | None]:
    """Hash the code of each strategy, by its name; None for one that is not here or has no file to read."""
    known, _ = _found()
    return {
        name: class_code(found.value, Strategy, found.module) if (found := known.get(name)) else None
        for name in set(names)
    }


def _found() -> tuple[dict[str, Brought[Strategy]], tuple[str, ...]]:
    return collected("strategy name", _providers(), _strategies_of)


def missing_modules(strategy: Strategy) -> tuple[str, ...]:
    """List those of the strategy's ``requires`` that cannot be imported here."""
    return tuple(module for module in strategy.requires if not _importable(module))


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name is missing
        return False


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
    yield from brought(GROUP)


def _load(package: str) -> object:
    provided = getattr(loaded(package, partial(importlib.import_module, package)), "strategies", None)
    if provided is None:
        raise BadInput(f"package {package} has no strategies(): add a function that returns its strategies")
    return provided


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


def _strategies_of(provided: object, package: str) -> list[tuple[str, Strategy]]:
    if isinstance(provided, Strategy):
        given: object = [provided]
    elif callable(provided):
        try:
            given = _made(provided)
        except (Exception, SystemExit) as error:
            raise BadInput(f"package {package} failed to make its strategies: {described(error)}") from error
        given = [given] if isinstance(given, Strategy) else given
    else:
        given = provided
    if not isinstance(given, Iterable):
        raise BadInput(f"package {package} gives {given!r}, not an iterable of Strategy")
    members = list(given)
    for member in members:
        if not isinstance(member, Strategy):
            raise BadInput(f"package {package} gives {member!r}, which is not a Strategy")
        fault = declaration_fault(member)
        if fault:
            raise BadInput(f"package {package}: {type(member).__name__} {fault}")
    return [(member.name, member) for member in members]


def _made(provided: Callable[[], object]) -> object:
    """Return what a function of a package gives; a generator runs only when it is read."""
    return within(plugins.LOADS_S, lambda: list(given) if isinstance(given := provided(), Iterator) else given)


def declaration_fault(strategy: Strategy) -> str:
    """Say what is wrong with a strategy's declarations; an empty string if nothing is."""
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name.endswith("\n"):
        return f"must state a name of letters, digits and _.+- that begins with a letter or digit, not {name!r}"
    for attribute, kind in (("sees", Sees), ("moves", Move)):
        declared = getattr(strategy, attribute, None)
        if not isinstance(declared, frozenset) or not all(isinstance(member, kind) for member in declared):
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
