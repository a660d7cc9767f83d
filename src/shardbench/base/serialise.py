"""JSON round trip of the frozen dataclasses, with one-line errors."""

import dataclasses
import hashlib
import json
from typing import Any, TypeVar

import numpy as np
import pydantic

from shardbench.base.errors import BadInput, one_line

T = TypeVar("T")

STRICT = pydantic.ConfigDict(extra="forbid")


class StrictModel(pydantic.BaseModel):
    """A model whose fields are all known and never change."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class FiniteModel(StrictModel):
    """A strict model without infinities and NaN."""

    model_config = pydantic.ConfigDict(allow_inf_nan=False)


_LONGEST = 400
"""Most characters of a field's name, and of what is wrong with it: both may hold words out of a file."""
_adapters: dict[Any, pydantic.TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = pydantic.TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: Any, *, exclude_none: bool = False) -> str:
    """Return a dataclass or model as canonical JSON: sorted keys, no spaces, ASCII, with or without None in fields."""
    data = _adapter(type(value)).dump_python(value, mode="json", exclude_none=exclude_none)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def to_data(value: Any) -> Any:
    """Turn a dataclass or pydantic model into plain dicts, lists, numbers and strings."""
    return _adapter(type(value)).dump_python(value, mode="json")


def to_toml(value: Any) -> str:
    """Return plain data as a TOML value; each table of a list has a line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {to_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        tables = any(isinstance(one, dict) for one in value)
        return "[\n" + "".join(f"  {to_toml(one)},\n" for one in value) + "]" if tables else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def from_json(kind: type[T], text: str | bytes, what: str = "JSON") -> T:
    """Parse and validate; raises BadInput that names the first wrong field."""
    try:
        value: T = _adapter(kind).validate_json(text)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error
    return value


def from_data(kind: type[T], data: Any, what: str = "data") -> T:
    """Validate plain data; raises BadInput that names the first wrong field."""
    try:
        value: T = _adapter(kind).validate_python(data)
    except pydantic.ValidationError as error:
        raise BadInput(f"{what}: {first_error(error)}") from error
    return value


def first_error(error: pydantic.ValidationError) -> str:
    """Make one line out of pydantic's report: field, message, and how many more there are."""
    errors = error.errors(include_url=False)
    where = one_line(".".join(str(part) for part in errors[0]["loc"]) or "value", _LONGEST)
    message = one_line(errors[0]["msg"].removeprefix("Value error, "), _LONGEST)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {message}{more}"


def content_hash(*parts: Any) -> str:
    """Return the first 16 hex digits of SHA-256 over dataclasses, arrays, strings and numbers; order counts."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        elif isinstance(part, bytes):
            digest.update(part)
        elif dataclasses.is_dataclass(part) or isinstance(part, pydantic.BaseModel):
            digest.update(to_json(part).encode())
        else:
            digest.update(json.dumps(part, sort_keys=True, separators=(",", ":")).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
