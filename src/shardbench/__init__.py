"""ShardBench: a benchmark-and-reproduction suite for embedding-table sharding.

What this package exports is what a strategy of one's own needs; ``CONTRIBUTING.md`` has an example.
"""

from shardbench.base.errors import Infeasible
from shardbench.model.plan import (
    BatchSchedule,
    DenseHome,
    Host,
    NodeSharded,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
    whole_tables,
)
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

__version__ = "0.1.0"

__all__ = [
    "BatchSchedule",
    "Budget",
    "DenseHome",
    "Host",
    "Infeasible",
    "Move",
    "NodeSharded",
    "OnLocalRank",
    "OnRank",
    "Phase",
    "PhaseKind",
    "Plan",
    "Problem",
    "Replicated",
    "Role",
    "RowWise",
    "Sees",
    "Segment",
    "Strategy",
    "Tier",
    "whole_tables",
]
