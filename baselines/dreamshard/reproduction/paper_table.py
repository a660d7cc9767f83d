"""The paper's result table (paper.toml), to stand beside ours."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from shardbench.base.errors import BadInput


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    text = (resources.files("shardbench.baselines.dreamshard.reproduction") / "paper.toml").read_text(encoding="ascii")
    return tuple(tomllib.loads(text)["rows"])


@cache
def published_rows() -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Read (task, split) -> strategy -> mean and standard deviation in milliseconds, as published."""
    rows = {}
    for row in _rows():
        strategies = {name: (float(v[0]), float(v[1])) for name, v in row.items() if isinstance(v, list)}
        rows[row["task"], row["split"]] = strategies
    return rows


def published_ms(task: str, split: str, strategy: str) -> float | None:
    """Give the paper's mean for a cell of its table; None for strategies that it does not have."""
    if (task, split) not in published_rows():
        raise BadInput(f"paper.toml has no row {task}, {split}")
    cell = published_rows()[task, split].get(strategy)
    return cell[0] if cell else None


def published_as(task: str) -> str:
    """Name the paper's row beside which ours stands: another one where the paper's tables are not public."""
    for row in _rows():
        if row["task"] == task:
            return str(row["published_as"])
    raise BadInput(f"paper.toml has no row {task}")
