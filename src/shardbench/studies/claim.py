"""Statements of papers: what each says, how ours is defined, and what it is tested on."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import pandas as pd
import pydantic
from pydantic import Field, PositiveFloat

from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_data
from shardbench.base.serialise import content_hash, from_data
from shardbench.model.table import Name
from shardbench.records.record import Record

Sentence = Annotated[str, Field(min_length=8)]

BAND = 1.25
"""Factor by which a number may differ from the paper's, either way, where a statement is about a number."""
SUITE = "suite"
"""The name of the baseline's suite in ``judged_by``; other names are of its studies."""


class Relation(StrEnum):
    """How a statement holds a number against its own."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    ABOUT = "about"
    """The numbers differ by at most a factor of BAND."""
    NOT_WORSE = "not worse"
    """Ours is worse by less than a margin."""
    DIRECTION = "direction"
    """No number: only which side of no effect."""


class NumberKind(StrEnum):
    """The kinds of numbers behind a statement, and how they are printed."""

    RATIO = "ratio"
    """Ratios, such as theirs over ours; printed as they are."""
    GAIN = "gain"
    """Ratios r of theirs over ours; printed as 100 (r - 1) %."""
    SAVING = "saving"
    """Ratios r of theirs over ours; printed as 100 (1 - 1 / r) %."""
    DIFFERENCE = "difference"
    """Numbers that are no ratios."""

    def in_print(self, number: float) -> float:
        """Give a number in the unit of print; it never falls where the number rises."""
        if self is NumberKind.GAIN:
            return 100.0 * (number - 1.0)
        if self is NumberKind.SAVING:
            return 100.0 * (1.0 - 1.0 / number)
        return number


class Kind(StrEnum):
    """What a row of claims.toml is to the paper's statements, which alone have verdicts that are counted as theirs."""

    STATEMENT = "statement"
    """The paper says it: one row a sentence, or a number of one."""
    READING = "reading"
    """Another way to read a statement, or one of its conditions."""
    STAND_IN = "stand-in"
    """What data of ours show beside a statement about data that nobody has."""
    SECOND_HAND = "second-hand"
    """Others say that the paper says it, or its limit is ours."""
    CONTROL = "control"
    """A question of our own."""


BELOW = frozenset({Kind.READING, Kind.STAND_IN})
"""Kinds that stand below a statement."""


class Strength(StrEnum):
    """Where numbers come from."""

    MEASURED = "measured"
    COUNTED = "counted"
    SIMULATED = "simulated"


