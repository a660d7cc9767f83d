"""DreamShard (NeurIPS 2022): a policy trained by REINFORCE on the costs that a learned cost network estimates."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardbench.base.arrays import Ints
from shardbench.learning.learner import Learner
from shardbench.model.strategy import Budget, Role

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained
    from shardbench.tasks.oracle import Oracle
    from shardbench.tasks.task import TableSet, Task

    from .training import DreamShardTraining


class DreamShard(Learner):
    """Cost network and policy of 21 table features, trained against the simulated oracle (deviations 5 and 6)."""

    name = "dreamshard"
    # Its updates are as many as the budget has room for, whatever the clock says: a seed gives one plan.
    limit_share = None

    def training(
        self, tasks: "Sequence[Task]", oracle: "Oracle", seed: int, budget: Budget | None = None
    ) -> "DreamShardTraining":
        """The paper's settings, or fewer updates in proportion to a small budget."""
        from .settings import Settings, settings_for  # noqa: PLC0415
        from .training import DreamShardTraining  # noqa: PLC0415

        return DreamShardTraining(tasks, oracle, seed, Settings() if budget is None else settings_for(budget))

    def place(self, trained: "AnyTrained", tasks: "Sequence[TableSet]") -> list[Ints]:
        """The policy's best device with room for every table, dearest table first."""
        from .estimated_mdp import place  # noqa: PLC0415

        return place(trained, tasks)

    def notes(self, trained: "AnyTrained") -> dict[str, float | int | str]:
        """Calls and iterations."""
        return {"oracle_calls": trained.oracle_calls, "iterations": trained.updates}


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
        """No placement is predicted to cost more than the policy's."""
        from .network_search import place_and_search  # noqa: PLC0415

        placements, self._rated = place_and_search(trained, tasks)
        return placements

    def notes(self, trained: "AnyTrained") -> dict[str, float | int | str]:
        """Placements that the cost network rated for the last plan, too."""
        return {**super().notes(trained), "network_rated": self._rated}


def strategies() -> Iterable[DreamShard]:
    """DreamShard, its untrained control, and the variant that searches under its cost network."""
    return (DreamShard(), DreamShardUntrained(), DreamShardSearch())
