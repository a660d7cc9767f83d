"""A plan as TorchRec's: export, sharding plans, remapped and split collections, TorchRec's estimate."""
