"""Names of the strategies that DreamShard is compared with."""

OURS = "dreamshard"
UNTRAINED = "dreamshard-untrained"
RANDOM = "shuffle"
LOOKUP = "greedy-lookup"
GREEDIES = ("greedy-size", "greedy-dim", LOOKUP, "greedy-size-lookup")
RNN = "rnn-rl"
COST_GREEDY = "greedy-cost"
"""It looks at the oracle's own costs of single tables."""
AUTOSHARD = "autoshard"
BASELINES = (RANDOM, *GREEDIES, RNN)
"""The paper's: the strongest of them is what a margin is over."""
MEASURED_STRATEGIES = (RANDOM, *GREEDIES, COST_GREEDY, OURS, UNTRAINED)
"""Strategies whose plans are measured on real kernels."""
