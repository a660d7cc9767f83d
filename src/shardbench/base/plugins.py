"""What installed packages bring by entry points."""

from collections.abc import Iterator
from importlib import metadata

from shardbench.base.errors import BadInput


def brought(group: str) -> Iterator[tuple[str, str, object]]:
    """Who brings it, its module, and the object itself, of every entry point of the group, sorted by name.

    Raises BadInput, naming the package, where one cannot be imported.
    """
    for point in sorted(metadata.entry_points(group=group), key=lambda p: (p.name, p.value)):
        package = f"{point.dist.name if point.dist else 'unknown'} (entry point {point.name} = {point.value})"
        try:
            given = point.load()
        except Exception as error:
            raise BadInput(f"package {package} cannot be imported: {one_line(error)}") from error
        yield package, point.value.partition(":")[0], given


def one_line(error: Exception) -> str:
    """Kind and text of an exception of somebody else's code."""
    return " ".join(f"{type(error).__name__}: {error}".split())
