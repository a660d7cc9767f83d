"""A planner in the place of TorchRec's own, and the profiles that it plans by."""
