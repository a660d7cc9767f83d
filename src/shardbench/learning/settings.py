"""Hyper-parameters of learned strategies: numbers that are checked where they are stated."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import Field

from shardbench.base.serialise import from_data

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Count = Annotated[int, Field(gt=0, strict=True)]
CountOrNone = Annotated[int, Field(ge=0, strict=True)]
"""How many, where none at all is a choice."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def check_settings(settings: "DataclassInstance") -> None:
    """Raise BadInput, in one line that names the field, where a value is not of its field's type.

    For ``__post_init__`` of settings, so that ``dataclasses.replace`` is checked as well.
    """
    hints: dict[str, Any] = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        what = f"{type(settings).__name__}, field {field.name} = {getattr(settings, field.name)!r}"
        from_data(hints[field.name], getattr(settings, field.name), what)
