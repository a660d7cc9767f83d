"""The part of a line that trials and study cells have in common."""

from abc import ABC, abstractmethod
from typing import Literal

import pydantic

from shardbench.base.code import JUDGE_VERSION
from shardbench.base.serialise import FiniteModel
from shardbench.records.provenance import Provenance


class BaseRecord(FiniteModel, ABC):
    """One line of a record file: which work it is of, and where, by which code and when it was done."""

    schema_version: Literal[1] = 1
    key: str
    environment: str
    """The hash of the environment, which itself is stored once."""
    provenance: Provenance | None = None
    """The code that made it; None in records of versions that did not state their code."""

    @property
    @abstractmethod
    def expected_key(self) -> str:
        """Return the key of the work that the line states."""

    @property
    @abstractmethod
    def about(self) -> str:
        """Return the name of the code that it is a result of: the strategy, or the study."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Say in one line which work it is and how it ended."""

    @property
    @abstractmethod
    def cause(self) -> str:
        """Say why it failed and where, in one line; empty where it did not."""

    @pydantic.model_validator(mode="after")
    def _unedited(self) -> "BaseRecord":
        if self.key != self.expected_key:
            raise ValueError(f"key {self.key} is not that of the line ({self.expected_key}): the line was edited")
        return self

    @property
    def judged_here(self) -> bool:
        """Tell whether the version of the judge that is here made it: only then its numbers compare with ours."""
        return self.provenance is not None and self.provenance.judge_version == JUDGE_VERSION

    def is_of(self, version: str | None) -> bool:
        """Tell whether it was judged here, of what it is about in this version; nothing is of None."""
        provenance = self.provenance
        return self.judged_here and version is not None and provenance is not None and provenance.made_by == version
