"""What trials and study cells both state in their lines."""

from abc import ABC, abstractmethod
from typing import Literal

import pydantic

from shardbench.records.provenance import Provenance


class BaseRecord(pydantic.BaseModel, ABC):
    """One line of a record file: which work it is of, and where, by which code and when it was done."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    key: str
    environment: str
    """Hash; the environment itself is stored once."""
    provenance: Provenance | None = None
    """None in records of versions that did not state their code."""

    @property
    @abstractmethod
    def expected_key(self) -> str:
        """Key of the work that the line states."""

    @property
    @abstractmethod
    def about(self) -> str:
        """What of the code it is a result of: the strategy, or the study."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One line: which work, and how it ended."""

    @property
    @abstractmethod
    def cause(self) -> str:
        """Why it failed and where, in one line; empty where it did not."""

    @pydantic.model_validator(mode="after")
    def _unedited(self) -> "BaseRecord":
        if self.key != self.expected_key:
            raise ValueError(f"key {self.key} is not that of the line ({self.expected_key}): the line was edited")
        return self

    def made_by(self, code: str | None) -> bool:
        """Whether it says that the code it is about had this hash; nothing is made by None."""
        return self.provenance is not None and code is not None and self.provenance.strategy_code == code
