"""Training in hot and cold phases: mini-batches of a plan with a batch schedule."""
