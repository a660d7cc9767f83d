"""When a claim's definition was committed: what is judged later was not defined by its outcome.

``defined.toml`` beside a ``claims.toml`` has for every claim the hash of its definition, and commit and time of the
version of ``claims.toml`` that has it first; ``shardbench claims --define`` writes it from the checkout.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from shardbench.base.atomic import write_atomically
from shardbench.base.code import last_commit
from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_data
from shardbench.base.serialise import from_data
from shardbench.studies.claim import Claim

FILE = "defined.toml"


class Definition(pydantic.BaseModel):
    """Where a claim's definition was first committed."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    digest: str
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    at: pydantic.AwareDatetime
    first_judged: date
    """The day on which the claim was judged for the first time; of a new one, on which it was defined."""
    redefined: Annotated[int, Field(ge=0)]
    """How often its definition changed after that; each time it was judged again."""


def definitions(package: str) -> Mapping[str, Definition]:
    """Read the stamps of a package's claims by name; there may be none. Raises BadInput for a malformed file."""
    file = resources.files(package) / FILE
    if not file.is_file():
        return {}
    return parse_definitions(file.read_text(encoding="utf-8"), f"{package}/{FILE}")


def parse_definitions(text: str, what: str) -> Mapping[str, Definition]:
    """Read stamps by claim out of TOML text; raises BadInput that names the first wrong field."""
    return from_data(dict[str, Definition], toml_data(text, what), what)


def define(package: str, claims: Sequence[Claim]) -> list[str]:
    """Stamp the claims whose definition changed with the last commit of ``claims.toml``; gives their names.

    Raises BadInput where that file is not committed as it is.
    """
    place = Path(str(resources.files(package))).resolve()
    old = definitions(package)
    stale_claims = [claim.name for claim in claims if _stale(claim, old)]
    if not stale_claims and old.keys() == {claim.name for claim in claims}:
        return []
    commit = last_commit(place / "claims.toml")
    if commit is None:
        raise BadInput(f"{package}/claims.toml differs from what is committed; commit it, then define")
    stamps = {claim.name: _stamp(claim, old.get(claim.name), *commit) for claim in claims}
    write_atomically(place / FILE, _text(stamps))
    return stale_claims


def _stale(claim: Claim, stamps: Mapping[str, Definition]) -> bool:
    return claim.name not in stamps or stamps[claim.name].digest != claim.digest


def _stamp(claim: Claim, old: Definition | None, commit: str, at: datetime) -> Definition:
    if old is not None and old.digest == claim.digest:
        return old
    first_judged, redefined = (at.date(), 0) if old is None else (old.first_judged, old.redefined + 1)
    return Definition(digest=claim.digest, commit=commit, at=at, first_judged=first_judged, redefined=redefined)


def _text(stamps: Mapping[str, Definition]) -> str:
    head = "# Written by `shardbench claims --define`: which commit of claims.toml first has each definition.\n"
    blocks = [
        f'\n[{name}]\ndigest = "{stamp.digest}"\ncommit = "{stamp.commit}"\nat = {stamp.at.isoformat()}\n'
        f"first_judged = {stamp.first_judged}\nredefined = {stamp.redefined}\n"
        for name, stamp in stamps.items()
    ]
    return head + "".join(blocks)
