"""ShardBench: a benchmark-and-reproduction suite for embedding-table sharding.

This package exports what a strategy of one's own needs (``CONTRIBUTING.md`` has an example), and what reads results.
The latter is imported when it is first asked for, so that ``import shardbench`` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardbench.base.errors import Infeasible
from shardbench.model.plan import (
    BatchSchedule,
    DenseHome,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
    whole_tables,
)
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

if TYPE_CHECKING:
    from shardbench.report.compare.comparison import Comparison, compare_results
    from shardbench.report.results import Results, load_results

    __version__: str
    """The version that is installed, which ``pyproject.toml`` alone states."""

_LATE = {
    "Comparison": "shardbench.report.compare.comparison",
    "Results": "shardbench.report.results",
    "compare_results": "shardbench.report.compare.comparison",
    "load_results": "shardbench.report.results",
}

__all__ = [
    "BatchSchedule",
    "Budget",
    "Comparison",
    "DenseHome",
    "GroupSharded",
    "Host",
    "Infeasible",
    "Move",
    "OnLocalRank",
    "OnRank",
    "Phase",
    "PhaseKind",
    "Plan",
    "Problem",
    "Replicated",
    "Results",
    "Role",
    "RowWise",
    "Sees",
    "Segment",
    "ShardingGroups",
    "Strategy",
    "Tier",
    "compare_results",
    "load_results",
    "whole_tables",
]


def __getattr__(name: str) -> Any:
    """Import what reads results, or read the version, when it is asked for; raises AttributeError for other names."""
    if name == "__version__":
        return import_module("importlib.metadata").version("shardbench")
    if name not in _LATE:
        raise AttributeError(f"module 'shardbench' has no attribute '{name}'")
    return getattr(import_module(_LATE[name]), name)
