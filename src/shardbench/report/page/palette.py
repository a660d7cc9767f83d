"""The looks of series and strategies, the same on pages, in pictures and in papers: a colour, and dashes or a mark."""

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

LIGHT = ("#0072b2", "#c27700", "#00855f", "#c24a00", "#2d8ec6", "#b0558a", "#8f8200", "#7f7f7f", "#333333")
"""Okabe and Ito's palette, told apart by the colour-blind, darkened to be seen on white; then two greys."""
DARK = ("#4aa3e0", "#e69f00", "#2bc79a", "#f07a3a", "#9cd3f5", "#e09ac3", "#f0e442", "#a8a8a8", "#e0e0e0")
"""The same hues on a dark ground."""
FORMS = 4
"""Lines are whole, dashed, dotted or both; points are circles, squares, diamonds or triangles."""
STRATEGY = "strategy"
"""Series of a column of this name are strategies."""
_LOOKS = len(LIGHT) * FORMS
_SPREAD = 1376156849
"""This factor gives the strategies that compete looks that all differ, and the best of them colours that do."""


class Look(NamedTuple):
    """Colour and form by their numbers; in print they are the classes of the style."""

    colour: int
    form: int

    def __str__(self) -> str:
        return f"c{self.colour} d{self.form}"


def series_look(number: int) -> Look:
    """Return the look of the n-th series: colours first, then the next form."""
    return Look(number % len(LIGHT), number // len(LIGHT) % FORMS)


def strategy_look(name: str) -> Look:
    """Return the look of a strategy, which depends on nothing but its name."""
    return series_look((crc32(name.encode()) * _SPREAD) % 2**32 * _LOOKS >> 32)


def looks(column: str | None, values: Iterable[object]) -> list[Look]:
    """Return the looks of a column's values: strategies have their own, others go by their order."""
    return [strategy_look(str(value)) if column == STRATEGY else series_look(i) for i, value in enumerate(values)]


def colours_style(palette: tuple[str, ...]) -> str:
    """Return a palette's colours as declarations of a style."""
    return " ".join(f"--c{number}: {colour};" for number, colour in enumerate(palette))
