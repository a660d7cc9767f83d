"""DreamShard's region: cost against the heuristics over widths, tables a device, device and training."""

from shardbench.studies.regions.placement_region import PlacementRegion

from .names import GREEDIES, OURS


class DreamShardRegion(PlacementRegion):
    """Cost with exchanges, the best greedy's over DreamShard's, at 64 points of four knobs.

    Each point is one short training for tasks of its own; ``effort`` is the share of the published updates of the cost
    network and of the policy, in ten iterations of ten measured placements as published.
    """

    uses = GREEDIES
    judged = "cost_ms"
    strategy = OURS
    scaled = ("cost_updates", "policy_updates")
