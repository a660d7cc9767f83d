"""Unrolls of fixed length, cut from episodes that are laid end to end, one stream an environment (deviation 1).

The actor-critic update with V-trace (IMPALA, ICML 2018) takes all steps of all unrolls at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shardbench.base.arrays import Bools, Floats, Floats32, Ints
from shardbench.base.memory import GIB
from shardbench.learned.tasks.task import Task

from .networks import AutoShardNetworks, progress_of

CLIP = 1.0
"""Largest importance weight, of the temporal differences and of the trace."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One finished episode; arrays [tables] in the order of placing."""

    task: int
    """Number of the training task."""
    order: Ints
    """Numbers of the tables that the steps placed, in order."""
    chosen: Ints
    log_p: Floats32
    """Log-probability of each choice under the policy that acted."""
    reward: float

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, kw_only=True, eq=False)
class Unrolls:
    """U steps of each of B environments, over S different episodes.

    ``episode`` and ``step`` int64 [U, B] tell where each step lies; ``ends`` bool [U, B] where an
    episode ends, ``rewards`` float64 [U, B] what was earned there (zero elsewhere).
    ``after`` int64 [B] is the step that follows in the last episode (its length where it is over).
    """

    episodes: Sequence[Episode]
    episode: Ints
    step: Ints
    ends: Bools
    rewards: Floats
    after: Ints


class Streams:
    """Episodes that the environments have done and the learner has not yet seen."""

    def __init__(self, environments: int) -> None:
        self.waiting: list[list[Episode]] = [[] for _ in range(environments)]
        self.used: list[int] = [0] * environments
        """Steps of each stream's first episode that were learned from."""

    def short(self, steps: int) -> list[int]:
        """List environments with fewer than ``steps`` steps waiting."""
        return [
            e for e, (queue, used) in enumerate(zip(self.waiting, self.used)) if sum(map(len, queue)) - used < steps
        ]

    def add(self, environment: int, episode: Episode) -> None:
        """Append a finished episode."""
        self.waiting[environment].append(episode)

    def cut(self, steps: int) -> Unrolls:
        """Take the next ``steps`` steps off every stream; all must have as many."""
        episodes: list[Episode] = []
        columns = []
        for environment, queue in enumerate(self.waiting):
            columns.append(self._column(environment, steps, len(episodes)))
            episodes += self._drop(environment, queue, steps)
        at = np.stack(columns, axis=2)
        episode, step = at[0], at[1]
        lengths = np.array([len(e) for e in episodes], dtype=np.int64)
        rewards = np.array([e.reward for e in episodes])
        ends = step == lengths[episode] - 1
        return Unrolls(
            episodes=episodes,
            episode=episode,
            step=step,
            ends=ends,
            rewards=np.where(ends, rewards[episode], 0.0),
            after=step[-1] + 1,
        )

    def _column(self, environment: int, steps: int, first: int) -> Ints:
        """Give episode (counted from ``first``) and step of the next ``steps`` steps, [2, steps]."""
        lengths = np.array([len(e) for e in self.waiting[environment]])
        ends = np.cumsum(lengths)
        position = self.used[environment] + np.arange(steps)
        episode = np.searchsorted(ends, position, side="right")
        return np.stack([first + episode, position - (ends - lengths)[episode]])

    def _drop(self, environment: int, queue: list[Episode], steps: int) -> list[Episode]:
        """Forget the next ``steps`` steps; gives the episodes that they touched."""
        touched = []
        used = self.used[environment] + steps
        while queue and used > 0:
            touched.append(queue[0])
            if used < len(queue[0]):
                break
            used -= len(queue.pop(0))
        self.used[environment] = used
        return touched


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