class RegionTable(pydantic.BaseModel):
    """Where a region study's table has a claim's ratio, point by point."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    table: Name = "region"
    column: str


class Claim(pydantic.BaseModel):
    """One statement of a paper."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    kind: Kind
    of: Name | Literal[""] = ""
    """The statement, of the paper or second-hand, that a reading or a stand-in stands below."""
    statement: Sentence
    """The statement in our words."""
    quote: str = ""
    """The paper's own words, in short."""
    sourced: bool
    """Whether the paper itself was seen to state it; if not, its number is never printed as the paper's."""
    source: Sentence
    definition_of: Literal["paper", "ours"]
    """The measure is by the paper's definition, or by ours."""
    definition: Sentence
    """What is divided by what, over which trials."""
    conditions: Sentence
    """Workloads, machines and ranges of knobs."""
    relation: Relation
    paper: float | None = None
    """The paper's number in the unit of print; None where the statement has none."""
    margin: PositiveFloat | None = None
    """The margin of ``not worse``, in the unit of print."""
    better: Literal["higher", "lower"] = "higher"
    unit: str
    """The unit of print, such as ``x`` or ``%``."""
    scale: NumberKind
    neutral: float | None = None
    """No effect, in the unit of print; None where no number could point the other way."""
    n_unit: str
    """The unit that n counts: ``draw of features``, ``task``, ``seed``, ``machine``."""
    sample: bool
    """Whether the numbers are independent draws of it; or else chosen conditions, which have a range only."""
    evidence: Strength
    part: Literal["embedding", "exchanges", "step", ""] = ""
    """The part of a simulated step that the numbers are of: its model error stands beside them."""
    machine: Name | Literal[""] = ""
    """The machine whose constants the numbers were simulated with, of whose model error is spoken."""
    data: Literal["made up", "drawn from published statistics", "recorded", ""] = ""
    region: RegionTable | None = None
    judged_by: tuple[str, ...] = ()
    """``suite`` and names of studies."""
    not_testable: str = ""
    """The reason why no number of ours can judge it here."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Claim":
        number = self.relation in (Relation.AT_LEAST, Relation.AT_MOST, Relation.ABOUT)
        if not self.not_testable and number != (self.paper is not None):
            raise ValueError(f"relation '{self.relation.value}' {'needs' if number else 'takes no'} number 'paper'")
        if (self.relation is Relation.NOT_WORSE) != (self.margin is not None):
            raise ValueError("'margin' belongs to 'not worse', and only to it")
        if self.relation is Relation.ABOUT and (self.paper or 0.0) <= 0.0 and not self.not_testable:
            raise ValueError("'about' needs a positive number: its band is a factor")
        if bool(self.not_testable) == bool(self.judged_by):
            raise ValueError("either 'judged_by' names the evidence, or 'not_testable' says why there is none")
        if self.part and self.evidence is Strength.SIMULATED and not self.machine:
            raise ValueError("numbers of a simulated part need the name of their 'machine', whose model error is said")
        if (self.kind in BELOW) != bool(self.of):
            raise ValueError("'of' names the statement that a reading or a stand-in stands below, and only theirs")
        if self.sourced != (self.kind is Kind.STATEMENT) and self.kind not in BELOW:
            raise ValueError("a statement is sourced, and what is second-hand or our own is not")
        if self.neutral is None and self.relation is Relation.DIRECTION and not self.not_testable:
            raise ValueError("a direction needs 'neutral', which is no effect")
        if self.sourced and self.quote == "" and self.paper is not None:
            raise ValueError("a sourced number needs the paper's words in 'quote'")
        return self

    @property
    def digest(self) -> str:
        """Hash the definition: all that is declared but the machine, which only says whose model error is spoken of."""
        return content_hash(self.model_dump(mode="json", exclude={"machine"}))

    @property
    def has_direction(self) -> bool:
        """Tell whether the statement says more than that nothing is lost."""
        return self.relation is not Relation.NOT_WORSE and self.neutral not in (None, self.paper)

    @property
    def up(self) -> bool:
        """Tell whether more than ``neutral`` is the claimed direction."""
        if self.paper is None or self.neutral is None or self.paper == self.neutral:
            return self.better == "higher"
        return self.paper > self.neutral

    def directed(self, number: float) -> bool:
        """Tell whether a number in the unit of print lies on the claimed side of no effect."""
        if self.neutral is None:
            return False
        return number > self.neutral if self.up else number < self.neutral

    def limits(self) -> tuple[float, float]:
        """Give least and most in the unit of print that the stated magnitude allows; infinite where it has no limit."""
        paper = self.paper if self.paper is not None else 0.0
        least, most = -float("inf"), float("inf")
        if self.relation is Relation.AT_LEAST:
            least = paper
        elif self.relation is Relation.AT_MOST:
            most = paper
        elif self.relation is Relation.ABOUT:
            least, most = paper / BAND, paper * BAND
        elif self.relation is Relation.NOT_WORSE and self.margin is not None:
            least, most = (-self.margin, most) if self.better == "higher" else (least, self.margin)
        return least, most

    def holds(self, number: float) -> bool:
        """Tell whether a number in the unit of print has the stated size or, where there is none, direction."""
        least, most = self.limits()
        return least <= number <= most and (self.relation is not Relation.DIRECTION or self.directed(number))


class _ClaimsFile(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]


def parse_claims(text: str, what: str) -> tuple[Claim, ...]:
    """Read claims out of TOML text; raises BadInput that names the first wrong field."""
    claims = from_data(_ClaimsFile, toml_data(text, what), what).claims
    names = [claim.name for claim in claims]
    if len(set(names)) < len(names):
        raise BadInput(f"{what}: two claims have one name")
    statements = {claim.name for claim in claims if claim.kind in (Kind.STATEMENT, Kind.SECOND_HAND)}
    for claim in claims:
        if claim.of and claim.of not in statements:
            raise BadInput(f"{what}: claim {claim.name} stands below '{claim.of}', which is no statement there")
    return claims


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What claims are tested on: the current records of the baseline's suite, and its studies' tables."""

    records: tuple[Record, ...]
    tables: Mapping[str, pd.DataFrame]
    """Tables by name; a study that did not run has none."""
