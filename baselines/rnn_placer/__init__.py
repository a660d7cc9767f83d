"""RNN baseline: device placement by a sequence policy and REINFORCE on the oracle's costs."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardbench.base.arrays import Ints
from shardbench.learning.learner import Learner
from shardbench.model.strategy import Budget

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained
    from shardbench.tasks.oracle import Oracle
    from shardbench.tasks.task import TableSet, Task

    from .training import RnnTraining


class RnnPlacer(Learner):
    """Whole tables placed by an LSTM encoder-decoder that learns from the cost of each of its placements.

    It places only on as many devices as it was fitted on.
    """

    name = "rnn-rl"

    def training(
        self, tasks: "Sequence[Task]", oracle: "Oracle", seed: int, budget: Budget | None = None
    ) -> "RnnTraining":
        """The default settings, or fewer updates where the budget would hardly do."""
        from .settings import Settings, settings_for  # noqa: PLC0415
        from .training import RnnTraining  # noqa: PLC0415

        settings = Settings() if budget is None else settings_for(budget, max(task.tables for task in tasks))
        return RnnTraining(tasks, oracle, seed, settings)

    def place(self, trained: "AnyTrained", tasks: "Sequence[TableSet]") -> list[Ints]:
        """The decoder's best device with room for every table."""
        from .decoder import place  # noqa: PLC0415

        return place(trained, tasks)


def strategies() -> Iterable[RnnPlacer]:
    """The one strategy."""
    return (RnnPlacer(),)
