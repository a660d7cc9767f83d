"""What packages bring by name: ours, and installed ones by entry points."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from typing import Generic, NamedTuple, TypeVar

from shardbench.base.deadline import within
from shardbench.base.errors import BadInput, described

T = TypeVar("T")

LOADS_S = 120.0
"""Seconds that a package may take to be imported, and to make what it brings; torch takes ten."""


class Brought(NamedTuple, Generic[T]):
    """One thing that a package brings."""

    value: T
    package: str
    """The name of the package in errors."""
    module: str
    """The module that gives it."""


def collect(
    kind: str,
    packages: Iterable[tuple[str, str, Callable[[], object]]],
    read: Callable[[object, str], Iterable[tuple[str, T]]],
) -> tuple[dict[str, Brought[T]], tuple[str, ...]]:
    """Return what packages bring, by name, sorted, and why packages are left out, one line each.

    ``packages`` are as ``brought`` yields them; ``read`` turns what a package gives, and who it is, into names and
    values. A package that raises BadInput, or brings a name that is taken, brings nothing and stops nothing else.
    """
    values: dict[str, Brought[T]] = {}
    causes: list[str] = []
    for package, module, load in packages:
        own: dict[str, Brought[T]] = {}
        try:
            for name, value in read(load(), package):
                other = values.get(name) or own.get(name)
                if other is not None:
                    raise BadInput(f"{kind} '{name}' of {package} is already taken by {other.package}: rename it")
                own[name] = Brought(value, package, module)
        except BadInput as error:
            causes.append(str(error))
        else:
            values |= own
    return dict(sorted(values.items())), tuple(causes)


def brought(group: str) -> Iterator[tuple[str, str, metadata.EntryPoint]]:
    """Yield of every entry point of the group, sorted by name, who brings it, its module, and the point."""
    for point in sorted(metadata.entry_points(group=group), key=lambda p: (p.name, p.value)):
        package = f"{point.dist.name if point.dist else 'unknown'} (entry point {point.name} = {point.value})"
        yield package, point.value.partition(":")[0], point


def brought_here(group: str) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield the same with what loads it in the place of the point, by ``load_package``."""
    for package, module, point in brought(group):
        yield package, module, partial(load_package, package, point.load)


def load_package(package: str, load: Callable[[], object], loads_s: float = LOADS_S) -> object:
    """Return what a package gives; raises BadInput, naming it, where it cannot be imported or takes too long."""
    try:
        return within(loads_s, load)
    except (Exception, SystemExit) as error:
        raise BadInput(f"package {package} cannot be imported: {described(error)}") from error
