"""Cards: what a data set is, where it comes from, and the numbers it must keep to."""

from pathlib import Path
from typing import Any

import pydantic

from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_file
from shardbench.base.serialise import StrictModel, from_data

CARDS = Path(__file__).parent

Number = int | float


class Card(StrictModel):
    """One workload kind; ``numbers`` are asserted by tests against what is generated or read."""

    kind: str
    """The ``dataset`` of the kind's configuration."""
    name: str
    description: str
    source: str
    licence: str
    assumptions: tuple[str, ...]
    """What is chosen or inferred, not published."""
    numbers: dict[str, Number | tuple[Number, ...]]
    instance: dict[str, Any] | None = None
    """Configuration of a small instance; None where the user must bring the data."""
    fingerprint: str | None = None
    """Fingerprint of that instance."""

    @pydantic.model_validator(mode="after")
    def _both_or_neither(self) -> "Card":
        if (self.instance is None) != (self.fingerprint is None):
            raise ValueError("instance and fingerprint go together: state both or neither")
        return self


def kinds() -> list[str]:
    """Return the kinds that have a card, sorted."""
    return sorted(path.stem for path in CARDS.glob("*.toml"))


def load_card(kind: str) -> Card:
    """Return the card of a workload kind; raises BadInput where there is none or a field is wrong."""
    path = CARDS / f"{kind}.toml"
    if kind not in kinds():
        raise BadInput(f"no card for '{kind}': there are {', '.join(kinds())}")
    return read_card(path)


def read_card(path: Path) -> Card:
    """Return the card in a file; raises BadInput that names the first wrong field."""
    return from_data(Card, toml_file(path), path.name)
