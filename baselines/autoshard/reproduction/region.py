"""AutoShard's region: kernel time against the heuristics over widths, tables a device, device and training."""

from collections.abc import Sequence
from dataclasses import replace

from shardbench.base.arrays import Ints
from shardbench.studies.placement_region import PlacementRegion
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task

from .. import AutoShard


class Region(PlacementRegion):
    """Kernel time of the slowest device, the best heuristic's over AutoShard's, at 64 points of four knobs.

    Each point is one short training for tasks of its own; ``effort`` is the share of the 100,000 published steps.
    """

    uses = ("greedy-size", "greedy-dim", "greedy-lookup", "greedy-size-lookup")
    judged = "kernel_ms"

    def placed(self, train: Sequence[Task], test: Sequence[Task], effort: float, seed: int) -> tuple[list[Ints], int]:
        """All settings but the number of steps as published: no task has more than 100 tables."""
        from ..settings import Settings  # noqa: PLC0415
        from ..training import AutoShardTraining  # noqa: PLC0415 - needs torch, which listing does not

        published = Settings()
        settings = replace(published, total_steps=round(effort * published.total_steps))
        trained = AutoShardTraining(train, SimulatedOracle(), seed, settings).train()
        return AutoShard().place(trained, test), trained.oracle_calls
