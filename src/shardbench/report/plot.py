"""What a plot of a table shows, apart from how it is drawn."""

from pydantic.dataclasses import dataclass

from shardbench.base.serialise import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plot:
    """A plot of a table; every field but ``title`` and ``table`` names a column."""

    title: str
    """A sentence that says what is shown, units included."""
    table: str
    x: str
    y: str
    series: str | None = None
    low: str | None = None
    high: str | None = None
    facet: str | None = None
    """One panel a value, side by side."""
    log_y: bool = False
    shown: tuple[str, ...] = ()
    """Values of ``series`` to draw, in this order; all by default."""
    bars: bool = False
    """Grouped bars over the values of ``x`` instead of lines."""
