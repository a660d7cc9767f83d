"""What a user probably meant by a name that nobody has."""

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200
"""Most characters of a name that is compared with others."""
_MOST = 20
"""Most names that a line lists where there is a command that lists them."""


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one is most like, whatever its case; None where none is near."""
    if len(name) > _LONGEST:
        return None
    by_lower = {one.lower(): one for one in names}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def unknown(what: str, name: str, known: Iterable[str], see: str = "", left_out: Iterable[str] = ()) -> str:
    """Return one line about a name of ``what`` (such as ``suite``) that nobody has.

    It says what was probably meant, and where to look (``see``). Without the first it lists all that are known, or
    says how many they are where there is a place to look. ``left_out`` are the causes why packages are left out that
    may have had it.
    """
    names = list(known)
    near = closest_name(name, names)
    short_name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    many = f"{len(names)} are known" if see and len(names) > _MOST else f"known: {', '.join(names)}"
    sentence = f"unknown {what} '{short_name}'; " + (f"did you mean '{near}'?" if near else many)
    return "; ".join([f"{sentence} (see: {see})" if see else sentence, *(f"left out: {cause}" for cause in left_out)])
