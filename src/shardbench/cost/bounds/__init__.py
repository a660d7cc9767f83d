"""Lower bounds that no plan can beat under the cost model, and their proofs."""
