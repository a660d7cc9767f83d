"""Hyper-parameters of learned strategies: numbers that are checked where they are stated."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self, get_type_hints

from pydantic import Field

from shardbench.base.serialise import from_data
from shardbench.learned.tasks.task import Task
from shardbench.model.strategy import Budget

Count = Annotated[int, Field(gt=0, strict=True)]
CountOrNone = Annotated[int, Field(ge=0, strict=True)]
"""A number of things, where none at all is a choice."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

PLANNED_SHARE = 0.25
"""Share of the fitting budget that training is planned for: machines may be slower than ours, and busy."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(ABC):
    """What every training is told; raises BadInput that names the field where a value is not of its type."""

    learning_rate: Positive
    """The first update has this rate; see ``Training.rate`` for the others."""

    def __post_init__(self) -> None:
        # Here, so that ``dataclasses.replace`` is checked as well.
        hints: dict[str, Any] = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            what = f"{type(self).__name__}, field {field.name} = {getattr(self, field.name)!r}"
            from_data(hints[field.name], getattr(self, field.name), what)

    @property
    @abstractmethod
    def updates(self) -> int:
        """Count the updates of a whole training."""

    @classmethod
    @abstractmethod
    def within(cls, budget: Budget, tasks: Sequence[Task]) -> Self:
        """Give the published settings, or less work where the fitting budget has no room for it on these tasks."""


def affordable_updates(budget: Budget, update_s: float, most_updates: int) -> int:
    """Give ``most_updates`` updates of ``update_s`` seconds, or as many as surely fit the fitting budget; at least one.

    Decided beforehand and not by the clock, so that the same budget gives the same networks.
    """
    return max(1, min(most_updates, int(PLANNED_SHARE * budget.fit_s / update_s)))
