"""The policy's update: REINFORCE on estimated costs, all steps of all episodes at once."""

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Bools, Floats32, Ints

from .estimated_mdp import DreamShardEpisodes
from .networks import PolicyNetwork

IMPOSSIBLE = -1e9
"""Logit of an illegal device: its probability is zero in fp32, and zero times it is zero."""
SPREAD = 1e-6
"""Keeps equal returns from being divided by zero."""


def states_before(chosen: Ints, devices: int) -> Ints:
    """Find the step after which each device last changed before each step, plus one (0: still empty), [E, T, D]."""
    episodes, steps = chosen.shape
    changed = np.zeros((episodes, steps, devices), dtype=np.int64)
    np.put_along_axis(changed, chosen[:, :, None], np.arange(1, steps + 1)[None, :, None], axis=2)
    before = np.zeros_like(changed)
    np.maximum.accumulate(changed[:, :-1], axis=1, out=before[:, 1:])
    return before


def advantages(overall_ms: Floats32, failed: Bools) -> Floats32:
    """Standardise returns of the episodes that found a place for every table, zero for the others, [E]."""
    returns = -overall_ms.astype(np.float64)
    good = ~failed
    if good.sum() < 2:
        return np.zeros(len(returns), dtype=np.float32)
    centred = (returns - returns[good].mean()) / (returns[good].std() + SPREAD)
    return np.where(good, centred, 0.0).astype(np.float32)


def policy_loss(
    policy: PolicyNetwork, tables: Tensor, episodes: DreamShardEpisodes, empty_ms: Floats32, entropy_weight: float
) -> Tensor:
    """Compute REINFORCE's loss of episodes of a task; ``tables`` float32 [T, 21] normalised, in the order of placing.

    Probabilities are over the legal devices only, at the update as when acting: deviation 1. All
    states of all steps are evaluated at once: after each step one device an episode is new.
    """
    placing = episodes.placing
    chosen = torch.from_numpy(placing.chosen)
    count, steps = chosen.shape
    same = (chosen[:, :, None] == chosen[:, None, :]).float().tril_()
    sums = same @ policy.encoder(tables)
    empty = policy.encoder(torch.zeros(1, tables.shape[1]))
    states = torch.cat([empty.expand(count, 1, -1), sums], dim=1)
    costs = torch.empty(count, steps + 1, episodes.costs_ms.shape[2])
    costs[:, 0], costs[:, 1:] = torch.from_numpy(empty_ms), torch.from_numpy(episodes.costs_ms)
    scores = policy(states, costs)
    before = torch.from_numpy(states_before(placing.chosen, placing.free.shape[1]))
    logits = scores.gather(1, before.flatten(1)).view_as(before)
    logits = logits.masked_fill(torch.from_numpy(~placing.legal_at), IMPOSSIBLE)
    log_p = logits.log_softmax(dim=2)
    action_log_p = log_p.gather(2, chosen[:, :, None]).squeeze(2)
    entropy = -(log_p.exp() * log_p).sum(2)
    weight = torch.from_numpy(advantages(episodes.overall_ms, placing.failed))
    is_used = torch.from_numpy(~placing.failed).float()
    gain: Tensor = (action_log_p * weight[:, None]).mean() + entropy_weight * (entropy * is_used[:, None]).mean()
    return -gain
