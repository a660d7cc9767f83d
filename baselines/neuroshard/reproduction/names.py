"""Names of the strategies that NeuroShard is compared with: a name more is a strategy more in every table."""

OURS = "neuroshard"
UNTRAINED = "neuroshard-untrained"
WHOLE = "neuroshard-whole"
RANDOM = "shuffle"
COST_GREEDY = "greedy-cost"
"""It looks at the oracle's own costs of single tables."""
OTHERS = (
    RANDOM, "greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup", "autoshard", "dreamshard",
    "torchrec-table-wise",
)  # fmt: skip
"""The paper's: the best of them is what a margin is over."""
CONTROLS = (COST_GREEDY, "search", "column-wise", WHOLE, UNTRAINED)
"""Not the paper's: what the cost model, more search, plain halving, and each part of NeuroShard give."""
MORE_MOVES = ("torchrec-fused", "joint")
"""They may split by rows and copy too."""
SEEDED = frozenset({OURS, RANDOM, "dreamshard"})
"""Strategies with randomness that have several seeds; the others' trainings take too long, or they have none."""
