"""The actor-critic update: all steps of all unrolls at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Floats32, Ints
from shardbench.base.memory import GIB
from shardbench.learned.tasks.task import Task

from .networks import AutoShardNetworks
from .policy import progress_of
from .unrolls import Unrolls
from .vtrace import vtrace


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Unrolls as arrays: S episodes padded to L steps, and U x B steps of them to learn from."""

    rows: Ints
    """Catalogue row placed at each step, [S, L]; the row of zeros where padded."""
    chosen: Ints
    """Device chosen at each step, [S, L]."""
    sizes: Ints
    """Bytes of what is placed, [S, L]."""
    tables: Ints
    """Tables of each episode, [S]."""
    devices: Ints
    """Devices of each episode, [S]."""
    acted_log_p: Floats32
    """Log-probability of the choice when it was made, [U, B]."""
    unrolls: Unrolls


def batch_of(unrolls: Unrolls, tasks: Sequence[Task], catalogue_rows: Sequence[Ints], zero: int) -> Batch:
    """Make arrays of unrolls; ``catalogue_rows[i]`` [tables] are the tables of task i, ``zero`` is the row of zeros."""
    episodes = unrolls.episodes
    of = [tasks[e.task] for e in episodes]
    # Steps after the last one wanted need no state.
    length = min(int(unrolls.after.max(initial=int(unrolls.step.max()) + 1)) + 1, max(map(len, episodes)))
    shape = (len(episodes), length)
    rows, chosen, sizes = np.full(shape, zero), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    log_p: Floats32 = np.zeros(shape, dtype=np.float32)
    for i, (episode, task) in enumerate(zip(episodes, of)):
        order = episode.order[:length]
        rows[i, : len(order)] = catalogue_rows[episode.task][order]
        sizes[i, : len(order)] = task.sizes_bytes[order]
        chosen[i, : len(order)], log_p[i, : len(order)] = episode.chosen[:length], episode.log_p[:length]
    return Batch(
        rows=rows,
        chosen=chosen,
        sizes=sizes,
        tables=np.array([task.tables for task in of], dtype=np.int64),
        devices=np.array([task.devices for task in of], dtype=np.int64),
        acted_log_p=log_p[unrolls.episode, unrolls.step],
        unrolls=unrolls,
    )


def held_before(chosen: Tensor, values: Tensor, devices: int) -> Tensor:
    """Sum up what every device holds before each step, [S, L] and [S, L, ...] -> [S, L, devices, ...]."""
    onto = torch.nn.functional.one_hot(chosen, devices).to(values.dtype)
    onto = onto.reshape(*onto.shape, *([1] * (values.dim() - 2)))
    after = (onto * values[:, :, None]).cumsum(dim=1)
    return torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """What the present networks say about the learned steps: log-probabilities [U, B, D], values [U, B]."""

    log_p: Tensor
    values: Tensor
    bootstrap: Tensor
    """Value of the state after the last step, [B]; of no meaning where the episode is over."""


def evaluate(networks: AutoShardNetworks, batch: Batch, tables: Tensor) -> Evaluated:
    """Give log-probabilities and values of every learned step; ``tables`` [catalogue + 1, 21], the last a row of zeros.

    States start from zeros at the start of each episode, also where the unroll starts later
    (deviation 3).
    """
    unrolls, devices = batch.unrolls, int(batch.devices.max())
    encoded = networks.encoder(tables)
    encodings = encoded[torch.from_numpy(batch.rows)]
    states = networks.states(encodings, torch.from_numpy(progress_of(batch.rows.shape[1], batch.tables)))
    values = networks.values(states)
    chosen = torch.from_numpy(batch.chosen)
    at = torch.from_numpy(unrolls.episode), torch.from_numpy(unrolls.step)
    sums = held_before(chosen, encodings, devices)[at] + encoded[-1]
    held_bytes = held_before(chosen, torch.from_numpy(batch.sizes), devices)[at]
    with torch.no_grad():
        # An input to the policy, no way to teach the cost network (deviation 4).
        scalars = torch.stack([networks.device_ms(sums), held_bytes.to(torch.float64).div(GIB).float()], dim=-1)
    steps = unrolls.step.shape
    logits = networks.logits(states[at].flatten(0, 1), sums.flatten(0, 1), scalars.flatten(0, 1)).unflatten(0, steps)
    # What acting chose among: any device of the episode, whether it has room or not (deviation 2).
    real = torch.from_numpy(np.arange(devices) < batch.devices[unrolls.episode][..., None])
    logits = logits.masked_fill(~real, -torch.inf)
    following = torch.from_numpy(np.minimum(unrolls.after, batch.rows.shape[1] - 1))
    return Evaluated(log_p=logits.log_softmax(dim=-1), values=values[at], bootstrap=values[at[0][-1], following])


def actor_critic_loss(
    evaluation: Evaluated, batch: Batch, *, discount: float, baseline_weight: float, entropy_weight: float
) -> Tensor:
    """Add up V-trace policy gradient, half the squared error of the values, and minus the entropy, over all steps."""
    unrolls = batch.unrolls
    actions = torch.from_numpy(batch.chosen[unrolls.episode, unrolls.step])
    action_log_p = evaluation.log_p.gather(2, actions[..., None]).squeeze(2)
    targets, advantages = vtrace(
        log_ratios=action_log_p.detach().double().numpy() - batch.acted_log_p,
        discounts=np.where(unrolls.ends, 0.0, discount),
        rewards=unrolls.rewards,
        values=evaluation.values.detach().double().numpy(),
        bootstrap=evaluation.bootstrap.detach().double().numpy(),
    )
    policy = -(action_log_p * torch.from_numpy(advantages).float()).sum()
    baseline = 0.5 * (torch.from_numpy(targets).float() - evaluation.values).square().sum()
    # Impossible devices have probability zero; zero times their infinite logarithm would be no number.
    possible = evaluation.log_p.masked_fill(torch.isneginf(evaluation.log_p), 0.0)
    entropy = -(evaluation.log_p.exp() * possible).sum()
    return policy + baseline_weight * baseline - entropy_weight * entropy
