"""DreamShard's region: cost against the heuristics over widths, tables a device, device and training."""

from collections.abc import Sequence
from dataclasses import replace

from shardbench.base.arrays import Ints
from shardbench.studies.placement_region import PlacementRegion
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task

from .. import DreamShard
from .names import GREEDIES


class Region(PlacementRegion):
    """Cost with exchanges, the best greedy's over DreamShard's, at 64 points of four knobs.

    Each point is one short training for tasks of its own; ``effort`` is the share of the published updates of the cost
    network and of the policy, in ten iterations of ten measured placements as published.
    """

    uses = GREEDIES
    judged = "cost_ms"

    def placed(self, train: Sequence[Task], test: Sequence[Task], effort: float, seed: int) -> tuple[list[Ints], int]:
        """All settings but the two numbers of updates as published."""
        from ..settings import Settings  # noqa: PLC0415
        from ..training import DreamShardTraining  # noqa: PLC0415 - needs torch, which listing does not

        published = Settings()
        settings = replace(
            published,
            cost_updates=max(1, round(effort * published.cost_updates)),
            policy_updates=max(1, round(effort * published.policy_updates)),
        )
        trained = DreamShardTraining(train, SimulatedOracle(), seed, settings).train()
        return DreamShard().place(trained, test), trained.oracle_calls
