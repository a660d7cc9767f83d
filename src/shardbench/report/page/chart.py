"""A chart as the page shows it: what it says, its drawings, and what its colours mean."""

from dataclasses import dataclass

from shardbench.report.page.palette import series_look


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One or more drawings under one caption."""

    caption: str
    drawings: tuple[str, ...]
    """SVG, each by itself."""
    legend: tuple[tuple[str, str], ...] = ()
    """(classes, words) of each series."""
    titles: tuple[str, ...] = ()
    """Of the drawings, where there are several."""
    panels: bool = False
    """Whether drawings are small and lie side by side."""


def legend(names: tuple[str, ...] | list[str]) -> tuple[tuple[str, str], ...]:
    """Series in the order of their numbers."""
    return tuple((str(series_look(number)), name) for number, name in enumerate(names))
