"""DreamShard (NeurIPS 2022): a policy trained by REINFORCE on the costs that a learned cost network estimates."""

from collections.abc import Iterable

from shardbench.learned.learner import Learner
from shardbench.model.strategy import Role


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


def strategies() -> Iterable[DreamShard]:
    """Give DreamShard and its untrained control."""
    return (DreamShard(), DreamShardUntrained())
