"""The reproduction of a baseline or of the leaderboard: its ``studies.py``, ``claims.toml`` and ``claims.py``."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from shardbench.base.closest import unknown
from shardbench.base.code import REPRODUCTION
from shardbench.base.errors import BadInput
from shardbench.studies.claim import Claim, Evidence, parse_claims
from shardbench.studies.definitions import Definition, definitions
from shardbench.studies.study import Study
from shardbench.trials.discovery import reproduction_home, reproduction_names

Observe = Callable[[Evidence], Mapping[str, Sequence[float]]]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The studies and claims of one baseline; ``observe`` gives the numbers behind each claim."""

    owner: str
    studies: tuple[Study, ...]
    claims: tuple[Claim, ...]
    observe: Observe | None
    defined: Mapping[str, Definition]
    """Where each claim's definition was first committed; not of claims that never were."""

    def study(self, name: str) -> Study:
        """Find the study of that name; raises BadInput that names the closest or all."""
        for study in self.studies:
            if study.name == name:
                return study
        raise BadInput(unknown(f"study of {self.owner}", name, [study.name for study in self.studies]))


@cache
def find_reproduction(owner: str) -> Reproduction:
    """Find studies and claims of a baseline; raises BadInput where it has none or one is malformed."""
    if owner not in reproduction_names():
        raise BadInput(unknown("paper", owner, reproduction_names(), "shardbench list papers"))
    home = reproduction_home(owner)
    module = _module(home, "studies")
    listed = tuple(module.studies()) if module is not None else ()
    for study in listed:
        if not isinstance(study, Study):
            raise BadInput(f"{owner}/{REPRODUCTION}/studies.py gives {study!r}, which is not a Study")
    studies = tuple(replace(study, owner=owner) for study in listed)
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise BadInput(f"{owner}/{REPRODUCTION}/studies.py gives two studies of one name: {', '.join(names)}")
    file = resources.files(home) / "claims.toml"
    what = f"{owner}/{REPRODUCTION}/claims.toml"
    claims = parse_claims(file.read_text(encoding="ascii"), what) if file.is_file() else ()
    observing = _module(home, "claims")
    if claims and observing is None:
        raise BadInput(f"{owner} has claims.toml but no claims.py with observations(evidence)")
    observe: Observe | None = observing.observations if observing is not None else None
    return Reproduction(owner=owner, studies=studies, claims=claims, observe=observe, defined=definitions(home))


def _module(home: str, name: str) -> Any:
    """Import a module of a reproduction; None where there is none of that name."""
    path = f"{home}.{name}"
    return importlib.import_module(path) if importlib.util.find_spec(path) is not None else None
