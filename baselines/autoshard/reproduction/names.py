"""Names of the strategies that AutoShard is compared with."""

OURS = "autoshard"
UNTRAINED = "autoshard-untrained"
RANDOM = "shuffle"
LOOKUP = "greedy-lookup"
GREEDIES = ("greedy-size", "greedy-dim", LOOKUP, "greedy-size-lookup")
COST_GREEDY = "greedy-cost"
"""It looks at the oracle's own costs of single tables."""
DREAMSHARD = "dreamshard"
SEARCH = "search"
