"""Counting what a plan does, what that takes by the cost model, and bounds that no plan can beat."""
