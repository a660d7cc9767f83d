"""What installed packages bring by entry points."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata

from shardbench.base.deadline import within
from shardbench.base.errors import BadInput, described

LOADS_S = 120.0
"""Seconds that a package may take to be imported, and to make what it brings; torch takes ten."""


def brought(group: str) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield of every entry point of the group, sorted by name, who brings it, its module, and what loads it.

    Loading raises BadInput, naming the package, where it cannot be imported or takes too long.
    """
    for point in sorted(metadata.entry_points(group=group), key=lambda p: (p.name, p.value)):
        package = f"{point.dist.name if point.dist else 'unknown'} (entry point {point.name} = {point.value})"
        yield package, point.value.partition(":")[0], partial(_loaded, point, package)


def _loaded(point: metadata.EntryPoint, package: str) -> object:
    try:
        return within(LOADS_S, point.load)
    except (Exception, SystemExit) as error:
        raise BadInput(f"package {package} cannot be imported: {described(error)}") from error
