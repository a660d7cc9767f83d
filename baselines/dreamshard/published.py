"""The paper's result table (paper.toml), to stand beside ours."""

import tomllib
from functools import cache
from importlib import resources

from shardbench.errors import BadInput


@cache
def published_rows() -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """(task, split) -> strategy -> mean and standard deviation in milliseconds, as published."""
    text = (resources.files("shardbench.baselines.dreamshard") / "paper.toml").read_text(encoding="ascii")
    found = {}
    for row in tomllib.loads(text)["rows"]:
        named = {name: (float(v[0]), float(v[1])) for name, v in row.items() if isinstance(v, list)}
        found[row["task"], row["split"]] = named
    return found


def published_ms(task: str, split: str, strategy: str) -> float | None:
    """The paper's mean for a cell of its table; None for strategies that it does not have."""
    if (task, split) not in published_rows():
        raise BadInput(f"paper.toml has no row {task}, {split}")
    cell = published_rows()[task, split].get(strategy)
    return cell[0] if cell else None
