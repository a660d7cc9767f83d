"""Claims of papers, and what our numbers say about each."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import pandas as pd
import pydantic
from pydantic import Field

from shardbench.base.errors import BadInput
from shardbench.base.serialise import first_error
from shardbench.base.statistics import Estimate, mean, median
from shardbench.model.table import Name
from shardbench.records.record import Record

Sentence = Annotated[str, Field(min_length=8)]


class Verdict(StrEnum):
    """Where our interval lies beside the paper's number and beside no effect at all."""

    REPRODUCED = "reproduced"
    INCONCLUSIVE = "inconclusive"
    """The interval holds both sides of the paper's number, or with ``about`` no effect as well."""
    SMALLER = "smaller effect"
    """The paper's direction, but the whole interval falls short of its number."""
    LARGER = "larger effect"
    """Only for ``about``: the whole interval goes beyond its number."""
    NONE = "no effect"
    """The interval holds no effect."""
    OPPOSITE = "opposite effect"
    DIFFERENT = "different"
    """Only for a claim of no difference: the interval does not hold it."""
    UNTESTED = "not tested"


class Claim(pydantic.BaseModel):
    """One number that a paper states, and how ours is defined."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    statement: Sentence
    """The claim in our words."""
    paper: float
    unit: str
    """Such as ``x`` (a ratio) or ``%``."""
    relation: Literal["at least", "about", "at most"]
    neutral: float
    """The value that means no effect: 1 of a ratio, 0 of a saving."""
    sourced: bool
    """Whether the paper itself was seen to state it; if not, its number is never printed as the paper's."""
    source: Sentence
    definition: Sentence
    """How ours is computed: what is divided by what, over which trials."""
    conditions: Sentence
    """Backend, workloads, machines."""
    average: Literal["mean", "median"] = "mean"

    @pydantic.model_validator(mode="after")
    def _one_direction(self) -> "Claim":
        if self.relation == "at least" and self.paper < self.neutral:
            raise ValueError("'at least' needs a number that is not below the neutral one")
        if self.relation == "at most" and self.paper > self.neutral:
            raise ValueError("'at most' needs a number that is not above the neutral one")
        return self

    def verdict(self, ours: Estimate) -> Verdict:
        """What the interval of ours says."""
        if self.relation == "about" and ours.holds(self.paper):
            # An interval that holds no effect as well says nothing.
            wide = self.paper != self.neutral and ours.holds(self.neutral)
            return Verdict.INCONCLUSIVE if wide else Verdict.REPRODUCED
        if self.relation == "about" and self.paper == self.neutral:
            return Verdict.DIFFERENT
        # Turned so that a larger number is more of the claimed effect.
        sign = -1.0 if self.paper < self.neutral or self.relation == "at most" else 1.0
        low, high = sorted((sign * ours.low, sign * ours.high))
        paper, neutral = sign * self.paper, sign * self.neutral
        if low >= paper:
            return Verdict.LARGER if self.relation == "about" else Verdict.REPRODUCED
        if high >= paper:
            return Verdict.INCONCLUSIVE
        if low > neutral:
            return Verdict.SMALLER
        return Verdict.OPPOSITE if high < neutral else Verdict.NONE


class _ClaimsFile(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]


def parse_claims(text: str, what: str) -> tuple[Claim, ...]:
    """Claims out of TOML text; raises BadInput that names the first wrong field."""
    try:
        claims = _ClaimsFile.model_validate(tomllib.loads(text)).claims
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{what}: not TOML: {error}") from error
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error
    names = [claim.name for claim in claims]
    if len(set(names)) < len(names):
        raise BadInput(f"{what}: two claims have one name")
    return claims


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What claims are tested on: the current records of the baseline's suite, and its studies' tables."""

    records: tuple[Record, ...]
    tables: Mapping[str, pd.DataFrame]
    """By table name; a study that did not run has none."""


COLUMNS = (
    "claim", "paper", "ours", "low", "high", "n", "verdict", "unit", "relation", "sourced", "statement", "definition",
    "conditions", "source",
)  # fmt: skip


def claims_frame(claims: Sequence[Claim], observed: Mapping[str, Sequence[float]], owner: str) -> pd.DataFrame:
    """One row a claim: the paper's number, ours with its 95 % bootstrap interval, and the verdict.

    ``observed`` are the numbers behind each claim; a claim without any is ``not tested``, and one
    number alone has no interval and is ``inconclusive``.
    Raises BadInput where ``observed`` names no claim.
    """
    unknown = sorted(observed.keys() - {claim.name for claim in claims})
    if unknown:
        raise BadInput(f"{owner}/reproduction/claims.py observes '{unknown[0]}', which claims.toml does not have")
    return pd.DataFrame([_row(claim, observed.get(claim.name, ())) for claim in claims], columns=list(COLUMNS))


def _row(claim: Claim, numbers: Sequence[float]) -> dict[str, object]:
    row: dict[str, object] = {
        "claim": claim.name,
        "paper": claim.paper if claim.sourced else None,
        "n": len(numbers),
        "verdict": Verdict.UNTESTED.value,
        **{field: getattr(claim, field) for field in COLUMNS[7:]},
    }
    if not numbers:
        return row
    if len(numbers) == 1:
        return {**row, "ours": float(numbers[0]), "verdict": Verdict.INCONCLUSIVE.value}
    ours = (mean if claim.average == "mean" else median)(numbers)
    verdict = claim.verdict(ours)
    return {**row, "ours": ours.value, "low": ours.low, "high": ours.high, "verdict": verdict.value}
