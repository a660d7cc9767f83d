"""AutoShard: whole tables placed by a policy that was trained to even out the devices' kernel times."""

from collections.abc import Iterable

from shardbench.learned.learner import Learner
from shardbench.model.strategy import Role, Strategy


class AutoShard(Learner):
    """Whole tables placed by an LSTM policy trained for even kernel times (KDD 2022)."""

    name = "autoshard"
    version = 2
    trainings = "shardbench.baselines.autoshard.training:AutoShardTraining"

    def notes(self) -> dict[str, float | int | str]:
        """Give the environment steps too: a short budget has fewer."""
        trained = self.fitted
        return {"environment_steps": len(trained.history) * trained.settings.update_steps, **super().notes()}


class AutoShardUntrained(AutoShard):
    """Control: AutoShard's networks as they are drawn, before any training."""

    name = "autoshard-untrained"
    role = Role.VARIANT
    trains = False


def strategies() -> Iterable[Strategy]:
    """Give AutoShard and its untrained control."""
    return (AutoShard(), AutoShardUntrained())
