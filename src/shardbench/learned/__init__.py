"""What all learned placement strategies share: features, tasks, oracles and batched environments."""
