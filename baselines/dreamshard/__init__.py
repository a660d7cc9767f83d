"""DreamShard (NeurIPS 2022): a policy trained by REINFORCE on the costs that a learned cost network estimates."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardbench.base.arrays import Ints
from shardbench.learned.learner import Learner
from shardbench.model.strategy import Role

if TYPE_CHECKING:
    from shardbench.learned.tasks.task import TableSet
    from shardbench.learned.training import AnyTrained


class DreamShard(Learner):
    """Cost network and policy of 21 table features, trained against the simulated oracle (deviations 5 and 6)."""

    name = "dreamshard"
    version = 2
    trainings = "shardbench.baselines.dreamshard.training:DreamShardTraining"
    # Its updates are as many as the budget has room for, whatever the clock says: a seed gives one plan.
    limit_share = float("inf")

    def notes(self) -> dict[str, float | int | str]:
        """Give the oracle calls and the iterations."""
        return {"oracle_calls": self.fitted.oracle_calls, "iterations": len(self.fitted.history)}


class DreamShardUntrained(DreamShard):
    """The same networks as they are before training: a control."""

    name = "dreamshard-untrained"
    role = Role.VARIANT
    trains = False


class DreamShardSearch(DreamShard):
    """DreamShard's policy, and then moves and swaps under its own cost network: nothing more is measured."""

    name = "dreamshard-search"
    role = Role.VARIANT

    def __init__(self) -> None:
        super().__init__()
        self._rated = 0

    def place(self, trained: "AnyTrained", tasks: "Sequence[TableSet]") -> list[Ints]:
        """Improve the policy's placements: none is predicted to cost more than it did."""
        from .network_search import place_and_search  # noqa: PLC0415

        placements, self._rated = place_and_search(trained, tasks)
        return placements

    def notes(self) -> dict[str, float | int | str]:
        """Give the placements that the cost network rated for the last plan, too."""
        return {**super().notes(), "network_rated": self._rated}


def strategies() -> Iterable[DreamShard]:
    """Give DreamShard, its untrained control, and the variant that searches under its cost network."""
    return (DreamShard(), DreamShardUntrained(), DreamShardSearch())
