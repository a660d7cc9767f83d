"""A chart as the page shows it: what it says, its drawings, and what its colours mean."""

from dataclasses import dataclass

from shardbench.report.page.palette import series_look


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One or more drawings under one caption."""

    caption: str
    drawings: tuple[str, ...]
    """Each drawing is SVG by itself."""
    legend: tuple[tuple[str, str], ...] = ()
    """The classes of each series, and its words."""
    titles: tuple[str, ...] = ()
    """Titles of the drawings, where there are several."""
    panels: bool = False
    """True where drawings are small and lie side by side."""


def legend(names: tuple[str, ...] | list[str]) -> tuple[tuple[str, str], ...]:
    """Return the legend of series that go by their order."""
    return tuple((str(series_look(number)), name) for number, name in enumerate(names))
