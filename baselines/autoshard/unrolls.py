"""Episodes laid end to end, one stream an environment, and the fixed-length unrolls cut from them (deviation 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Bools, Floats, Floats32, Ints


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
