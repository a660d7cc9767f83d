"""AutoShard: whole tables placed by a policy that was trained to even out the devices' kernel times."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardbench.base.arrays import Ints
from shardbench.learning.learner import Learner
from shardbench.model.strategy import Budget, Role, Strategy

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained
    from shardbench.tasks.oracle import Oracle
    from shardbench.tasks.task import TableSet, Task

    from .training import AutoShardTraining


class AutoShard(Learner):
    """Whole tables placed by an LSTM policy trained for even kernel times (KDD 2022)."""

    name = "autoshard"

    def training(
        self, tasks: "Sequence[Task]", oracle: "Oracle", seed: int, budget: Budget | None = None
    ) -> "AutoShardTraining":
        """The published settings, or fewer steps where the budget would hardly do."""
        from .settings import Settings, settings_for  # noqa: PLC0415
        from .training import AutoShardTraining  # noqa: PLC0415

        settings = Settings()
        if budget is not None:
            settings = settings_for(budget, max(t.devices for t in tasks), max(t.tables for t in tasks))
        return AutoShardTraining(tasks, oracle, seed, settings)

    def place(self, trained: "AnyTrained", tasks: "Sequence[TableSet]") -> list[Ints]:
        """The policy's best device with room for every table."""
        from .policy import place  # noqa: PLC0415

        return place(trained, tasks)

    def notes(self, trained: "AnyTrained") -> dict[str, float | int | str]:
        """Environment steps too: a short budget has fewer."""
        return {"environment_steps": trained.updates * trained.settings.update_steps, **super().notes(trained)}


class AutoShardUntrained(AutoShard):
    """Control: AutoShard's networks as they are drawn, before any training."""

    name = "autoshard-untrained"
    role = Role.VARIANT
    trains = False


def strategies() -> Iterable[Strategy]:
    """AutoShard and its untrained control."""
    return (AutoShard(), AutoShardUntrained())
