"""The paper's result table (paper.toml), to stand beside ours."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from shardbench.base.errors import BadInput


@cache
def paper_rows() -> tuple[dict[str, Any], ...]:
    """Read the rows: a task and split, and by strategy its mean and standard deviation in milliseconds."""
    text = (resources.files("shardbench.baselines.dreamshard.reproduction") / "paper.toml").read_text(encoding="ascii")
    return tuple(tomllib.loads(text)["rows"])


def published_ms(task: str, split: str, strategy: str) -> float | None:
    """Give the paper's mean for a cell of its table; None for strategies that it does not have."""
    for row in paper_rows():
        if (row["task"], row["split"]) == (task, split):
            # Means and standard deviations.
            return float(row[strategy][0]) if strategy in row else None
    raise BadInput(f"paper.toml has no row {task}, {split}")


def published_as(task: str) -> str:
    """Name the paper's row beside which ours stands: another one where the paper's tables are not public."""
    for row in paper_rows():
        if row["task"] == task:
            return str(row["published_as"])
    raise BadInput(f"paper.toml has no row {task}")
