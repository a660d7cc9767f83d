"""V-trace: value targets and policy advantages from slightly outdated actions (IMPALA, ICML 2018)."""

import numpy as np

from shardbench.base.arrays import Floats

CLIP = 1.0
"""Largest importance weight, of the temporal differences and of the trace."""


def vtrace(
    log_ratios: Floats, discounts: Floats, rewards: Floats, values: Floats, bootstrap: Floats
) -> tuple[Floats, Floats]:
    """Compute targets of the value function and advantages of the actions taken, float64 [steps, unrolls] each.

    ``log_ratios`` are log pi / mu of the actions under the present and the acting policy,
    ``discounts`` are 0 where an episode ends, ``values`` [steps, unrolls] and ``bootstrap``
    [unrolls] (of the state after the last step) are the present value function's.
    """
    weights = np.minimum(np.exp(log_ratios), CLIP)
    following = np.concatenate([values[1:], bootstrap[None]])
    deltas = weights * (rewards + discounts * following - values)
    # The trace is clipped at the same 1.0 as the temporal differences.
    traces = discounts * weights
    above: Floats = np.zeros_like(bootstrap)
    targets = np.empty_like(values)
    for step in range(len(values) - 1, -1, -1):
        above = deltas[step] + traces[step] * above
        targets[step] = values[step] + above
    following = np.concatenate([targets[1:], bootstrap[None]])
    return targets, weights * (rewards + discounts * following - values)
