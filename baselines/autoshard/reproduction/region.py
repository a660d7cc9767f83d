"""AutoShard's region: kernel time against the heuristics over widths, tables a device, device and training."""

from shardbench.studies.regions.placement_region import PlacementRegion

from .names import GREEDIES, OURS


class AutoShardRegion(PlacementRegion):
    """Kernel time of the slowest device, the best heuristic's over AutoShard's, at 64 points of four knobs.

    Each point is one short training for tasks of its own; ``effort`` is the share of the 100,000 published steps.
    """

    uses = GREEDIES
    judged = "kernel_ms"
    strategy = OURS
    scaled = ("total_steps",)
