"""Lower bounds that no plan can beat under the cost model; ``docs/bounds.md`` has the proofs as lemmas."""
